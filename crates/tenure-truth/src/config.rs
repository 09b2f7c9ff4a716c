//! The configurations: the operations that run at once, and their objects.

use crate::caches::{Plan, Sizes};
use crate::closures::Wild;
use crate::faults::{Fault, COPY, MAP, REGISTER, UNREGISTER};
use crate::pressure::NEED;
use tenure_measure::seccomp::{Call, Errno};

/// The frequency of each kind of operation, relative to the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weights {
    /// Ranges that one thread owns.
    pub ranges: usize,
    /// The range that all threads mark and unmark.
    pub overlap: usize,
    /// Objects that one thread owns.
    pub objects: usize,
    /// Objects that all threads use.
    pub shared: usize,
    /// Caches.
    pub caches: usize,
    /// Memory that does not belong to tenure.
    pub foreign: usize,
    /// Forks.
    pub forks: usize,
    /// Closing of descriptors.
    pub closes: usize,
    /// Blocks of the pool.
    pub pool: usize,
    /// Objects of which there are many.
    pub many: usize,
    /// A thousand threads that pin them at once.
    pub pins: usize,
}

/// One configuration.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its name.
    pub name: &'static str,
    /// A description.
    pub about: &'static str,
    /// The frequencies of the operations.
    pub weights: Weights,
    /// The number of threads.
    pub threads: usize,
    /// Purges are detected by words.
    pub words: bool,
    /// Ranges and objects of huge pages.
    pub huge: bool,
    /// Every unmark purges.
    pub purge_always: bool,
    /// Microseconds until marked memory is offered; `None`: the seed chooses.
    pub offer_after_us: Option<u64>,
    /// Some objects have refill functions.
    pub refill: bool,
    /// The behaviour of closures, as bits of [`Wild`].
    pub wild: u32,
    /// The use of caches.
    pub plan: Plan,
    /// The system calls that fail.
    pub fault: Option<Fault>,
    /// In a memory cgroup beside a competitor that needs so many bytes at most.
    pub pressure: Option<u64>,
    /// Children of threads that mark and unmark one range.
    pub crowd_forks: bool,
    /// Each operation is a process's first use of tenure.
    pub first_use: bool,
    /// The first use finds no descriptor free.
    pub no_descriptors: bool,
    /// Calls of systemd's groups `@resources` and `@privileged` kill.
    pub filter: bool,
    /// The number of the many objects.
    pub objects: usize,
}

impl Weights {
    /// Leaves a kind of operation out; `false`: there is none of that name.
    pub fn leave_out(&mut self, kind: &str) -> bool {
        let weight = match kind {
            "ranges" => &mut self.ranges,
            "overlap" => &mut self.overlap,
            "objects" => &mut self.objects,
            "shared" => &mut self.shared,
            "caches" => &mut self.caches,
            "foreign" => &mut self.foreign,
            "forks" => &mut self.forks,
            "closes" => &mut self.closes,
            "pool" => &mut self.pool,
            "many" => &mut self.many,
            "pins" => &mut self.pins,
            _ => return false,
        };
        *weight = 0;
        true
    }
}

pub(crate) const NONE: Weights = Weights {
    ranges: 0,
    overlap: 0,
    objects: 0,
    shared: 0,
    caches: 0,
    foreign: 0,
    forks: 0,
    closes: 0,
    pool: 0,
    many: 0,
    pins: 0,
};

pub(crate) const PLAN: Plan = Plan {
    sizes: Sizes::Small,
    ceiling: Some(48 << 20),
    mischief: false,
    recursion: false,
    limits: false,
};

pub(crate) const BASE: Config = Config {
    name: "",
    about: "",
    weights: NONE,
    threads: 4,
    words: false,
    huge: false,
    purge_always: false,
    offer_after_us: None,
    refill: false,
    wild: 0,
    plan: PLAN,
    fault: None,
    pressure: None,
    crowd_forks: false,
    first_use: false,
    filter: false,
    no_descriptors: false,
    objects: 0,
};

