//! The plan of a populate, with reasons: decided once, shown by `plan()`, followed by `run()`.

use super::backing::Backing;
use super::{threads, Access, HugePages, Populate};
use crate::error::{Error, Result};
use crate::os::files::{self, Facts};
use crate::os::maps::{self, Described};
use crate::os::thp::{self, Setting};
use crate::os::{mounts, page_size, populate as os_populate, smaps, HUGE_PAGE};
use crate::range::PageRange;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;

/// 0.13 ms of huge pages at their fastest. It is not more, because the next piece may be a hundred
/// times slower: on a virtual machine, whose host must first provide the memory.
pub(super) const LARGEST_PIECE: usize = 8 << 20;
/// A populate that takes no memory may have longer pieces, because the page cache is mapped by the
/// folio: 1 µs for 2 MiB.
pub(super) const LARGEST_OF_FILE: usize = 64 << 20;

/// One step of the work on a mapping.
///
/// ```
/// use tenure::populate::{Access, Populate, Step};
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// let plan = Populate::new(memory.as_ptr(), memory.len(), Access::Read).plan()?;
/// let steps = &plan.parts[0].steps;
/// assert!(steps.iter().any(|(step, _)| matches!(step, Step::PopulateRead | Step::TouchRead)));
/// # Ok::<(), tenure::Error>(())
/// ```
#[doc(alias = "MADV_POPULATE_READ")]
#[doc(alias = "MADV_POPULATE_WRITE")]
#[doc(alias = "fallocate")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Step {
    /// `madvise(MADV_HUGEPAGE)` over all of it, before anything else.
    AdviseHugePages,
    /// `fallocate`, piece by piece, before the piece is populated.
    Allocate,
    /// `madvise(MADV_POPULATE_READ)`.
    PopulateRead,
    /// `madvise(MADV_POPULATE_WRITE)`.
    PopulateWrite,
    /// Each page read by `process_vm_readv`.
    TouchRead,
    /// Each page touched by a futex call that ors 0 into it.
    TouchWrite,
    /// A byte of each page read (`process_vm_writev` to this process), after it was populated.
    UseOnce,
}

impl Step {
    /// All steps, in the order of their numbers.
    pub(super) const ALL: [Step; 7] = [
        Step::AdviseHugePages,
        Step::Allocate,
        Step::PopulateRead,
        Step::PopulateWrite,
        Step::TouchRead,
        Step::TouchWrite,
        Step::UseOnce,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::AdviseHugePages => "MADV_HUGEPAGE",
            Step::Allocate => "fallocate",
            Step::PopulateRead => "MADV_POPULATE_READ",
            Step::PopulateWrite => "MADV_POPULATE_WRITE",
            Step::TouchRead => "touch (process_vm_readv)",
            Step::TouchWrite => "touch (futex)",
            Step::UseOnce => "use of each page",
        })
    }
}

/// A mapping's part of the range, and the work on it.
///
/// ```
/// use tenure::populate::{Access, Populate};
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// for part in Populate::new(memory.as_ptr(), memory.len(), Access::Write).plan()?.parts {
///     println!("{} bytes at {:#x}: {:?}", part.len, part.start, part.steps);
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Part {
    /// Its first address.
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
    /// The source of its pages.
    pub backing: Backing,
    /// Whether it is mapped shared.
    pub shared: bool,
    /// The size of its pages in bytes: larger than the base page for hugetlbfs.
    pub page_size: usize,
    /// The steps, in this order, with their reasons.
    pub steps: Vec<(Step, String)>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) described: Described,
}

impl Part {
    pub(super) fn range(&self) -> PageRange {
        PageRange { start: self.start, end: self.start + self.len }
    }

    pub(super) fn does(&self, step: Step) -> bool {
        self.steps.iter().any(|(s, _)| *s == step)
    }

