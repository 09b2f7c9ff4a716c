//! Lists of segments. The links are inside the segments, so a change allocates nothing, and a list
//! gives up a segment from its middle at once.

use super::link::Link;
use super::segment::{Segment, Segments};
use std::sync::atomic::Ordering;

pub(super) use super::link::Name;

pub(super) struct List {
    name: Name,
    first: Option<u32>,
    last: Option<u32>,
    len: usize,
    bytes: u64,
}

impl List {
    pub fn new(name: Name) -> List {
        List { name, first: None, last: None, len: 0, bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of its segments' memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn first(&self) -> Option<u32> {
        self.first
    }

    pub fn last(&self) -> Option<u32> {
        self.last
    }

    /// Returns whether the segment is in this list.
    pub fn has(&self, segment: &Segment) -> bool {
        segment.link.is(self.name)
    }

    /// Returns the next segment, if this one is in the list and not the last.
    pub fn after(&self, segment: &Segment) -> Option<u32> {
        if self.has(segment) {
            Link::get(&segment.link.after)
        } else {
            None
        }
    }

    /// Adds a segment that is in no list.
    pub fn push(&mut self, all: &Segments, segment: &Segment) {
        debug_assert_eq!(segment.link.name.load(Ordering::Relaxed), Name::None as u8);
        segment.link.name.store(self.name as u8, Ordering::Relaxed);
        Link::set(&segment.link.before, self.last);
        Link::set(&segment.link.after, None);
        match self.last {
            Some(last) => Link::set(&all.must(last).link.after, Some(segment.number)),
            None => self.first = Some(segment.number),
        }
        self.last = Some(segment.number);
        self.len += 1;
        self.bytes += segment.capacity() as u64;
    }

    /// Takes a segment out. Returns `false` if it is not in this list.
    pub fn remove(&mut self, all: &Segments, segment: &Segment) -> bool {
        if !self.has(segment) {
            return false;
        }
        let (before, after) = (Link::get(&segment.link.before), Link::get(&segment.link.after));
        match before {
            Some(before) => Link::set(&all.must(before).link.after, after),
            None => self.first = after,
        }
        match after {
            Some(after) => Link::set(&all.must(after).link.before, before),
            None => self.last = before,
        }
        segment.link.name.store(Name::None as u8, Ordering::Relaxed);
        self.len -= 1;
        self.bytes = self.bytes.saturating_sub(segment.capacity() as u64);
        true
    }

    pub fn pop<'a>(&mut self, all: &'a Segments) -> Option<&'a Segment> {
        let segment = all.must(self.first?);
        self.remove(all, segment);
        Some(segment)
    }
}