pub(crate) const ALL_WEIGHTS: Weights = Weights {
    ranges: 30,
    overlap: 20,
    objects: 20,
    shared: 10,
    caches: 30,
    foreign: 4,
    forks: 1,
    ..NONE
};
const NO_FORKS: Weights = Weights { forks: 0, ..ALL_WEIGHTS };

impl Config {
    /// Whether children are made.
    pub fn forks(&self) -> bool {
        self.weights.forks > 0 || self.wild != 0 || self.first_use || self.crowd_forks
    }
}

fn wild(kinds: &[Wild]) -> u32 {
    kinds.iter().map(|kind| kind.bit()).sum()
}

/// Volatile memory itself, without forks and failures.
fn plain() -> Vec<Config> {
    let ranges = Weights { ranges: 20, foreign: 3, ..NONE };
    let overlap = Weights { overlap: 20, foreign: 1, ..NONE };
    let objects = Weights { objects: 20, shared: 10, foreign: 1, ..NONE };
    let mix = Weights { ranges: 20, objects: 20, overlap: 10, foreign: 3, ..NONE };
    vec![
        Config { name: "ranges", about: "raw ranges, each one thread's", weights: ranges, ..BASE },
        Config {
            name: "ranges-words",
            about: "the same without userfaultfd",
            weights: ranges,
            words: true,
            ..BASE
        },
        Config {
            name: "ranges-huge",
            about: "the same in huge pages",
            weights: ranges,
            huge: true,
            ..BASE
        },
        Config {
            name: "ranges-purge",
            about: "the same, TENURE_PURGE=always",
            weights: ranges,
            purge_always: true,
            ..BASE
        },
        Config {
            name: "overlap",
            about: "threads that mark and unmark one range",
            weights: overlap,
            ..BASE
        },
        Config {
            name: "overlap-hasty",
            about: "the same, offered at once",
            weights: overlap,
            offer_after_us: Some(0),
            ..BASE
        },
        Config {
            name: "overlap-forks",
            about: "the same, with children",
            weights: overlap,
            crowd_forks: true,
            ..BASE
        },
        Config {
            name: "overlap-words",
            about: "the same without userfaultfd",
            weights: overlap,
            words: true,
            ..BASE
        },
        Config {
            name: "objects",
            about: "objects, pinned, nested, touched",
            weights: objects,
            ..BASE
        },
        Config {
            name: "objects-words",
            about: "the same without userfaultfd",
            weights: objects,
            words: true,
            ..BASE
        },
        Config {
            name: "objects-huge",
            about: "the same in huge pages",
            weights: objects,
            huge: true,
            ..BASE
        },
        Config {
            name: "refill",
            about: "objects whose refill fails, panics, calls tenure",
            weights: objects,
            refill: true,
            wild: wild(&[Wild::Tenure, Wild::Sleep]),
            ..BASE
        },
        Config {
            name: "mix",
            about: "ranges and objects that come and go",
            weights: mix,
            offer_after_us: Some(0),
            ..BASE
        },
        Config {
            name: "mix-words",
            about: "the same without userfaultfd",
            weights: mix,
            words: true,
            offer_after_us: Some(0),
            ..BASE
        },
        Config {
            name: "closures",
            about: "closures of unmark that panic, write, call tenure",
            weights: mix,
            wild: wild(&[Wild::Write, Wild::Tenure, Wild::Panic, Wild::Sleep]),
            ..BASE
        },
    ]
}

