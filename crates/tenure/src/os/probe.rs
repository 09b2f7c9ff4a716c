//! Finds out which features this kernel and this user's rights allow. Each call is tried once on a
//! scratch page, and its effect is checked: a version number would not show a refusal by a seccomp
//! profile.

use super::advise;
use super::maps;
use super::memory_group;
use super::mincore::in_memory;
use super::pagemap::{self, Pagemap, Pages};
use super::populate;
use super::pressure::PressureWatch;
use super::pressure_told::Told;
use super::release;
use super::reserve::Scratch;
use super::touch;
use super::uffd;
use super::{page_size, HUGE_PAGE};
use crate::os::once::RaceOnce;
use crate::range::PageRange;
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};
use std::sync::atomic::AtomicU32;

/// Whether something works.
///
/// ```
/// use tenure::{capabilities, Status};
/// for finding in capabilities().findings() {
///     if finding.status == Status::Missing {
///         println!("{}: {}; {}", finding.name, finding.consequence, finding.remedy);
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Status {
    /// The feature works.
    Works,
    /// It does not work, and tenure uses a substitute, at the price that the finding names.
    Degraded,
    /// It does not work, and there is no substitute.
    Missing,
}

/// One feature that was tried.
///
/// ```
/// for finding in tenure::capabilities().findings() {
///     println!("{}: {:?}", finding.what, finding.status);
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// The feature's name, stable across versions.
    pub name: &'static str,
    /// Whether it works.
    pub status: Status,
    /// The error that the attempt gave, if it gave one.
    pub errno: Option<i32>,
    /// A description of the feature.
    pub what: &'static str,
    /// The effect of its absence on the program.
    pub consequence: &'static str,
    /// The user's remedy.
    pub remedy: &'static str,
}

/// All findings.
///
/// ```
/// println!("{} things were tried", tenure::capabilities().findings().len());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Capabilities {
    findings: Vec<Finding>,
}

/// Tries every feature once per process. Later calls return the findings of the first one.
///
/// ```
/// if !tenure::capabilities().works("userfaultfd") {
///     println!("a touch of a purged page reads zeros: pin or unmark before every use");
/// }
/// ```
///
/// # Cost
/// The first call: some ten milliseconds. Later calls: one load.
pub fn capabilities() -> &'static Capabilities {
    /// For the whole process: it has one kernel and one set of rights.
    static CAPABILITIES: RaceOnce<Capabilities> = RaceOnce::new();
    CAPABILITIES.get_or_init(probe)
}

impl Capabilities {
    /// Returns the findings, most important first.
    ///
    /// ```
    /// assert!(!tenure::capabilities().findings().is_empty());
    /// ```
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns whether the feature of that name works.
    ///
    /// ```
    /// let name = tenure::capabilities().findings()[0].name;
    /// println!("{name}: {}", tenure::capabilities().works(name));
    /// ```
    pub fn works(&self, name: &str) -> bool {
        self.findings.iter().any(|f| f.name == name && f.status == Status::Works)
    }
}

/// The cause of a failed trial. `None`: the call succeeded without its effect.
pub(crate) type Cause = Option<Errno>;

/// Returns whether the kernel can free memory lazily. Without that nothing is volatile.
///
/// # Errors
/// There is no page for the trial.
pub(crate) fn lazy_free() -> Result<bool, Errno> {
    match free_lazily(Scratch::new(page_size(), false)?) {
        Err(Some(errno @ (Errno::NOMEM | Errno::AGAIN))) => Err(errno),
        tried => Ok(tried.is_ok()),
    }
}

/// Returns whether userfaultfd can detect purges, and one call can take pages back.
pub(crate) fn watching() -> Result<(), Cause> {
    try_userfaultfd()?;
    try_populate_write()
}

struct Texts {
    name: &'static str,
    what: &'static str,
    consequence: &'static str,
    /// The remedy if the kernel has the feature and refuses it.
    remedy: &'static str,
    /// The first kernel version with the feature, and the remedy on an older one. `None`: every
    /// kernel on which tenure runs has it.
    newer: Option<((u32, u32), &'static str)>,
    absent: Status,
}

impl Texts {
    /// Returns the remedy for this cause. A newer kernel is one only if this one is older.
    fn remedy(&self, cause: Cause, kernel: (u32, u32)) -> &'static str {
        let refused = matches!(cause, Some(Errno::PERM | Errno::ACCESS));
        match self.newer {
            Some((since, newer)) if kernel < since && !refused => newer,
            _ => self.remedy,
        }
    }
}