    /// Returns whether a touch must not be used: without madvise, nothing else refuses a touch of a
    /// device.
    pub(super) fn must_not_be_touched(&self) -> bool {
        matches!(self.backing, Backing::Special | Backing::Secret)
            && (self.does(Step::TouchRead) || self.does(Step::TouchWrite))
    }

    /// Returns the access after which no memory is left to be taken later. Reading is enough where
    /// a file holds the bytes, and writing to a private mapping would copy them; elsewhere it would
    /// only map the zero page.
    pub(crate) fn access_that_keeps(&self) -> Access {
        match self.backing {
            Backing::File(_) | Backing::Secret | Backing::Special => Access::Read,
            _ if self.backing.shmem() && !self.shared => Access::Read,
            _ if self.described.mapping.writable => Access::Write,
            _ => Access::Read,
        }
    }

    /// Returns an address's offset in its file.
    pub(super) fn offset_of(&self, address: usize) -> u64 {
        self.described.mapping.offset + (address - self.described.mapping.start) as u64
    }

    /// Returns the largest size of a piece.
    pub(super) fn largest_piece(&self) -> usize {
        match self.backing {
            Backing::File(_) if self.does(Step::PopulateRead) => LARGEST_OF_FILE,
            _ => LARGEST_PIECE,
        }
    }

    /// Returns the smallest piece that is worth a call.
    pub(super) fn least_piece(&self) -> usize {
        match self.backing {
            // A cold file: so small that a slow disk does not delay a cancel.
            Backing::File(_) => (128 << 10).max(page_size()),
            _ => self.page_size.max(HUGE_PAGE),
        }
    }
}

/// The planned work.
///
/// ```
/// use tenure::populate::{Access, Populate};
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// let plan = Populate::new(memory.as_ptr(), memory.len(), Access::Write).plan()?;
/// println!("{} threads, because {}", plan.threads, plan.why_threads);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Plan {
    /// First address of the range.
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
    /// The access for which its pages are made ready.
    pub access: Access,
    /// How many threads will work.
    pub threads: usize,
    /// The reason for that number.
    pub why_threads: String,
    /// The mappings, in order of address. A hole between them will be an error. Empty if `/proc`
    /// cannot be read: then pages are populated, and nothing else is done.
    pub parts: Vec<Part>,
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) file: Option<(Arc<OwnedFd>, Facts)>,
    /// Whether the caller has explicitly asked for allocation: then a failure to allocate is an
    /// error.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) allocate_asked: bool,
    /// Why the mappings could not be looked up. Then there are no parts.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) unknown: Option<Errno>,
}

impl Plan {
    pub(crate) fn range(&self) -> PageRange {
        PageRange { start: self.start, end: self.start + self.len }
    }

    /// Returns the file that the caller passed, if it is the one behind the part.
    pub(super) fn file_of(&self, part: &Part) -> Option<&(Arc<OwnedFd>, Facts)> {
        self.file.as_ref().filter(|(_, facts)| facts.inode == part.described.mapping.inode)
    }

    /// The part that holds the address.
    pub(super) fn part_at(&self, address: usize) -> Option<&Part> {
        let after = self.parts.partition_point(|part| part.start <= address);
        self.parts[..after].last().filter(|part| address < part.start + part.len)
    }

    /// Returns the end of the part, or the hole, that holds the address.
    pub(super) fn boundary_after(&self, address: usize) -> usize {
        match self.part_at(address) {
            Some(part) => part.start + part.len,
            None => {
                let after = self.parts.partition_point(|part| part.start <= address);
                self.parts.get(after).map_or(self.start + self.len, |next| next.start)
            }
        }
    }
}

/// Makes the plan as [`make`] does, with the names that only readers need.
pub(super) fn show(asked: &Populate, range: PageRange) -> Result<Plan> {
    let mut plan = make(asked, range)?;
    for part in &mut plan.parts {
        if let Backing::File(kind) = &mut part.backing {
            if let Some((found, _)) = mounts::file_system(part.described.mapping.device) {
                *kind = found;
            }
        }
    }
    Ok(plan)
}