fn caches() -> Vec<Config> {
    let caches = Weights { caches: 30, foreign: 2, ..NONE };
    let large = Plan { sizes: Sizes::Large, ceiling: Some(96 << 20), ..PLAN };
    let mixed = Plan { sizes: Sizes::Mixed, ceiling: Some(64 << 20), ..PLAN };
    vec![
        Config { name: "cache", about: "values up to 20 KiB", weights: caches, ..BASE },
        Config {
            name: "cache-large",
            about: "values above 512 KiB",
            weights: caches,
            plan: large,
            ..BASE
        },
        Config {
            name: "cache-large-words",
            about: "the same without userfaultfd",
            weights: caches,
            plan: large,
            words: true,
            ..BASE
        },
        Config {
            name: "cache-mixed",
            about: "values of all sizes",
            weights: caches,
            plan: mixed,
            ..BASE
        },
        Config {
            name: "cache-purge",
            about: "the same, TENURE_PURGE=always",
            weights: caches,
            plan: mixed,
            purge_always: true,
            ..BASE
        },
        Config {
            name: "cache-limits",
            about: "values above the ceiling, many held",
            weights: caches,
            plan: Plan { limits: true, ceiling: Some(24 << 20), ..mixed },
            ..BASE
        },
        Config {
            name: "cache-keys",
            about: "keys that panic, and that call the cache",
            weights: caches,
            plan: Plan { mischief: true, ..PLAN },
            wild: wild(&[Wild::Tenure, Wild::Panic]),
            ..BASE
        },
        Config {
            name: "cache-recursion",
            about: "values made inside the making of values",
            weights: caches,
            plan: Plan { recursion: true, ..PLAN },
            ..BASE
        },
    ]
}

fn forks() -> Vec<Config> {
    let ranges =
        Weights { ranges: 20, overlap: 5, objects: 20, shared: 5, foreign: 2, forks: 2, ..NONE };
    let caches = Weights { caches: 30, ranges: 4, foreign: 2, forks: 1, ..NONE };
    let large = Plan { sizes: Sizes::Large, ceiling: Some(96 << 20), ..PLAN };
    let closure = wild(&[Wild::Fork, Wild::Signal, Wild::Tenure]);
    vec![
        Config {
            name: "forks",
            about: "forks of every kind beside ranges and objects",
            weights: ranges,
            ..BASE
        },
        Config {
            name: "forks-words",
            about: "the same without userfaultfd",
            weights: ranges,
            words: true,
            ..BASE
        },
        Config {
            name: "forks-cache",
            about: "forks beside caches of small values",
            weights: caches,
            ..BASE
        },
        Config {
            name: "forks-large",
            about: "forks beside caches of large values",
            weights: caches,
            plan: large,
            ..BASE
        },
        Config {
            name: "forks-closure",
            about: "forks inside closures",
            weights: Weights { forks: 0, ..ranges },
            refill: true,
            wild: closure,
            ..BASE
        },
        Config {
            name: "forks-first",
            about: "forks during the first use, and before it",
            threads: 2,
            first_use: true,
            ..BASE
        },
    ]
}

fn failures() -> Vec<Config> {
    let w = NO_FORKS;
    let fault = |calls: &'static [Call], errno| Some(Fault { calls, errno });
    let soon = Some(300);
    let kind = |name, about, fault| Config {
        name,
        about,
        weights: w,
        fault,
        offer_after_us: soon,
        ..BASE
    };
    let mut list = vec![
        kind(
            "fail-populate",
            "MADV_POPULATE_WRITE: ENOMEM",
            fault(&[Call::Madvise(libc::MADV_POPULATE_WRITE)], Errno::NOMEM),
        ),
        kind(
            "fail-free",
            "MADV_FREE: EINVAL",
            fault(&[Call::Madvise(libc::MADV_FREE)], Errno::INVAL),
        ),
        kind("fail-register", "UFFDIO_REGISTER: ENOMEM", fault(&[REGISTER], Errno::NOMEM)),
        kind("fail-unregister", "UFFDIO_UNREGISTER: ENOMEM", fault(&[UNREGISTER], Errno::NOMEM)),
        kind("fail-pagemap", "PAGEMAP_SCAN: ENOMEM", fault(&[Call::PagemapScan], Errno::NOMEM)),
        kind("fail-map", "mmap: ENOMEM", fault(&[MAP], Errno::NOMEM)),
        kind(
            "fail-open",
            "openat: EMFILE",
            fault(&[Call::Number(libc::SYS_openat), Call::Userfaultfd], Errno::MFILE),
        ),
        kind(
            "fail-many",
            "six kinds of calls: ENOMEM",
            fault(
                &[
                    Call::Madvise(libc::MADV_POPULATE_WRITE),
                    Call::Madvise(libc::MADV_DONTNEED),
                    REGISTER,
                    UNREGISTER,
                    COPY,
                    Call::PagemapScan,
                    MAP,
                ],
                Errno::NOMEM,
            ),
        ),
    ];
    list.extend([
        Config {
            name: "emfile",
            about: "no descriptor is free at the first use, and later there are",
            weights: w,
            no_descriptors: true,
            ..BASE
        },
        Config {
            name: "filter",
            about: "calls of @resources and @privileged kill",
            weights: w,
            filter: true,
            ..BASE
        },
        Config {
            words: true,
            ..kind(
                "fail-words",
                "the same without userfaultfd",
                fault(
                    &[
                        Call::Madvise(libc::MADV_POPULATE_WRITE),
                        Call::Madvise(libc::MADV_FREE),
                        Call::PagemapScan,
                        MAP,
                    ],
                    Errno::NOMEM,
                ),
            )
        },
        Config {
            name: "closed",
            about: "descriptors closed",
            weights: Weights { closes: 1, ..w },
            ..BASE
        },
        Config {
            weights: Weights { closes: 1, ..ALL_WEIGHTS },
            refill: true,
            ..kind(
                "closed-fail",
                "descriptors closed, forks, and pages that cannot be dropped",
                fault(&[Call::Madvise(libc::MADV_DONTNEED)], Errno::NOMEM),
            )
        },
        Config {
            name: "closed-refill",
            about: "descriptors closed in children, and objects whose refill fails",
            weights: Weights { objects: 20, shared: 20, forks: 2, closes: 2, ..NONE },
            refill: true,
            ..BASE
        },
        Config {
            name: "closed-forks",
            about: "descriptors closed, and forks",
            weights: Weights { closes: 1, ..ALL_WEIGHTS },
            refill: true,
            ..BASE
        },
    ]);
    list
}

