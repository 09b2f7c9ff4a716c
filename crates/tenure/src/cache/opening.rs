//! How threads take room in the open segments, and how a lane closes them.

use super::header::Header;
use super::lanes::{Filling, Lane, Open};
use super::lists::Name;
use super::place::Place;
use super::segment::Segment;
use super::space::Space;
use std::sync::atomic::Ordering;

impl Space {
    /// Returns the lanes for new values, and the lane for protected values.
    pub(super) fn all_lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().chain([&self.protected])
    }

    /// Takes `need` bytes of a lane's open segment, pinned; the caller unpins it. Returns `Err` if
    /// the lane's open segment has no room for them.
    pub(super) fn reserve(
        &self,
        lane: &Lane,
        need: usize,
    ) -> std::result::Result<Filling<'_>, u64> {
        loop {
            let seen = lane.open.load(Ordering::Acquire);
            let open = Open::decode(seen)
                .filter(|open| open.at() + need <= self.segment_bytes)
                .ok_or(seen)?;
            let segment = self.segments.must(open.segment());
            // The pin comes first: while the lane has the segment open, it is pinned and settled.
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

    /// Writes a value's header and returns its place.
    pub fn fill(&self, filling: &Filling<'_>, head: Header) -> Place {
        let Filling { segment, generation, at } = *filling;
        segment.write_header(at, head, self.lifetimes.bytes());
        segment.lengths.put(self.need(head));
        Place::new(segment.number, generation, at)
    }

    /// Makes a segment that only this thread has the lane's open one, and closes the one before.
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
    /// Returns whether the segment is closed and in use.
    pub(super) fn is_closed(&self) -> bool {
        self.link.is(Name::Probation) || self.link.is(Name::Protected)
    }
}
