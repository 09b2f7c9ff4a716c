//! The last ranges that a thread marked or unmarked, so that its next call finds them at once.

use crate::range::PageRange;
use crate::tracking::state::RangeId;
use std::cell::Cell;

const SLOTS: usize = 64;

#[derive(Clone, Copy)]
struct Slot {
    start: usize,
    end: usize,
    id: u32,
}

thread_local! {
    /// Each thread's own, so it is found without a lock.
    static RECENT: [Cell<Slot>; SLOTS] =
        const { [const { Cell::new(Slot { start: 0, end: 0, id: 0 }) }; SLOTS] };
}

fn slot(start: usize) -> usize {
    // The page number times the golden ratio: neighbours and power-of-two strides spread alike.
    ((start >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) % SLOTS
}

/// Returns the number remembered for exactly this range. The number may belong to another range by
/// now: the caller compares the range after reading its word.
#[inline]
pub(super) fn find(range: PageRange) -> Option<RangeId> {
    let looked = RECENT.try_with(|recent| {
        let slot = recent[slot(range.start)].get();
        (slot.start == range.start && slot.end == range.end).then_some(RangeId(slot.id))
    });
    looked.ok().flatten()
}

/// Remembers a range.
#[inline]
pub(super) fn remember(range: PageRange, id: RangeId) {
    let _ = RECENT.try_with(|recent| {
        recent[slot(range.start)].set(Slot { start: range.start, end: range.end, id: id.0 });
    });
}