fn probe() -> Capabilities {
    let kernel = release::kernel();
    let findings = TEXTS
        .iter()
        .map(|(texts, attempt)| {
            let result = attempt();
            Finding {
                name: texts.name,
                status: if result.is_ok() { Status::Works } else { texts.absent },
                errno: result.err().flatten().map(Errno::raw_os_error),
                what: texts.what,
                consequence: texts.consequence,
                remedy: texts.remedy(result.err().flatten(), kernel),
            }
        })
        .collect();
    Capabilities { findings }
}

type Attempt = fn() -> Result<(), Cause>;

const TEXTS: &[(Texts, Attempt)] = &[
    (
        Texts {
            name: "madv_free",
            what: "the kernel discards marked pages when memory runs short (MADV_FREE, 4.5+)",
            consequence: "no volatile memory: marks and caches return errors",
            remedy: "allow madvise in the seccomp profile",
            newer: None,
            absent: Status::Missing,
        },
        || free_lazily(scratch_page()?),
    ),
    (
        Texts {
            name: "userfaultfd",
            what: "a touch of a purged page raises SIGBUS (userfaultfd, user mode only, 5.11+)",
            consequence: "tenure finds purges by one remembered word a page: exactly at unmark, but a \
                          touch without unmark reads zeros, 4 KiB pages cost 10 bytes each, and \
                          the program must not write to marked memory",
            remedy: "allow userfaultfd in the seccomp profile, or give the process /dev/userfaultfd (6.1+)",
            newer: Some(((5, 11), "use Linux 5.11 or later")),
            absent: Status::Degraded,
        },
        try_userfaultfd,
    ),
    (
        Texts {
            name: "populate_write",
            what: "one call takes pages back (MADV_POPULATE_WRITE, 5.14+)",
            consequence: "tenure finds purges by one remembered word a page, as without userfaultfd",
            remedy: "allow madvise with advice 23 in the seccomp profile",
            newer: Some(((5, 14), "use Linux 5.14 or later")),
            absent: Status::Degraded,
        },
        try_populate_write,
    ),
    (
        Texts {
            name: "populate_read",
            what: "one call makes untouched pages readable (MADV_POPULATE_READ, 5.14+)",
            consequence: "process_vm_readv does it, about 100 ns an untouched page slower",
            remedy: "allow madvise with advice 22 in the seccomp profile",
            newer: Some(((5, 14), "use Linux 5.14 or later")),
            absent: Status::Degraded,
        },
        try_populate_read,
    ),
    (
        Texts {
            name: "touch_write",
            what:
                "the kernel touches pages for writing (FUTEX_WAKE_OP), and returns an error where a \
                   store would raise a signal",
            consequence: "a populate for writing fails if populate_write does not work either",
            remedy: "allow futex with FUTEX_WAKE_OP in the seccomp profile",
            newer: None,
            absent: Status::Degraded,
        },
        try_touch_write,
    ),
    (
        Texts {
            name: "touch_read",
            what: "the kernel touches pages for reading (process_vm_readv on the process itself)",
            consequence: "a populate for reading fails if populate_read does not work either, and gets of \
                          a cache are slower while memory is short",
            remedy: "allow process_vm_readv in the seccomp profile",
            newer: None,
            absent: Status::Degraded,
        },
        try_touch_read,
    ),
    (
        Texts {
            name: "pageout",
            what: "purges can be forced, for tests (MADV_PAGEOUT, 5.4+)",
            consequence: "purge_now and TENURE_PURGE=always discard nothing; real pressure does",
            remedy: "allow madvise with advice 21 in the seccomp profile",
            newer: Some(((5, 4), "use Linux 5.4 or later")),
            absent: Status::Degraded,
        },
        try_page_out,
    ),
    (
        Texts {
            name: "pagemap",
            what: "/proc/self/pagemap shows which pages are gone",
            consequence: "tenure looks page by page; untouched pages cost memory when unmarked",
            remedy: "mount /proc, and keep the process dumpable",
            newer: None,
            absent: Status::Degraded,
        },
        try_pagemap,
    ),
    (
        Texts {
            name: "pagemap_scan",
            what: "one call finds which pages are gone (PAGEMAP_SCAN, 6.7+)",
            consequence: "tenure reads /proc/self/pagemap, 8 bytes a page; untouched pages of an \
                          offered range cost memory when it is unmarked",
            remedy: "allow ioctl on /proc/self/pagemap (PAGEMAP_SCAN); it needs /proc, and a dumpable process",
            newer: Some(((6, 7), "use Linux 6.7 or later")),
            absent: Status::Degraded,
        },
        try_pagemap_scan,
    ),
    (
        Texts {
            name: "maps",
            what: "/proc/self/maps says what kind of memory a range is",
            consequence: "a mark of the program's own memory returns an error; objects, caches and the \
                          pool work",
            remedy: "mount /proc",
            newer: None,
            absent: Status::Missing,
        },
        try_maps,
    ),
    (
        Texts {
            name: "procmap_query",
            what:
                "the first mark of a range looks up its mappings singly (PROCMAP_QUERY, 6.11+)",
            consequence: "tenure reads all of /proc/self/maps instead (where it can), about 1 µs for each mapping there is",
            remedy: "allow ioctl on /proc/self/maps (PROCMAP_QUERY); it needs /proc",
            newer: Some(((6, 11), "use Linux 6.11 or later")),
            absent: Status::Degraded,
        },
        try_procmap_query,
    ),
    (
        Texts {
            name: "huge_pages",
            what: "2 MiB pages for large ranges (transparent huge pages, madvise or always)",
            consequence: "offering and taking back costs 300 ns for each 4 KiB page instead of \
                          2 µs for each 2 MiB",
            remedy: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)",
            newer: None,
            absent: Status::Degraded,
        },
        try_huge_pages,
    ),
    (
        Texts {
            name: "uffd_poison",
            what: "a touch of a page whose refill failed raises SIGBUS (UFFDIO_POISON, 6.6+)",
            consequence: "the thread that touches it gets a SIGBUS without an address",
            remedy: "allow userfaultfd in the seccomp profile, or give the process /dev/userfaultfd (6.1+)",
            newer: Some(((6, 6), "use Linux 6.6 or later")),
            absent: Status::Degraded,
        },
        try_poison,
    ),
    (
        Texts {
            name: "private_descriptors",
            what: "tenure's descriptors survive a program that closes all (close_range, 5.9+)",
            consequence:
                "a program that closes descriptors it did not open loses SIGBUS on purged \
                          pages; ranges offered by then count as purged; a touch of a purged page \
                          of an object with a refill function raises SIGBUS (pins refill it)",
            remedy: "allow close_range, or let such programs close only their own descriptors",
            newer: Some(((5, 9), "use Linux 5.9 or later")),
            absent: Status::Degraded,
        },
        try_private_table,
    ),
    (
        Texts {
            name: "pressure",
            what: "the kernel reports when memory runs short (PSI or memory cgroup events)",
            consequence: "the worker offers marked memory by age alone, at most 1 s later",
            remedy: "boot with psi=1; make the cgroup's memory.pressure writable",
            newer: None,
            absent: Status::Degraded,
        },
        try_pressure,
    ),
    (
        Texts {
            name: "move_away",
            what: "a mapping leaves its addresses at once, and is torn down later (mremap)",
            consequence: "retire unmaps in slices: other threads do not wait, the caller does",
            remedy: "allow mremap in the seccomp profile",
            newer: None,
            absent: Status::Degraded,
        },
        try_move_away,
    ),
    (
        Texts {
            name: "drop_locked",
            what:
                "locked pages are dropped without the address space's lock (MADV_DONTNEED_LOCKED, \
                   5.18+)",
            consequence:
                "retired locked memory is unmapped slice by slice: other threads wait for one \
                          slice at a time",
            remedy: "allow madvise with advice 24 in the seccomp profile",
            newer: Some(((5, 18), "use Linux 5.18 or later")),
            absent: Status::Degraded,
        },
        try_drop_locked,
    ),
];

