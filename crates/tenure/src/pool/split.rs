//! Runs that are several mappings to the kernel. The number of mappings is bounded (`vm.max_map_count`, 65,530
//! by default), so the pool bounds how many such runs there are.

use super::run::{flag, Run};
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs of which only a part has huge pages are two mappings each. Past this many, such runs have base pages.
const MOST_PARTED: u32 = 4096;
/// A run whose pages were moved to it is up to [`BORDERS`](super::run::BORDERS) mappings of its own. Past this
/// many, pages are copied.
const MOST_MOVED: u32 = 2048;

/// How many such runs there are.
struct Split {
    /// Runs with huge pages in a part of them.
    parted: AtomicU32,
    /// Runs that pages were moved to.
    moved: AtomicU32,
}

/// For the whole process: the kernel bounds the mappings of a process.
static SPLIT: Split = Split { parted: AtomicU32::new(0), moved: AtomicU32::new(0) };

/// One more run is of two mappings because of advice. `false`: there are too many.
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

/// Pages were moved to the run.
pub(super) fn note_moved(run: &Run) {
    if !run.is(flag::MOVED) {
        run.set(flag::MOVED);
        SPLIT.moved.fetch_add(1, Ordering::Relaxed);
    }
}

/// From now on pages are copied.
pub(super) fn stop_moving() {
    SPLIT.moved.fetch_max(MOST_MOVED, Ordering::Relaxed);
}

/// The run's mapping is fresh, or not the pool's any more.
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
