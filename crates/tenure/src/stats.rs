//! Statistics: counts since the start, and the memory that tenure holds now.

use crate::pool;
use crate::runtime::counters::{totals, GAUGES};
use crate::tracking;
use crate::tracking::state::Word;
use std::sync::atomic::Ordering;

pub use crate::runtime::counters::Totals;

/// The memory that tenure holds now, and [`Totals`] since the start.
///
/// ```
/// let stats = tenure::stats();
/// println!("{} bytes marked, {} offered", stats.marked_bytes, stats.offered_bytes);
/// println!("{} bytes purged so far", stats.total.purged_bytes);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Counts since the start.
    pub total: Totals,
    /// Tracked ranges: pinned, marked or offered.
    pub ranges: u64,
    /// Tracked ranges that are not volatile now.
    pub pinned: u64,
    /// Their bytes.
    pub pinned_bytes: u64,
    /// Bytes of ranges that have been pinned by the same pin for at least thirty times the wait for
    /// an offer, 15 s by default: memory that the kernel could not take for long.
    pub pinned_long_bytes: u64,
    /// Ranges that are volatile and not (yet) offered.
    pub marked: u64,
    /// Their bytes: memory that the program does not use, and that the kernel cannot take yet.
    pub marked_bytes: u64,
    /// Ranges that the kernel may take, or has taken.
    pub offered: u64,
    /// Their bytes; [`survey`] says how many of them are still there.
    pub offered_bytes: u64,
    /// How often the ranges that are tracked now were pinned (each count wraps at 2^32).
    pub pins: u64,
    /// Retired mappings that wait to be torn down.
    pub retiring: u64,
    /// Their bytes of address space.
    pub retiring_bytes: u64,
    /// Bytes that the program holds from the pool. More about it:
    /// [`pool::stats`](crate::pool::stats()).
    pub pool_in_use_bytes: u64,
    /// Bytes of the pool's free blocks that are warm: the kernel cannot take them yet.
    pub pool_warm_bytes: u64,
    /// Bytes of free blocks that are offered: the kernel may take them, or has.
    pub pool_offered_bytes: u64,
    /// Bytes of addresses of free blocks that are returned: they have no memory.
    pub pool_returned_bytes: u64,
}

/// Reads the statistics. Costs one look at each tracked range (about 3 ns), and no system call.
///
/// ```
/// let buffer = tenure::Volatile::new(1 << 20)?;
/// let _pinned = buffer.pin()?;
/// assert!(tenure::stats().pinned_bytes >= 1 << 20);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn stats() -> Stats {
    let mut stats = Stats { total: totals(), ..Stats::default() };
    tracking::each(|tracked, word| {
        let len = tracked.len() as u64;
        stats.ranges += 1;
        stats.pins += u64::from(word.uses());
        let (count, bytes) = match (word.has(Word::OFFERED), word.pins()) {
            (true, _) => (&mut stats.offered, &mut stats.offered_bytes),
            (false, 0) => (&mut stats.marked, &mut stats.marked_bytes),
            (false, _) => (&mut stats.pinned, &mut stats.pinned_bytes),
        };
        *count += 1;
        *bytes += len;
        if tracked.is_pinned_for_long(word) {
            stats.pinned_long_bytes += len;
        }
    });
    stats.retiring = GAUGES.retiring.load(Ordering::Relaxed);
    stats.retiring_bytes = GAUGES.retiring_bytes.load(Ordering::Relaxed);
    add_pool(&mut stats);
    stats
}

fn add_pool(all: &mut Stats) {
    let now = pool::stats();
    all.pool_in_use_bytes = now.in_use_bytes;
    all.pool_warm_bytes = now.warm_bytes;
    all.pool_offered_bytes = now.offered_bytes;
    all.pool_returned_bytes = now.returned_bytes;
    let total = &mut all.total;
    total.pool_allocs = now.allocs;
    total.pool_reuses = now.warm_reuses + now.offered_reuses;
    total.pool_reused_bytes = now.reused_bytes;
    total.pool_offers_bytes = now.offered_total_bytes;
    total.pool_returns_bytes = now.returned_total_bytes;
    total.pool_moves = now.realloc_moved;
}

/// The statistics of another process. `figure` returns the value that the process has published
/// under a name, or 0.
pub(crate) fn of_published(figure: &dyn Fn(&str) -> u64) -> Stats {
    let mut total = Totals::of(figure);
    total.pool_allocs = figure("pool.allocs");
    total.pool_reuses = figure("pool.warm_reuses") + figure("pool.offered_reuses");
    total.pool_reused_bytes = figure("pool.reused_bytes");
    total.pool_offers_bytes = figure("pool.offered_total_bytes");
    total.pool_returns_bytes = figure("pool.returned_total_bytes");
    total.pool_moves = figure("pool.realloc_moved");
    Stats {
        total,
        ranges: figure("ranges"),
        pinned: figure("pinned"),
        pinned_bytes: figure("pinned_bytes"),
        pinned_long_bytes: figure("pinned_long_bytes"),
        marked: figure("marked"),
        marked_bytes: figure("marked_bytes"),
        offered: figure("offered"),
        offered_bytes: figure("ranges.offered_bytes"),
        pins: figure("pins"),
        retiring: figure("retiring"),
        retiring_bytes: figure("retiring_bytes"),
        pool_in_use_bytes: figure("pool.allocated_bytes")
            .saturating_sub(figure("pool.freed_bytes")),
        pool_warm_bytes: figure("pool.warm_bytes"),
        pool_offered_bytes: figure("pool.offered_bytes"),
        pool_returned_bytes: 0,
    }
}

/// How much of the offered memory the kernel has purged.
///
/// ```
/// let survey = tenure::survey()?;
/// assert!(survey.gone_bytes <= survey.offered_bytes);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Survey {
    /// Bytes that were offered when the survey looked.
    pub offered_bytes: u64,
    /// Those of them that the kernel has purged. The next pin or unmark reports them to the
    /// program.
    pub gone_bytes: u64,
}

/// Counts the offered pages and those that the kernel has purged, without touching a page.
///
/// # Cost
/// A look at the page-table entry of each offered page (`PAGEMAP_SCAN`, 4 ns a page; before Linux
/// 6.7 `/proc/self/pagemap`).
///
/// ```
/// let survey = tenure::survey()?;
/// println!("{} of {} offered bytes are gone", survey.gone_bytes, survey.offered_bytes);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// The page map could not be read (`/proc` not mounted, or the process is not dumpable).
#[doc(alias = "PAGEMAP_SCAN")]
#[doc(alias = "pagemap")]
pub fn survey() -> crate::Result<Survey> {
    let failed = |errno| crate::Error::system("survey", "reading /proc/self/pagemap", errno);
    let pagemap = crate::os::pagemap::Pagemap::open().map_err(failed)?;
    let mut survey = Survey::default();
    let mut result = Ok(());
    tracking::each(|tracked, word| {
        let range = tracked.range();
        if !word.has(Word::OFFERED) || range.len() == 0 || result.is_err() {
            return;
        }
        match pagemap.count(range, crate::os::pagemap::Pages::Missing) {
            Ok(gone) => {
                survey.offered_bytes += range.len() as u64;
                survey.gone_bytes += gone as u64;
            }
            Err(errno) => result = Err(failed(errno)),
        }
    });
    result.map(|()| survey)
}
