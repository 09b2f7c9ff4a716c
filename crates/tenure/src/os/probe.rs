//! Finds out which features this kernel and this user's rights allow. Each call is tried once on a
//! scratch page, and its effect is checked: a version number would not show a refusal by a seccomp
//! profile.

use super::release;
use super::trials::*;
use crate::os::once::RaceOnce;
use rustix::io::Errno;

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
            consequence: "tenure remembers one word of each page, and finds purges by it at an unmark, \
                          exactly. A touch without an unmark reads zeros. Each 4 KiB page costs 10 \
                          bytes. The program must not write to marked memory",
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
