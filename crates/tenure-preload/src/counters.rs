//! Counts calls for the report. It counts only if there is to be a report: threads that allocate at
//! the same time would otherwise contend for a cache line.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tenure::launcher;
use tenure::published::Part;

/// For the whole process: each hook asks it, and gets no context from the C library. Whether there
/// is to be a report.
static COUNTING: AtomicBool = AtomicBool::new(false);

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident $published:literal,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($name,)* COUNT }

        // Hooks name their counters, and get no context. A static holds only a place in `COUNTS`.
        $($(#[$doc])* pub static $name: Counter = Counter(Number::$name as usize);)*

        /// For the whole process: other processes read it.
        static PUBLISHED: Part =
            launcher::published((&raw const COUNTS).cast(), concat!($("launcher.", $published, " "),*), COUNT);
    };
}

/// The number of counters.
pub const COUNT: usize = Number::COUNT as usize;
/// For the whole process: it has one report.
static COUNTS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

/// A counter's place.
pub struct Counter(usize);

/// Calls are counted from now on.
pub fn start() {
    COUNTING.store(true, Ordering::Relaxed);
    launcher::publish(&PUBLISHED);
}

/// Called in a child: only its own calls count from now on.
pub fn restart() {
    COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

/// Adds this process's counts to `others`.
pub fn add_to(others: &[AtomicU64; COUNT]) {
    move_counts(&COUNTS, others, |count| count.load(Ordering::Relaxed));
}

/// Takes the counts of `others` over.
pub fn take_from(others: &[AtomicU64; COUNT]) {
    move_counts(others, &COUNTS, |count| count.swap(0, Ordering::Relaxed));
}

fn move_counts(
    from: &[AtomicU64; COUNT],
    to: &[AtomicU64; COUNT],
    value: impl Fn(&AtomicU64) -> u64,
) {
    for (at, (from, to)) in from.iter().zip(to).enumerate() {
        match at == LONGEST_MUNMAP_NS.0 {
            true => to.fetch_max(value(from), Ordering::Relaxed),
            false => to.fetch_add(value(from), Ordering::Relaxed),
        };
    }
}

impl Counter {
    #[inline]
    pub fn add(&self, n: u64) {
        if COUNTING.load(Ordering::Relaxed) {
            COUNTS[self.0].fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Raises the counter to `n` if it is lower.
    pub fn at_least(&self, n: u64) {
        if COUNTING.load(Ordering::Relaxed) {
            COUNTS[self.0].fetch_max(n, Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn one(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        COUNTS[self.0].load(Ordering::Relaxed)
    }
}

counters! {
    /// Large requests of malloc and related functions that the pool served.
    ALLOCATIONS_SERVED "malloc_served",
    /// Large requests that the pool did not serve.
    ALLOCATIONS_PASSED "malloc_passed",
    FREES_SERVED "free_served",
    MMAPS "mmap_calls",
    MMAPS_SERVED "mmap_served",
    MMAP_BYTES "mmap_bytes",
    MUNMAPS "munmap_calls",
    MUNMAPS_OF_POOL "munmap_of_pool",
    MUNMAPS_RETIRED "munmap_retired",
    RETIRED_BYTES "retired_bytes",
    /// The longest time that a munmap of the program took, in any way.
    LONGEST_MUNMAP_NS "longest_munmap_ns",
    /// Calls of mmap with MAP_FIXED and of a shrinking mremap whose pages were unmapped beforehand.
    ZAPPED_BEFORE "zapped_before",
    ZAPPED_BEFORE_BYTES "zapped_before_bytes",
    MREMAPS "mremap_calls",
    MADVISES "madvise_calls",
    /// Calls that took a run out of the pool.
    TAINTED "tainted",
    POPULATED "populated",
    POPULATED_BYTES "populated_bytes",
}
