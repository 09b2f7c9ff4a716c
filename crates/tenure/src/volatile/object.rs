//! The parts of an owned buffer.

#![allow(unsafe_code, reason = "gives out the bytes of a buffer under a pin")]

use super::refill::Refill;
use crate::range::PageRange;
use crate::runtime::turn::Turn;
use crate::tracking::owned::OwnedRange;
use std::ops::Range;

/// The parts of a [`Volatile`](super::Volatile).
#[derive(Debug)]
pub(super) struct Object {
    pub memory: OwnedRange,
    /// The length that the program asked for; the mapping is whole pages.
    pub len: usize,
    pub refill: Option<Refill>,
    /// The turn of the thread that makes lost bytes again.
    pub refilling: Turn,
}

impl Object {
    pub fn range(&self) -> PageRange {
        self.memory.range()
    }

    /// Returns the lost extents, as byte offsets, in order.
    pub fn lost_offsets(&self) -> Vec<Range<usize>> {
        let base = self.range().start;
        // Without memory for the list all of it counts as lost.
        let Ok(losses) = self.memory.losses() else {
            return std::iter::once(0..self.len).collect();
        };
        let mut all: Vec<_> =
            losses.iter().map(|e| e.start - base..(e.end - base).min(self.len)).collect();
        all.sort_unstable_by_key(|range| range.start);
        all
    }

    /// Returns the bytes to a guard, which has pinned them.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped and initialised while `self` lives, and pinned by the calling guard, so
        // the pages stay. Refills write only lost pages, and no guard gets those before they are
        // made.
        unsafe { std::slice::from_raw_parts(self.range().start as *const u8, self.len) }
    }
}
