//! Shows how memory is really locked, mapping by mapping.

use super::claims::Level;
use super::inspect::{self, Special};
use crate::error::{Error, ErrorKind, Result};
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::smaps;
use crate::range::PageRange;
use crate::text::{text, Words};
use std::fmt;

/// How a part is locked.
///
/// ```
/// use tenure::lock::{receipt, State};
/// let memory = tenure::Mapping::anonymous(4096)?;
/// assert_eq!(receipt(memory.as_ptr(), 4096)?.parts[0].state, State::Unlocked);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum State {
    /// In full: the pages that were resident when it was locked, and all that are touched later.
    Full,
    /// Each page from its first touch on.
    OnFault,
    /// Not at all.
    Unlocked,
    /// Never paged out, locked or not. The text is the reason.
    AlwaysResident(&'static str),
    /// It cannot be locked, although the kernel's own calls succeed. The text is the reason.
    Impossible(&'static str),
}

/// A part of a range in one mapping.
///
/// ```
/// let memory = tenure::Mapping::anonymous(4096)?;
/// let part = &tenure::lock::receipt(memory.as_ptr(), 4096)?.parts[0];
/// assert_eq!((part.start, part.len), (memory.as_ptr() as usize, 4096));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Part {
    /// Its first address.
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
    /// How it is locked.
    pub state: State,
    /// How many of its bytes are in memory, in pages of their own. The zero page, which a mere read
    /// brings in, does not count, because no lock keeps it. (Before Linux 6.7 the zero page counts,
    /// and so do swapped-out pages.)
    pub resident_bytes: u64,
    /// The file's path, the kernel's name for it, or nothing.
    pub name: String,
}

/// The result of [`receipt()`]. Its `Display` is a table.
///
/// ```
/// let memory = tenure::Mapping::anonymous(4096)?;
/// print!("{}", tenure::lock::receipt(memory.as_ptr(), 4096)?); // a table
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Receipt {
    /// The range's parts in order of address. Where two do not touch, nothing is mapped between.
    pub parts: Vec<Part>,
}

impl Receipt {
    fn bytes(&self, wanted: impl Fn(State) -> bool) -> u64 {
        self.parts.iter().filter(|part| wanted(part.state)).map(|part| part.len as u64).sum()
    }

    /// Returns how many bytes are locked in full.
    ///
    /// ```
    /// use tenure::lock::{lock, When};
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// let guard = lock(memory.as_ptr(), 4096, When::Now)?;
    /// assert_eq!(guard.receipt()?.full_bytes(), 4096);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn full_bytes(&self) -> u64 {
        self.bytes(|state| state == State::Full)
    }

    /// Returns how many bytes are locked on fault, touched or not.
    ///
    /// ```
    /// use tenure::lock::{lock, When};
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// let guard = lock(memory.as_ptr(), 4096, When::OnFault)?;
    /// assert_eq!(guard.receipt()?.on_fault_bytes(), 4096);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn on_fault_bytes(&self) -> u64 {
        self.bytes(|state| state == State::OnFault)
    }

    /// Returns how many bytes are mapped and not locked.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// assert_eq!(tenure::lock::receipt(memory.as_ptr(), 4096)?.unlocked_bytes(), 4096);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn unlocked_bytes(&self) -> u64 {
        self.bytes(|state| state == State::Unlocked)
    }

    /// Returns how many bytes the kernel never pages out, locked or not.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(4096)?; // no huge page of hugetlbfs, no device
    /// assert_eq!(tenure::lock::receipt(memory.as_ptr(), 4096)?.always_resident_bytes(), 0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn always_resident_bytes(&self) -> u64 {
        self.bytes(|state| matches!(state, State::AlwaysResident(_)))
    }

    /// Returns how many bytes cannot be locked.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(4096)?; // not MAP_DROPPABLE
    /// assert_eq!(tenure::lock::receipt(memory.as_ptr(), 4096)?.impossible_bytes(), 0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn impossible_bytes(&self) -> u64 {
        self.bytes(|state| matches!(state, State::Impossible(_)))
    }

    /// Returns how many bytes are in memory.
    ///
    /// ```
    /// let mut memory = tenure::Mapping::anonymous(8192)?;
    /// memory.as_mut_slice()[0] = 7;
    /// let lock = tenure::lock::lock(memory.as_ptr(), 8192, tenure::lock::When::Now)?;
    /// assert_eq!(lock.receipt()?.resident_bytes(), 8192);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn resident_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.resident_bytes).sum()
    }
}

