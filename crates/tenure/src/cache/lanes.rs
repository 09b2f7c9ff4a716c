//! Open segments: each lane fills its own, so that threads insert side by side.

use super::place::UNIT;
use super::segment::Segment;
use super::vacated::Vacated;
use crate::runtime::turn::Turn;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads of one lane fill the same open segment.
#[repr(align(64))]
pub(super) struct Lane {
    /// The open segment, which the lane has pinned: see [`Open`].
    pub open: AtomicU64,
    /// Held while the next segment is opened.
    pub opening: Turn,
    /// Its segments hold protected values.
    pub is_protected: bool,
    /// Places of values that its threads have overwritten.
    pub vacated: Vacated,
}

/// An open segment: its number, its generation, and how far it is filled. 0: none.
#[derive(Clone, Copy)]
pub(super) struct Open(pub u64);

impl Open {
    pub fn new(segment: u32, generation: u32, at: usize) -> Open {
        Open(u64::from(generation) << 41 | u64::from(segment) << 19 | (at / UNIT) as u64)
    }
    pub fn decode(word: u64) -> Option<Open> {
        (word != 0).then_some(Open(word))
    }
    pub fn segment(self) -> u32 {
        (self.0 >> 19) as u32 & (super::place::SEGMENTS - 1)
    }
    pub fn generation(self) -> u32 {
        (self.0 >> 41) as u32
    }
    pub fn at(self) -> usize {
        (self.0 as usize & ((1 << 19) - 1)) * UNIT
    }
}

/// A part of an open segment that is being filled, pinned.
pub(super) struct Filling<'a> {
    pub segment: &'a Segment,
    pub generation: u32,
    pub at: usize,
}

impl Lane {
    pub fn new(is_protected: bool) -> Lane {
        let vacated = Vacated::new();
        Lane { open: AtomicU64::new(0), opening: Turn::new(), is_protected, vacated }
    }
}

/// Returns the number that decides which open segment this thread fills.
pub(super) fn lane() -> usize {
    /// For the whole process: a lane is a number, for any cache.
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    thread_local! {
        /// Each thread's own, so that threads that insert values fill different segments.
        static LANE: Cell<usize> = const { Cell::new(0) };
    }
    if LANE.get() == 0 {
        LANE.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    LANE.get()
}