fn scratch_page() -> Result<Scratch, Option<Errno>> {
    Scratch::new(page_size(), false).map_err(Some)
}

/// Makes a scratch page with some bytes written to it.
fn dirty_page() -> Result<Scratch, Option<Errno>> {
    let mut page = scratch_page()?;
    page.bytes()[0] = 1;
    Ok(page)
}

fn try_move_away() -> Result<(), Cause> {
    use super::detach::{self, Hidden};
    let mut page = dirty_page()?;
    page.bytes()[1] = 7;
    let range = page.range();
    let mut hidden = Hidden::reserve_like(range).map_err(Some)?;
    // SAFETY: a page of this function's own, to which nothing refers from here on.
    let there = unsafe { hidden.take(range) };
    if there.is_ok() {
        // Another thread may use its addresses by now.
        std::mem::forget(page);
    }
    let there = there.map_err(Some)?;
    // SAFETY: the page at its new address, which only this function knows.
    unsafe {
        let same = ((there.start + 1) as *const u8).read() == 7;
        detach::unmap(there.start, there.len()).map_err(Some)?;
        ensure(same)
    }
}

fn try_drop_locked() -> Result<(), Cause> {
    let page = scratch_page()?;
    match advise::knows_locked_drop(page.range()) {
        true => Ok(()),
        false => Err(Some(Errno::INVAL)),
    }
}

