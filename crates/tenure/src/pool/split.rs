//! Runs that are several mappings in the kernel. It bounds the number of mappings
//! (`vm.max_map_count`, 65,530 by default), so the pool bounds the number of such runs.

use super::run::{flag, Run};
use std::sync::atomic::{AtomicU32, Ordering};

/// A run of which only a part has huge pages is two mappings. Past this many, such runs have base
/// pages.
const MOST_PARTED: u32 = 4096;
/// A run that got pages by mremap is up to [`BORDERS`](super::run::BORDERS) mappings. Past this
/// many such runs, pages are copied.
const MOST_MOVED: u32 = 2048;

/// The number of such runs.
struct Split {
    /// Runs with huge pages in a part of them.
    parted: AtomicU32,
    /// Runs that got pages by mremap.
    moved: AtomicU32,
}

/// For the whole process: the kernel bounds the mappings of a process.
static SPLIT: Split = Split { parted: AtomicU32::new(0), moved: AtomicU32::new(0) };

/// Counts one more run that is two mappings because of advice. `false`: there are too many.
pub(super) fn count_parted() -> bool {
    let there_is_room = SPLIT.parted.fetch_add(1, Ordering::Relaxed) < MOST_PARTED;
    if !there_is_room {
        SPLIT.parted.fetch_sub(1, Ordering::Relaxed);
    }
    there_is_room
}

/// Whether pages may be moved to one more run.
pub(super) fn may_move() -> bool {
    SPLIT.moved.load(Ordering::Relaxed) < MOST_MOVED
}

/// Records that pages were moved to the run.
pub(super) fn note_moved(run: &Run) {
    if !run.is(flag::MOVED) {
        run.set(flag::MOVED);
        SPLIT.moved.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes all reallocations copy from now on.
pub(super) fn stop_moving() {
    SPLIT.moved.fetch_max(MOST_MOVED, Ordering::Relaxed);
}

/// Records that the run's mapping is fresh, or not the pool's any more.
pub(super) fn forget_state(run: &Run) {
    if run.is(flag::ADVISED) {
        SPLIT.parted.fetch_sub(1, Ordering::Relaxed);
    }
    if run.is(flag::MOVED) {
        SPLIT.moved.fetch_sub(1, Ordering::Relaxed);
        run.borders.iter().for_each(|border| border.store(0, Ordering::Relaxed));
    }
    run.clear(flag::TAINTED | flag::MOVED | flag::ADVISED | flag::CLOSED | flag::MAPPED);
}
