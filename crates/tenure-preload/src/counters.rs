//! Which calls came by, for the report. Counted only if there is to be one: threads that allocate at
//! once would else pass a cache line around.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// For the whole process: there is to be a report.
pub static COUNTING: AtomicBool = AtomicBool::new(false);

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        $($(#[$doc])* pub static $name: Counter = Counter(AtomicU64::new(0));)*

        /// In a child: what it does itself is counted from here on.
        pub fn restart() {
            $($name.0.store(0, Ordering::Relaxed);)*
        }
    };
}

pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, n: u64) {
        if COUNTING.load(Ordering::Relaxed) {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Keeps the largest.
    pub fn at_least(&self, n: u64) {
        if COUNTING.load(Ordering::Relaxed) {
            self.0.fetch_max(n, Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn one(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    /// Large requests of malloc and its kin that the pool served.
    ALLOCATIONS_SERVED,
    /// Large requests that it did not.
    ALLOCATIONS_PASSED,
    FREES_SERVED,
    MMAPS,
    MMAPS_SERVED,
    MMAP_BYTES,
    MUNMAPS,
    MUNMAPS_OF_POOL,
    MUNMAPS_RETIRED,
    RETIRED_BYTES,
    /// The longest that a munmap of the program's took, by whatever way.
    LONGEST_MUNMAP_NS,
    /// MAP_FIXED and shrinking mremap whose pages went beforehand.
    ZAPPED_BEFORE,
    ZAPPED_BEFORE_BYTES,
    MREMAPS,
    MADVISES,
    /// Calls that took a run out of the pool.
    TAINTED,
    POPULATED,
    POPULATED_BYTES,
}
