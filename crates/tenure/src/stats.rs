//! What happened so far, and what is so now.

use crate::keeper::node::{slab, Phase};
use std::sync::atomic::{AtomicU64, Ordering};

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
}

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