fn ensure(effect: bool) -> Result<(), Cause> {
    effect.then_some(()).ok_or(None)
}

fn free_lazily(mut page: Scratch) -> Result<(), Cause> {
    page.bytes()[0] = 1;
    // SAFETY: a scratch page of this function's own, whose contents are not needed.
    unsafe { advise::free(page.range())? };
    // Its contents may be gone by now, but no other bytes may be there.
    ensure(page.bytes()[0] <= 1 && page.bytes()[1] == 0)
}

fn try_userfaultfd() -> Result<(), Cause> {
    let fd = uffd::open(uffd::feature::SIGBUS)?;
    let watcher = uffd::Watcher::of_this_process(fd.number());
    let page = scratch_page()?;
    uffd::register(watcher, page.range())?;
    // The kernel's own touch of a missing page must fail as a program's does.
    match read_by_kernel(page.range()) {
        Err(Errno::FAULT) => {}
        Err(errno) => return Err(Some(errno)),
        Ok(()) => return Err(None),
    }
    uffd::unregister(watcher, page.range())?;
    read_by_kernel(page.range()).map_err(Some)
}

/// Has the kernel read the page's first bytes. Returns `EFAULT` where a load would raise a signal.
///
/// By a call without a descriptor: the program may close any number at any time, and open a file of
/// its own there.
fn read_by_kernel(page: PageRange) -> Result<(), Errno> {
    // SAFETY: the range is mapped and lives through the call; only the kernel reads the word.
    let word = unsafe { &*(page.start as *const AtomicU32) };
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match futex::wait(word, Flags::PRIVATE, u32::MAX, Some(&at_once)) {
        // The kernel has compared the word: a new page has zeros.
        Err(Errno::AGAIN) => Ok(()),
        other => other,
    }
}

fn try_populate_write() -> Result<(), Cause> {
    let page = scratch_page()?;
    advise::populate_write(page.range())?;
    let Ok(pagemap) = Pagemap::open() else { return Ok(()) };
    ensure(pagemap.count(page.range(), Pages::Missing) == Ok(0))
}

fn try_populate_read() -> Result<(), Cause> {
    let page = scratch_page()?;
    advise::populate_read(page.range())?;
    let Ok(pagemap) = Pagemap::open() else { return Ok(()) };
    ensure(pagemap.count(page.range(), Pages::Missing) == Ok(0))
}

fn try_touch_write() -> Result<(), Cause> {
    let page = scratch_page()?;
    touch::write_each_page(page.range()).map_err(|stop| Some(stop.errno))?;
    let Ok(pagemap) = Pagemap::open() else { return Ok(()) };
    ensure(pagemap.count(page.range(), Pages::Data) == Ok(page_size()))
}

fn try_touch_read() -> Result<(), Cause> {
    let page = scratch_page()?;
    touch::read_each_page(page.range()).map_err(|stop| Some(stop.errno))?;
    let Ok(pagemap) = Pagemap::open() else { return Ok(()) };
    ensure(pagemap.count(page.range(), Pages::Missing) == Ok(0))
}