/// Looks at the mappings and decides the steps.
pub(super) fn make(asked: &Populate, range: PageRange) -> Result<Plan> {
    let by_madvise = os_populate::by_madvise(asked.access == Access::Write);
    let (found, unknown) = match maps::describe(range) {
        Ok(found) => (found, None),
        // Without /proc the kernel's own checks must suffice; a touch has none.
        Err(errno) if by_madvise => (Vec::new(), Some(errno)),
        Err(errno) => return Err(not_looked_up("populate", range, errno)),
    };
    let file = match &asked.file {
        None => None,
        Some(fd) => Some((
            fd.clone(),
            files::facts(fd.as_fd())
                .map_err(|errno| Error::system("Populate::plan", "fstat of its file", errno))?,
        )),
    };
    // Worth the 20 µs if the populate takes milliseconds even with huge pages.
    let fresh = range.len() >= 256 << 20;
    let mut rest = range;
    let mut parts = Vec::new();
    for described in found {
        // Other threads may split and join mappings between two looks.
        if described.mapping.end > rest.start {
            let part = part(asked, rest, described, file.as_ref().map(|(_, f)| f), fresh);
            rest.start = part.start + part.len;
            parts.push(part);
        }
    }
    if !by_madvise {
        smaps::each_entry(range, |entry| {
            if entry.has("io") || entry.has("pf") {
                let device = parts.iter_mut().filter(|part| {
                    entry.mapping.start < part.start + part.len && part.start < entry.mapping.end
                });
                device.for_each(|part| part.backing = Backing::Special);
            }
        })
        .map_err(|errno| Error::system("Populate::plan", "reading /proc/self/smaps", errno))?;
    }
    let (threads, why_threads) = threads::useful(asked.threads, range.len());
    Ok(Plan {
        start: range.start,
        len: range.len(),
        access: asked.access,
        threads,
        why_threads,
        parts,
        file,
        allocate_asked: asked.allocate == Some(true),
        unknown,
    })
}

pub(crate) fn not_looked_up(call: &'static str, range: PageRange, errno: Errno) -> Error {
    let what = "looking up the mappings in /proc/self/maps";
    Error::system(call, what, errno).on(range.start, range.len())
}

fn part(
    asked: &Populate,
    range: PageRange,
    described: Described,
    file: Option<&Facts>,
    fresh: bool,
) -> Part {
    let mapping = described.mapping;
    let (start, end) = (mapping.start.max(range.start), mapping.end.min(range.end));
    let mut part = Part {
        start,
        len: end - start,
        backing: Backing::of(&described),
        shared: mapping.shared,
        page_size: described.page_size,
        steps: Vec::new(),
        described,
    };
    if let Some(why) = huge_advice(asked, &part, fresh) {
        part.steps.push((Step::AdviseHugePages, why.into()));
    }
    if let Some(why) = file.and_then(|facts| allocation(asked, &part, facts)) {
        part.steps.push((Step::Allocate, why.into()));
    }
    part.steps.push(populating(asked.access, &part));
    if asked.access == Access::Read && matches!(part.backing, Backing::File(_)) {
        let why = "only if the disk was read: the first use of such a page is slow on a virtual \
                   machine, where its host must map it";
        part.steps.push((Step::UseOnce, why.into()));
    }
    part
}

