//! Open segments: where threads put values side by side.

use super::lists::Name;
use super::place::{Place, UNIT};
use super::segment::{Header, Segment, EXPIRY, HEADER, SEGMENT};
use super::space::Space;
use crate::runtime::turn::Turn;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads of one lane fill the same open segment.
#[repr(align(64))]
pub(super) struct Lane {
    /// The open segment, which the lane has pinned: see [`Open`].
    pub open: AtomicU64,
    /// Held while the next segment is opened.
    pub opening: Turn,
    /// Its segments hold protected values.
    pub is_protected: bool,
}

/// An open segment: its number, its generation, and how far it is filled. 0 stands for none.
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
        Lane { open: AtomicU64::new(0), opening: Turn::new(), is_protected }
    }
}

impl Space {
    /// The lanes for new values, and the one for protected values.
    pub(super) fn all_lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().chain([&self.protected])
    }

    /// Takes `need` bytes of a lane's open segment, which the caller unpins. `Err`: what the lane has open
    /// has no room for them.
    pub(super) fn reserve(
        &self,
        lane: &Lane,
        need: usize,
    ) -> std::result::Result<Filling<'_>, u64> {
        loop {
            let seen = lane.open.load(Ordering::Acquire);
            let open = Open::decode(seen).filter(|open| open.at() + need <= SEGMENT).ok_or(seen)?;
            let segment = self.segments.must(open.segment());
            // The pin first: while the lane has the segment open it is pinned and settled.
            segment.range.pin();
            let (generation, at) = (open.generation(), open.at());
            let next = Open::new(open.segment(), generation, at + need);
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            if lane.open.compare_exchange(seen, next.0, order, failed).is_ok() {
                return Ok(Filling { segment, generation, at });
            }
            segment.unpin();
        }
    }

    /// Writes a value's header; answers its place.
    pub fn fill(&self, filling: &Filling<'_>, head: Header, deadline: u64) -> Place {
        let Filling { segment, generation, at } = *filling;
        segment.write(at, &head.len.to_ne_bytes());
        segment.write(at + 4, &head.hash.to_ne_bytes());
        if self.expires {
            segment.write(at + HEADER, &deadline.to_ne_bytes());
        }
        debug_assert!(at + HEADER + if self.expires { EXPIRY } else { 0 } <= segment.capacity());
        segment.life.add(generation);
        Place::new(segment.number, generation, at)
    }

    /// Lets a lane fill a segment that nobody else has, and closes the one before.
    pub(super) fn put_open(&self, lane: &Lane, next: &Filling<'_>) {
        next.segment.set_protected(lane.is_protected);
        let open = Open::new(next.segment.number, next.generation, next.at);
        let before = lane.open.swap(open.0, Ordering::AcqRel);
        self.close(before);
    }

    /// Puts a lane's segment into the list of its kind.
    pub(super) fn close(&self, open: u64) {
        let Some(open) = Open::decode(open) else { return };
        let segment = self.segments.must(open.segment());
        segment.filled.store(open.at(), Ordering::Release);
        self.lists.lock().close(&self.segments, segment);
        if segment.life.live() == 0 {
            self.may_be_empty(segment);
        }
        segment.unpin();
    }

    pub(super) fn is_open(&self, segment: &Segment) -> bool {
        let opens = |lane: &Lane| Open::decode(lane.open.load(Ordering::Relaxed));
        self.all_lanes().filter_map(opens).any(|open| open.segment() == segment.number)
    }
}

impl Segment {
    /// Whether it is closed and in use.
    pub(super) fn is_closed(&self) -> bool {
        self.link.is(Name::Probation) || self.link.is(Name::Protected)
    }
}
