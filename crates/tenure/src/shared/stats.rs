//! What shared volatile memory holds, and its counts.

use super::list;
use super::region::Region;
use super::state::Kind;
use crate::sync::Ordering;

/// What shared volatile memory holds, and its counts: see
/// [`SharedVolatile::stats`](super::SharedVolatile::stats).
///
/// ```
/// let stats = tenure::shared::SharedVolatile::new(1 << 20)?.stats();
/// assert_eq!((stats.chunks, stats.fresh), (16, 16));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SharedStats {
    /// Chunks in all.
    pub chunks: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Chunks that were never made.
    pub fresh: u64,
    /// Chunks whose bytes are there.
    pub intact: u64,
    /// Purged chunks that no process has begun to make again.
    pub purged: u64,
    /// Chunks that are being made.
    pub making: u64,
    /// Chunks that a process has pinned.
    pub pinned: u64,
    /// Processes that have the memory open.
    pub processes: u64,
    /// Chunks purged so far.
    pub purges: u64,
    /// Processes that died with the memory open, and whose pins were removed, so far.
    pub buried: u64,
    /// Chunks whose state is not one that tenure writes.
    pub damaged: u64,
}

impl SharedStats {
    pub(super) fn of(region: &Region) -> SharedStats {
        list::look_who_lives(region);
        let mut stats = SharedStats {
            chunks: region.shape.chunks as u64,
            chunk_bytes: region.shape.chunk as u64,
            purges: region.facts().purges.load(Ordering::Relaxed),
            buried: region.facts().buried.load(Ordering::Relaxed),
            ..SharedStats::default()
        };
        let mut recorded = 0;
        region.each_recorded(|number| {
            let chunk = region.chunk(number);
            let state = chunk.load();
            let count = match state.kind() {
                Kind::Fresh => &mut stats.fresh,
                Kind::Purging if state.is_cleaning() && state.was_fresh() => &mut stats.fresh,
                Kind::Purging if state.is_cleaning() => &mut stats.purged,
                Kind::Intact | Kind::Checked | Kind::Purging => &mut stats.intact,
                Kind::Purged => &mut stats.purged,
                Kind::Making => &mut stats.making,
                Kind::Damaged => &mut stats.damaged,
            };
            *count += 1;
            stats.pinned += u64::from(chunk.is_pinned());
            recorded += 1;
        });
        // A record may be counted twice if another process changes the file meanwhile.
        stats.fresh += stats.chunks.saturating_sub(recorded);
        let used = region.flags().iter().filter(|flags| flags.load(Ordering::Relaxed) != 0);
        stats.processes = used.count() as u64;
        stats
    }
}