fn try_page_out() -> Result<(), Cause> {
    let page = dirty_page()?;
    // SAFETY: a scratch page of this function's own, whose contents are not needed.
    unsafe { advise::free(page.range())? };
    for _ in 0..8 {
        advise::page_out(page.range())?;
        if in_memory::<1>(page.range()) == [0] {
            return Ok(());
        }
    }
    Err(None)
}

fn try_pagemap() -> Result<(), Cause> {
    let page = dirty_page()?;
    let pagemap = Pagemap::open().map_err(Some)?;
    ensure(pagemap.count(page.range(), Pages::Data) == Ok(page_size()))?;
    // SAFETY: a scratch page of this function's own, whose contents are not needed.
    unsafe { advise::drop_pages(page.range())? };
    ensure(pagemap.count(page.range(), Pages::Missing) == Ok(page_size()))
}

fn try_pagemap_scan() -> Result<(), Cause> {
    let page = scratch_page()?;
    let pagemap = Pagemap::open().map_err(Some)?;
    populate::for_reading(page.range())?;
    // The scan must distinguish the zero page from data.
    let data = pagemap.count(page.range(), Pages::Data).map_err(Some)?;
    ensure(pagemap::scan_works() && data == 0)
}

fn try_maps() -> Result<(), Cause> {
    let page = scratch_page()?;
    let mut mapped = 0;
    maps::each_mapping(page.range(), |_| mapped += 1).map_err(Some)?;
    ensure(mapped == 1)
}

fn try_procmap_query() -> Result<(), Cause> {
    let page = dirty_page()?;
    maps::each_mapping(page.range(), |_| ()).map_err(Some)?;
    ensure(maps::query_works())
}

fn try_huge_pages() -> Result<(), Cause> {
    let mut page = Scratch::new(HUGE_PAGE, true).map_err(Some)?;
    page.bytes()[0] = 1;
    let pagemap = Pagemap::open().map_err(Some)?;
    if pagemap.count(page.range(), Pages::Huge) == Ok(HUGE_PAGE) {
        return Ok(());
    }
    // Without PAGEMAP_SCAN: one touch has made all of it resident.
    ensure(pagemap.count(page.range(), Pages::Data) == Ok(HUGE_PAGE))
}

fn try_poison() -> Result<(), Cause> {
    let fd = uffd::open(uffd::feature::SIGBUS)?;
    let watcher = uffd::Watcher::of_this_process(fd.number());
    let page = scratch_page()?;
    uffd::register(watcher, page.range())?;
    uffd::poison(watcher, page.range())?;
    match advise::populate_write(page.range()) {
        Err(Errno::HWPOISON) => Ok(()),
        Err(errno) => Err(Some(errno)),
        Ok(()) => Err(None),
    }
}

fn try_private_table() -> Result<(), Cause> {
    // On a thread of its own, which never gets the shared descriptor table back.
    let (sender, result) = std::sync::mpsc::channel();
    let body = move || {
        // The receiver waits below, so the send cannot fail.
        let _ = sender.send(uffd::private_descriptor_table(&mut []));
    };
    super::thread::spawn_quiet("tenure-probe", body).map_err(|_| Errno::AGAIN)?.join();
    result.recv().unwrap_or(Err(Errno::AGAIN)).map_err(Some)
}

fn try_pressure() -> Result<(), Cause> {
    ensure(
        !PressureWatch::as_told(&Told::by_environment(), memory_group::own_group().as_ref())
            .is_empty(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedy(name: &str, cause: Cause, kernel: (u32, u32)) -> &'static str {
        let texts = TEXTS.iter().find(|(texts, _)| texts.name == name).expect("it is there");
        texts.0.remedy(cause, kernel)
    }

    #[test]
    fn a_newer_kernel_is_advised_only_on_an_older_one() {
        let newer = "use Linux 6.6 or later";
        assert_eq!(remedy("uffd_poison", Some(Errno::INVAL), (6, 1)), newer);
        assert_ne!(remedy("uffd_poison", Some(Errno::PERM), (6, 1)), newer);
        assert_ne!(remedy("uffd_poison", Some(Errno::NOSYS), (6, 6)), newer);
        assert!(remedy("userfaultfd", Some(Errno::PERM), (6, 18)).contains("seccomp"));
        assert_eq!(remedy("pagemap_scan", None, (6, 6)), "use Linux 6.7 or later");
    }
}
