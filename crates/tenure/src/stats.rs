//! What happened so far, and what is so now.

use crate::keeper::node::{slab, Phase};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts since the process started (in a forked child: since its oldest ancestor did).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Totals { $($(#[$doc])* pub $name: u64),* }

        #[derive(Default)]
        pub(crate) struct Counters { $(pub $name: AtomicU64),* }

        pub(crate) static COUNTERS: Counters = Counters { $($name: AtomicU64::new(0)),* };

        fn totals() -> Totals {
            Totals { $($name: COUNTERS.$name.load(Ordering::Relaxed)),* }
        }
    };
}

counters! {
    /// Ranges told to the kernel.
    offers,
    /// Their bytes.
    offered_bytes,
    /// Ranges taken back, purged or not.
    revivals,
    /// Their bytes, as far as they were still there.
    revived_bytes,
    /// Ranges that had lost something when they were taken back.
    purges,
    /// The bytes they had lost.
    purged_bytes,
    /// Calls of refill functions that succeeded.
    refills,
    /// Bytes they wrote.
    refilled_bytes,
    /// Calls of refill functions that failed or panicked.
    failed_refills,
    /// Offers that the kernel refused (locked, too many mappings) or that would have split a huge
    /// page or taken pages that another process shares; tried again later.
    refused_offers,
    /// Times the kernel reported pressure.
    pressure_events,
    /// Rounds of the keeper.
    keeper_rounds,
    /// Bytes that populates made ready, those that were there already included.
    populated_bytes,
    /// Populates that failed, were cancelled or ran out of time.
    populate_failures,
    /// Mappings, or parts of them, that were moved away to be torn down later.
    retired_moved,
    /// Their bytes of address space.
    retired_moved_bytes,
    /// Bytes of address space unmapped in slices before the call returned.
    retired_in_slices_bytes,
    /// Bytes of address space unmapped by one plain munmap.
    retired_plain_bytes,
    /// Bytes of address space that were moved away and have been torn down since.
    torn_down_bytes,
    /// Of those, what callers tore down because too much was waiting, or because they asked.
    retire_helped_bytes,
    /// The longest step of a teardown in nanoseconds: what another thread may have waited for. Includes
    /// the time that the tearing thread was without a processor.
    retire_longest_slice_ns,
    /// Blocks that the pool handed out; those that moved for a reallocation count again.
    pool_allocs,
    /// Of those, blocks whose pages were there from an earlier use, or offered and perhaps there.
    pool_reuses,
    /// Bytes of those pages: page faults avoided.
    pool_reused_bytes,
    /// Bytes of free blocks told to the kernel.
    pool_offers_bytes,
    /// Bytes of free blocks that left the resident set.
    pool_returns_bytes,
    /// Reallocations that moved page tables instead of copying.
    pool_moves,
}

/// What is so now, of promises that keep their books elsewhere.
#[derive(Default)]
pub(crate) struct Gauges {
    pub retiring: AtomicU64,
    pub retiring_bytes: AtomicU64,
}

pub(crate) static GAUGES: Gauges =
    Gauges { retiring: AtomicU64::new(0), retiring_bytes: AtomicU64::new(0) };

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// What is so now, and [`Totals`] since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Counts since the start.
    pub total: Totals,
    /// Ranges known: pinned, marked or offered.
    pub ranges: u64,
    /// Ranges that are not volatile at the moment.
    pub pinned: u64,
    /// Their bytes.
    pub pinned_bytes: u64,
    /// Ranges that are volatile and not (yet) offered.
    pub marked: u64,
    /// Their bytes: what the kernel cannot take although nobody needs it.
    pub marked_bytes: u64,
    /// Ranges that the kernel may take, or has taken.
    pub offered: u64,
    /// Their bytes; [`survey`] says how many of them are still there.
    pub offered_bytes: u64,
    /// Times known ranges were pinned, as far as the ranges still exist (each counts to 2^32).
    pub pins: u64,
    /// Retired mappings that wait to be torn down.
    pub retiring: u64,
    /// Their bytes of address space.
    pub retiring_bytes: u64,
    /// Bytes that the program has from the pool. More of it: [`pool::stats`](crate::pool::stats()).
    pub pool_in_use_bytes: u64,
    /// Bytes of the pool's free blocks of which the kernel was told nothing.
    pub pool_warm_bytes: u64,
    /// Bytes of free blocks that are the kernel's to take, or are taken.
    pub pool_offered_bytes: u64,
    /// Bytes of addresses of free blocks without memory.
    pub pool_returned_bytes: u64,
}

/// Adds what a promise knows of itself.
pub(crate) type Source = fn(&mut Stats);

const MOST_SOURCES: usize = 4;
/// An array: adding one must not allocate, since an allocator is among them.
static SOURCES: RwLock<[Option<Source>; MOST_SOURCES]> = RwLock::new([None; MOST_SOURCES]);

/// Has [`stats`] ask this function too.
pub(crate) fn add_source(source: Source) {
    let mut sources = SOURCES.write().unwrap_or_else(PoisonError::into_inner);
    if sources.contains(&Some(source)) {
        return;
    }
    let free = sources.iter_mut().find(|place| place.is_none());
    *free.expect("a promise has one source") = Some(source);
}

/// Reads the statistics. Costs one look at each known range (about 3 ns); no system call.
pub fn stats() -> Stats {
    let mut stats = Stats { total: totals(), ..Stats::default() };
    slab().each(|_, node, word| {
        let len = node.len() as u64;
        stats.ranges += 1;
        stats.pins += u64::from(word.uses());
        let (count, bytes) = match (word.phase(), word.pins()) {
            (Phase::Resident | Phase::Reviving, 1..) | (Phase::Reviving, 0) => {
                (&mut stats.pinned, &mut stats.pinned_bytes)
            }
            (Phase::Resident | Phase::Offering, _) => (&mut stats.marked, &mut stats.marked_bytes),
            (Phase::Offered, _) => (&mut stats.offered, &mut stats.offered_bytes),
        };
        *count += 1;
        *bytes += len;
    });
    stats.retiring = GAUGES.retiring.load(Ordering::Relaxed);
    stats.retiring_bytes = GAUGES.retiring_bytes.load(Ordering::Relaxed);
    let sources = *SOURCES.read().unwrap_or_else(PoisonError::into_inner);
    sources.iter().flatten().for_each(|source| source(&mut stats));
    stats
}

/// Of what is offered, how much is still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// Bytes offered when the survey passed.
    pub offered_bytes: u64,
    /// Of those, bytes that the kernel has discarded; their owners learn it at the next unmark.
    pub gone_bytes: u64,
}

/// Looks at every offered page's page-table entry (PAGEMAP_SCAN, 4 ns a page; `/proc/self/pagemap`
/// before 6.7), touching none.
///
/// # Errors
/// The page map could not be read (`/proc` not mounted, or the process is not dumpable).
pub fn survey() -> crate::Result<Survey> {
    let failed = |errno| crate::Error::system("survey", "reading /proc/self/pagemap", errno);
    let pagemap = crate::os::pagemap::Pagemap::open().map_err(failed)?;
    let mut survey = Survey::default();
    let mut result = Ok(());
    slab().each(|_, node, word| {
        if word.phase() != Phase::Offered || result.is_err() {
            return;
        }
        match pagemap.count(node.range(), crate::os::pagemap::Pages::Missing) {
            Ok(gone) => {
                survey.offered_bytes += node.len() as u64;
                survey.gone_bytes += gone as u64;
            }
            Err(errno) => result = Err(failed(errno)),
        }
    });
    result.map(|()| survey)
}