fn together() -> Vec<Config> {
    let mixed = Plan { sizes: Sizes::Mixed, ceiling: None, ..PLAN };
    let everything = wild(&Wild::ALL);
    let pressure = Config { pressure: Some(NEED), weights: NO_FORKS, plan: mixed, ..BASE };
    vec![
        Config { name: "pressure", about: "in a memory cgroup beside a competitor", ..pressure },
        Config {
            name: "pressure-words",
            about: "the same without userfaultfd",
            words: true,
            ..pressure
        },
        Config { name: "pressure-huge", about: "the same in huge pages", huge: true, ..pressure },
        Config {
            name: "pressure-forks",
            about: "the same with forks",
            weights: ALL_WEIGHTS,
            // Memory that children share is not offered, so there is less of it.
            plan: Plan { ceiling: Some(16 << 20), ..PLAN },
            ..pressure
        },
        Config {
            name: "pressure-held",
            about: "small values held for long, in a memory cgroup",
            weights: Weights { caches: 30, ..NONE },
            plan: Plan { ceiling: None, limits: true, ..PLAN },
            // More than is left beside the held values, if they were not bounded.
            pressure: Some(160 << 20),
            ..pressure
        },
        Config {
            name: "pressure-cache",
            about: "caches without a ceiling, in a memory cgroup",
            weights: Weights { caches: 30, ..NONE },
            plan: Plan { sizes: Sizes::Large, ceiling: None, limits: true, ..PLAN },
            ..pressure
        },
        Config {
            name: "everything",
            about: "everything but failures and keys that misbehave",
            weights: ALL_WEIGHTS,
            refill: true,
            wild: everything,
            plan: Plan { sizes: Sizes::Mixed, ..PLAN },
            ..BASE
        },
        Config {
            name: "everything-words",
            about: "the same without userfaultfd",
            weights: ALL_WEIGHTS,
            refill: true,
            wild: everything,
            words: true,
            ..BASE
        },
        Config {
            name: "misbehave",
            about: "everything at once",
            weights: Weights { closes: 1, ..ALL_WEIGHTS },
            refill: true,
            wild: everything,
            plan: Plan { sizes: Sizes::Mixed, mischief: true, recursion: true, ..PLAN },
            ..BASE
        },
    ]
}

/// All configurations but [`heavy`](crate::heavy) ones.
pub fn all() -> Vec<Config> {
    [plain(), caches(), forks(), failures(), together()].concat()
}
