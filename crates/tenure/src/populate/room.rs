//! Finds whether a populate would fit, before it runs: without room the kernel may react with its
//! OOM killer.

use super::backing::Backing;
use super::plan::{self, Part, Plan, Step};
use super::{Access, Populate};
use crate::error::{Error, ErrorKind, Result};
use crate::os::files;
use crate::os::hugetlb;
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::smaps;
use crate::os::{memory_group, room_now};
use crate::range::PageRange;
use crate::text::{text, Text};
use rustix::fd::AsFd;
use std::fmt;

/// The resource that is the bound.
///
/// ```
/// use tenure::populate::{Access, Limiting, Populate};
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// match Populate::new(memory.as_ptr(), memory.len(), Access::Write).room()?.limiting {
///     Limiting::Machine => println!("the machine's memory is the bound"),
///     Limiting::Cgroup(path) => println!("the memory cgroup {path} is the bound"),
///     other => println!("{other:?} is the bound"),
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Limiting {
    /// The machine's memory, as `MemAvailable` has it; swap does not count.
    Machine,
    /// A memory cgroup of the process; its directory.
    Cgroup(String),
    /// The file system of a file: a tmpfs with a size limit, or a disk.
    FileSystem(String),
    /// The pool of huge pages of this many bytes.
    HugePages(usize),
}

/// The need of a populate of the scarcest resource, and the amount that is available.
///
/// ```
/// use tenure::populate::{Access, Populate};
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// let room = Populate::new(memory.as_ptr(), memory.len(), Access::Write).room()?;
/// println!("{room}"); // … bytes are needed, and the machine has … available
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Room {
    /// Bytes that the populate would take, at most.
    pub needed: u64,
    /// Bytes that are available.
    pub available: u64,
    /// The resource.
    pub limiting: Limiting,
}

impl Room {
    /// Returns whether the populate fits, as far as that is known beforehand.
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let huge = tenure::Mapping::anonymous(64 << 40)?; // 64 TiB of addresses
    /// assert!(!Populate::new(huge.as_ptr(), huge.len(), Access::Write).room()?.fits());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn fits(&self) -> bool {
        self.needed <= self.available
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes are needed, and ", self.needed)?;
        match &self.limiting {
            Limiting::Machine => write!(f, "the machine has {} available", self.available),
            Limiting::Cgroup(path) => {
                write!(f, "the memory cgroup {path} has room for {}", self.available)
            }
            Limiting::FileSystem(name) => {
                write!(f, "the file system of {name} has {} free", self.available)
            }
            Limiting::HugePages(size) => {
                write!(f, "the pool of {} KiB huge pages has {} free", size >> 10, self.available)
            }
        }
    }
}

/// Returns the resource with the least room.
pub(super) fn ask(asked: &Populate, range: PageRange) -> Result<Room> {
    let plan = plan::make(asked, range)?;
    // After setuid the kernel lets a process open its page map no more.
    let pagemap = Pagemap::open().ok();
    // Where the mappings cannot be looked up, all of it counts.
    let mut memory = if plan.unknown.is_some() { range.len() as u64 } else { 0 };
    let mut bounds = Vec::new();
    for part in &plan.parts {
        let missing = missing(asked.access, part, pagemap.as_ref());
        if part.backing == Backing::HugeTlb {
            let needed = missing.next_multiple_of(part.page_size as u64);
            if let Some(free) = hugetlb::free_for(part.page_size, reserved(part)) {
                let limiting = Limiting::HugePages(part.page_size);
                bounds.push(Room { needed, available: free, limiting });
            }
            continue;
        }
        memory += missing;
        let name = &part.described.name;
        if let Some(room) = file_system_room(part, &plan, missing) {
            let limiting = Limiting::FileSystem(name.clone());
            bounds.push(Room { needed: missing, available: room, limiting });
        }
    }
    // A page table takes a page for each 512 pages.
    memory += memory / 512;
    let group = memory_group::own_group();
    let machine = room_now::room(None).free;
    let with_group = room_now::room(group.as_ref()).free;
    bounds.push(Room { needed: memory, available: machine, limiting: Limiting::Machine });
    if let Some(group) = group.filter(|_| with_group < machine) {
        let limiting = Limiting::Cgroup(group.path.display().to_string());
        bounds.push(Room { needed: memory, available: with_group, limiting });
    }
    let spare = |room: &Room| i128::from(room.available) - i128::from(room.needed);
    Ok(bounds.into_iter().min_by_key(spare).expect("the machine is always asked"))
}

/// Returns an upper bound of the bytes that populating the part will take: all of it where the page map
/// cannot be read.
fn missing(access: Access, part: &Part, pagemap: Option<&Pagemap>) -> u64 {
    let whole = part.len as u64;
    let count = |pages| pagemap?.count(part.range(), pages).ok();
    match (&part.backing, access) {
        (Backing::Anonymous, Access::Read) => 0,
        (Backing::File(_), Access::Read) => 0, // page cache, which the kernel can drop
        (Backing::File(_), Access::Write) if part.shared => 0,
        // The zero page is no memory yet. A file's page in a private mapping counts as present,
        // although a copy of it will be made. So all of those count.
        (Backing::Anonymous, Access::Write) => whole - count(Pages::Data).unwrap_or(0) as u64,
        (_, Access::Write) if !part.shared => whole,
        _ => count(Pages::Missing).map_or(whole, |bytes| bytes as u64),
    }
}

fn file_system_room(part: &Part, plan: &Plan, missing: u64) -> Option<u64> {
    if !part.shared || missing == 0 && !part.does(Step::Allocate) {
        return None;
    }
    let mut entry = None;
    let page = PageRange::new(part.start, part.start + crate::os::page_size());
    smaps::each_entry(page, |found| entry = Some(found)).ok()?;
    files::free_behind(plan.file_of(part).map(|(fd, _)| fd.as_fd()), &entry?)
}

/// Returns whether huge pages were reserved for the part when it was mapped.
fn reserved(part: &Part) -> bool {
    let mut reserved = false;
    let page = PageRange { start: part.start, end: part.start + part.page_size };
    let _ = smaps::each_entry(page, |found| reserved = !found.has("nr"));
    reserved
}

/// Refuses a populate that does not fit.
pub(super) fn insist(call: &'static str, asked: &Populate, range: PageRange) -> Result<()> {
    let room = ask(asked, range)?;
    if room.fits() {
        return Ok(());
    }
    let (kind, remedy) = match room.limiting {
        Limiting::Machine | Limiting::Cgroup(_) => {
            (ErrorKind::OutOfMemory, "populate less, free memory, or raise the limit")
        }
        Limiting::FileSystem(_) => (ErrorKind::NoSpace, "populate less, or free room on it"),
        Limiting::HugePages(_) => (ErrorKind::NoSpace, "populate less, or raise vm.nr_hugepages"),
    };
    Err(Error::new(kind, call, text!("it would not fit: {room}"), remedy)
        .on(range.start, range.len()))
}

/// Returns the cause of an `ENOMEM` for a mapped page.
pub(super) fn no_memory() -> (ErrorKind, Text, Text) {
    let group = memory_group::own_group();
    let machine = room_now::room(None).free;
    let with_group = room_now::room(group.as_ref()).free;
    let why = match group {
        Some(group) if with_group < machine => text!(
            "the memory cgroup {} has room for {with_group} bytes more, and the kernel found none to reclaim",
            group.path.display()
        ),
        _ => text!("the kernel found no memory ({machine} bytes are available, by its own count)"),
    };
    let remedy = "populate less, free memory, or raise the cgroup's limit";
    (ErrorKind::OutOfMemory, why, remedy.into())
}
