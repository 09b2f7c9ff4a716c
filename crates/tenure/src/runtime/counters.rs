//! Counts since the start. Every promise adds to these counters.

#[cfg(not(loom))]
use super::published::Part;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Counts since the process started (in a forked child: since its oldest ancestor did).
        ///
        /// ```
        /// let before = tenure::stats().total;
        /// tenure::retire::retire(tenure::Mapping::anonymous(64 << 20)?)?;
        /// let after = tenure::stats().total;
        /// assert!(after.retired_moved_bytes >= before.retired_moved_bytes);
        /// # Ok::<(), tenure::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Totals { $($(#[doc = $doc])* pub $name: u64),* }

        impl Totals {
            /// Calls `each` with each field's name, its description and its value.
            pub(crate) fn each(&self, mut each: impl FnMut(&'static str, &'static str, u64)) {
                $(each(stringify!($name), concat!($($doc),*), self.$name);)*
            }

            /// Returns the counts that `figure` has under the names of the fields.
            pub(crate) fn of(figure: impl Fn(&str) -> u64) -> Totals {
                Totals { $($name: figure(stringify!($name))),* }
            }
        }

        #[repr(C)]
        #[derive(Default)]
        pub(crate) struct Counters { $(pub $name: AtomicU64),* }

        /// For the whole process: [`totals`] returns them.
        pub(crate) static COUNTERS: Counters = Counters { $($name: AtomicU64::new(0)),* };

        /// For the whole process: other processes read it.
        #[cfg(not(loom))]
        pub(crate) static PUBLISHED: Part = Part::words(
            (&raw const COUNTERS).cast(),
            concat!($(stringify!($name), " "),*),
            size_of::<Counters>() / 8,
            1,
            0,
        );

        pub(crate) fn totals() -> Totals {
            Totals { $($name: COUNTERS.$name.load(Ordering::Relaxed)),* }
        }
    };
}

counters! {
    /// Ranges told to the kernel.
    offers,
    /// Bytes of ranges told to the kernel.
    offered_bytes,
    /// Ranges taken back, purged or not.
    revivals,
    /// Bytes of ranges taken back, as far as they were still there.
    revived_bytes,
    /// Reads that copied bytes of an offered range and left it offered.
    offered_reads,
    /// Ranges that had lost something when they were taken back.
    purges,
    /// Bytes that ranges had lost when they were taken back.
    purged_bytes,
    /// Calls of refill functions that succeeded.
    refills,
    /// Bytes that refill functions wrote.
    refilled_bytes,
    /// Calls of refill functions that failed or panicked.
    failed_refills,
    /// Offers that the kernel refused (locked, too many mappings) or that would have split a huge
    /// page or taken pages that another process shares; tried again later.
    refused_offers,
    /// Times the kernel reported pressure.
    pressure_events,
    /// Scans by the background worker.
    keeper_rounds,
    /// Bytes that populates made ready, those that were there already included.
    populated_bytes,
    /// Populates that failed, were cancelled or ran out of time.
    populate_failures,
    /// Mappings, or parts of them, that were moved away to be torn down later.
    retired_moved,
    /// Bytes of address space that were moved away to be torn down later.
    retired_moved_bytes,
    /// Bytes of address space unmapped in slices before the call returned.
    retired_in_slices_bytes,
    /// Bytes of address space unmapped by one plain munmap.
    retired_plain_bytes,
    /// Bytes of address space that were moved away and have been torn down since.
    torn_down_bytes,
    /// Of the bytes torn down, what callers tore down because too much was waiting, or because they
    /// asked.
    retire_helped_bytes,
    /// The longest step of a teardown in nanoseconds: what another thread may have waited for.
    /// Includes the time that the tearing thread was without a processor.
    retire_longest_slice_ns,
    /// Blocks that the pool handed out; those that moved for a reallocation count again.
    pool_allocs,
    /// Blocks of the pool whose pages were there from an earlier use, or offered and perhaps there.
    pool_reuses,
    /// Bytes of such pages: page faults avoided.
    pool_reused_bytes,
    /// Bytes of free blocks told to the kernel.
    pool_offers_bytes,
    /// Bytes of free blocks that left the resident set.
    pool_returns_bytes,
    /// Reallocations that moved page tables instead of copying.
    pool_moves,
}

/// Present amounts of the promises that do not count with `Counters`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Gauges {
    pub retiring: AtomicU64,
    pub retiring_bytes: AtomicU64,
}

/// For the whole process: the statistics return them.
pub(crate) static GAUGES: Gauges =
    Gauges { retiring: AtomicU64::new(0), retiring_bytes: AtomicU64::new(0) };

/// For the whole process: other processes read them.
#[cfg(not(loom))]
pub(crate) static PUBLISHED_GAUGES: Part =
    Part::words((&raw const GAUGES).cast(), "retiring retiring_bytes", 2, 1, 0);

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