/// Returns how the pages that `[addr, addr + len)` touches are locked, as the kernel reports it
/// (`VmFlags` of smaps). Holes are left out.
///
/// ```
/// let memory = tenure::Mapping::anonymous(4096)?;
/// let lock = tenure::lock::lock(memory.as_ptr(), 4096, tenure::lock::When::Now)?;
/// assert_eq!(tenure::lock::receipt(memory.as_ptr(), 4096)?.full_bytes(), 4096);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// A reading of `/proc/self/smaps` up to the end of the range (10 ns for each resident page), and
/// of its page map (4 ns a page).
///
/// # Errors
/// `EINVAL`: empty or wrapping; `addr` is not a multiple of the page size. Others:
/// `/proc/self/smaps` or `/proc/self/pagemap` could not be read.
#[doc(alias = "smaps")]
#[doc(alias = "VmFlags")]
pub fn receipt(addr: *const u8, len: usize) -> Result<Receipt> {
    look_at(PageRange::touched("receipt", addr, len)?)
}

/// Returns a [`receipt()`] for all mappings of the process: the effect of `mlockall`.
///
/// ```
/// let all = tenure::lock::receipt_of_everything()?;
/// println!("{} bytes are locked, {} are not", all.full_bytes(), all.unlocked_bytes());
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// A reading of `/proc/self/smaps` (10 ns for each resident page of the process).
///
/// # Errors
/// As for [`receipt()`], except `EINVAL`.
#[doc(alias = "smaps")]
pub fn receipt_of_everything() -> Result<Receipt> {
    look_at(inspect::everything())
}

fn look_at(range: PageRange) -> Result<Receipt> {
    let call = "receipt";
    let failed = |what: &'static str| {
        move |errno: rustix::io::Errno| {
            let why = text!("{what} could not be read: {}", Words(errno));
            Error::new(ErrorKind::System, call, why, "mount /proc, and keep the process dumpable")
                .with_errno(errno.raw_os_error())
                .on(range.start, range.len())
        }
    };
    let mut parts = Vec::new();
    smaps::each_entry(range, |entry| {
        let Some(part) = inspect::overlap(&entry.mapping, range) else { return };
        let state = match (inspect::special(&entry), inspect::level(&entry)) {
            (Some(Special::AlwaysResident(why)), _) => State::AlwaysResident(why),
            (Some(Special::Impossible(why)), _) => State::Impossible(why),
            (None, Level::Full) => State::Full,
            (None, Level::OnFault) => State::OnFault,
            (None, Level::Unlocked) => State::Unlocked,
        };
        // The page map has few facts about devices and huge pages of the pool; smaps has no Rss for
        // them.
        let whole = part.len() == entry.mapping.end - entry.mapping.start;
        let rss = if whole { Some(entry.rss) } else { None };
        parts.push((part, state, rss, entry.name));
    })
    .map_err(failed("/proc/self/smaps"))?;
    let pagemap = Pagemap::open().map_err(failed("/proc/self/pagemap"))?;
    let mut receipt = Receipt::default();
    for (part, state, rss, name) in parts {
        // A mapping without resident pages need not be walked page by page.
        let resident_bytes = match rss {
            Some(0) if !matches!(state, State::AlwaysResident(_)) => 0,
            _ => pagemap.count(part, Pages::Resident).map_err(failed("/proc/self/pagemap"))? as u64,
        };
        receipt.parts.push(Part {
            start: part.start,
            len: part.len(),
            state,
            resident_bytes,
            name,
        });
    }
    Ok(receipt)
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Full => f.pad("full"),
            State::OnFault => f.pad("on fault"),
            State::Unlocked => f.pad("unlocked"),
            State::AlwaysResident(_) => f.pad("always resident"),
            State::Impossible(_) => f.pad("impossible"),
        }
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<16} {:>15} {:<15} {:>15}  what", "address", "bytes", "locked", "resident")?;
        for part in &self.parts {
            write!(
                f,
                "{:<16x} {:>15} {:<15} {:>15}  ",
                part.start, part.len, part.state, part.resident_bytes
            )?;
            f.write_str(if part.name.is_empty() { "anonymous" } else { &part.name })?;
            if let State::AlwaysResident(why) | State::Impossible(why) = part.state {
                write!(f, " ({why})")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