fn huge_advice(asked: &Populate, part: &Part, fresh: bool) -> Option<&'static str> {
    if asked.huge_pages == HugePages::Leave || part.range().huge_part().is_none() {
        return None;
    }
    match part.backing {
        Backing::Anonymous => (asked.access == Access::Write
            && thp::anonymous(fresh) == Setting::Advised)
            .then_some("the kernel gives huge pages if they are advised before the first touch"),
        Backing::Memfd | Backing::SharedAnonymous => (thp::shared(fresh) == Setting::Advised)
            .then_some("shared memory has huge pages if they are advised first"),
        // A tmpfs has a setting of its own.
        Backing::Tmpfs => mounts::file_system(part.described.mapping.device)
            .is_some_and(|(_, options)| options.split(',').any(|o| o == "huge=advise"))
            .then_some("this tmpfs has huge pages if they are advised first"),
        // 5 GiB cold: 3.4 s; without it 5.3 s, and 18 s on a disk with 128 KiB of readahead.
        Backing::File(_) => (asked.access == Access::Read).then_some(
            "the kernel reads a cold file by the huge page, whatever its disk's readahead",
        ),
        _ => None,
    }
}

fn allocation(asked: &Populate, part: &Part, facts: &Facts) -> Option<&'static str> {
    if !part.shared || part.described.mapping.inode != facts.inode {
        return None;
    }
    let default = asked.access == Access::Write && !part.backing.shmem();
    if !asked.allocate.unwrap_or(default) {
        return None;
    }
    match part.backing {
        Backing::HugeTlb => Some("an empty pool then fails with ENOSPC before a page is mapped"),
        Backing::File(_) if facts.allocated >= facts.size => None,
        Backing::File(_) => Some("the file has holes: a full disk then fails with ENOSPC"),
        Backing::Tmpfs | Backing::Memfd => Some("requested: a full tmpfs then fails with ENOSPC"),
        _ => None,
    }
}

fn populating(access: Access, part: &Part) -> (Step, String) {
    let write = access == Access::Write;
    if !os_populate::by_madvise(write) {
        let step = if write { Step::TouchWrite } else { Step::TouchRead };
        return (step, "MADV_POPULATE is missing (before 5.14) or refused".into());
    }
    let why = match (&part.backing, write, part.shared) {
        (Backing::Anonymous, true, _) => "takes the memory in one pass",
        (Backing::Anonymous, false, _) => "maps the zero page; takes no memory",
        (Backing::File(_), true, true) => "every page becomes dirty, and is written back later",
        (Backing::File(_), true, false) => "makes a private copy of every page",
        (Backing::File(_), false, _) => "maps the page cache; nothing becomes dirty",
        (Backing::HugeTlb, ..) => "takes huge pages from the pool",
        (Backing::Secret | Backing::Special, ..) => "the kernel will refuse this mapping",
        (_, true, true) => "takes the memory and makes it writable in one pass",
        (_, true, false) => "makes a private copy of every page",
        (_, false, _) => "takes the memory for holes, and maps it",
    };
    (if write { Step::PopulateWrite } else { Step::PopulateRead }, why.into())
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.access == Access::Write { "writing" } else { "reading" };
        writeln!(
            f,
            "populate [{:#x}, {:#x}), {} bytes, for {what}: {} thread{} ({})",
            self.start,
            self.start + self.len,
            self.len,
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.why_threads
        )?;
        let mut at = self.start;
        for part in &self.parts {
            if part.start > at {
                writeln!(f, "  [{at:#x}, {:#x}) not mapped: an error", part.start)?;
            }
            at = part.start + part.len;
            writeln!(
                f,
                "  [{:#x}, {at:#x}) {}, {}, pages of {} KiB{}{}",
                part.start,
                part.backing,
                if part.shared { "shared" } else { "private" },
                part.page_size >> 10,
                if part.described.name.is_empty() { "" } else { ", " },
                part.described.name,
            )?;
            for (step, why) in &part.steps {
                writeln!(f, "    {step}: {why}")?;
            }
        }
        if let Some(errno) = self.unknown {
            return writeln!(f, "  mappings unknown: /proc/self/maps cannot be read: {errno}");
        }
        if at < self.start + self.len {
            writeln!(f, "  [{at:#x}, {:#x}) not mapped: an error", self.start + self.len)?;
        }
        Ok(())
    }
}
