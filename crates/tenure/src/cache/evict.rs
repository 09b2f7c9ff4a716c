//! Making room: what is emptied, and what of it moves on.

use super::header::{Header, HEADER};
use super::lanes::Filling;
use super::listener::RemovalCause;
use super::lists::List;
use super::place::Place;
use super::segment::{Segment, Segments, SEGMENT};
use super::space::{Index, Lists, Space};
use crate::os::pagemap::Pagemap;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How many segments each new one looks at for purges.
const LOOK: usize = 32;
/// How far from the old end of a list an empty segment is looked for before a full one is taken.
const REACH: usize = 16;
/// How far an unpinned segment is looked for.
const FAR: usize = 4096;

impl Lists {
    /// Puts a segment that is in no list into that of its kind.
    pub(super) fn close(&mut self, all: &Segments, segment: &Segment) {
        let is_protected = segment.is_protected();
        if is_protected { &mut self.protected } else { &mut self.probation }.push(all, segment);
    }

    /// Takes a closed segment out of its list, pinned, if nobody has it pinned: a thread that has may be putting a
    /// value where one was that is gone, see [`reuse`](super::reuse). `false`: it stays where it is.
    pub(super) fn take(&mut self, all: &Segments, segment: &Segment) -> bool {
        // Pinned before the lock is free: see `reset_in_child`.
        segment.is_closed() && segment.range.pin_alone().is_some() && self.remove(all, segment)
    }

    /// Takes a segment out of its list that the caller has pinned when nobody else had; `false`: it is in none.
    pub(super) fn remove(&mut self, all: &Segments, segment: &Segment) -> bool {
        self.probation.remove(all, segment) || self.protected.remove(all, segment)
    }

    /// How many segments are closed.
    pub(super) fn closed(&self) -> usize {
        self.probation.len() + self.protected.len()
    }

    /// Takes a closed segment out.
    pub(super) fn pop_closed<'a>(&mut self, all: &'a Segments) -> Option<&'a Segment> {
        self.probation.pop(all).or_else(|| self.protected.pop(all))
    }

    /// Bytes of segments that are in use.
    pub(super) fn used(&self) -> u64 {
        self.footprint.saturating_sub(self.free.bytes())
    }

    /// Whether large values' memory waits that is little beside all segments, with so many bytes more.
    pub(super) fn may_spare(&self, more: u64) -> bool {
        self.spare.bytes() + more <= self.footprint / 8
    }

    /// The closed segment that follows one, round and round.
    fn after(&self, segment: &Segment) -> Option<u32> {
        let (first, second) = (self.probation.first(), self.protected.first());
        if self.protected.has(segment) {
            self.protected.after(segment).or(first).or(second)
        } else {
            self.probation.after(segment).or(second).or(first)
        }
    }

    /// Calls `each` for up to `most` closed segments from `from` on, or from the oldest; answers where to go
    /// on.
    fn walk<'a>(
        &self,
        space: &'a Space,
        from: Option<u32>,
        most: usize,
        mut each: impl FnMut(&'a Segment),
    ) -> Option<u32> {
        let listed = |number: &u32| space.segments.must(*number).is_closed();
        let first = self.probation.first().or(self.protected.first());
        let mut at = from.filter(listed).or(first);
        for _ in 0..most.min(self.closed()) {
            let segment = space.segments.must(at?);
            each(segment);
            at = self.after(segment);
        }
        at
    }
}

impl Space {
    /// As [`Lists::take`].
    pub(super) fn take_out(&self, segment: &Segment) -> bool {
        self.lists.lock().take(&self.segments, segment)
    }

    /// Takes back the pages of a segment that [`Space::take_out`] took; if there is no memory for
    /// that, the segment goes back to its list.
    pub(super) fn settle_or_return(&self, segment: &Segment) -> bool {
        match segment.settle() {
            Ok(0) => true,
            Ok(gone) => {
                self.met_purge(gone);
                true
            }
            Err(_) => {
                self.lists.lock().close(&self.segments, segment);
                segment.unpin();
                false
            }
        }
    }

    pub(super) fn retire_if_empty(&self, index: &dyn Index, segment: &Segment) {
        if segment.life.live() != 0 || !segment.is_closed() {
            return;
        }
        if !self.take_out(segment) {
            // A thread reads it, or writes a value that counts for nothing yet.
            self.may_be_empty(segment);
        } else if segment.life.live() == 0 {
            self.expire(index, segment);
            self.put_away(segment, false);
        } else {
            self.lists.lock().close(&self.segments, segment);
            segment.unpin();
        }
    }

    /// Looks at some segments: how many are pinned, and in offered ones' page tables: purges that no
    /// reader has met teach as well.
    pub(super) fn look_for_purges(&self, index: &dyn Index, now: Instant) {
        let mut some: [Option<(&Segment, u32)>; LOOK] = [None; LOOK];
        let mut places = some.iter_mut();
        let (mut looked, mut pinned) = (0, 0);
        let mut lists = self.lists.lock();
        let from = lists.hand;
        lists.hand = lists.walk(self, from, LOOK, |segment| {
            looked += 1;
            pinned += u64::from(segment.range.pins() > 0);
            if let Some(place) = places.next() {
                *place = Some((segment, segment.life.generation()));
            }
        });
        // No more than a quarter of a ceiling may be held, or too little is left to replace.
        let pinned = pinned * lists.closed() as u64 / u64::max(looked, 1);
        let crowded = lists.growth.is_much_of_ceiling(pinned * SEGMENT as u64);
        self.crowded.store(crowded, Ordering::Relaxed);
        drop(lists);
        let Some(pagemap) = Pagemap::open().ok() else { return };
        for (segment, generation) in some.into_iter().flatten() {
            let gone = segment.range.is_offered() && segment.range.missing_bytes(&pagemap) > 0;
            // Of its generation, or another thread may be giving it other memory.
            if gone && segment.life.enter(&segment.range, generation).is_some() {
                let gone = segment.settle();
                segment.unpin();
                if let Ok(gone) = gone {
                    self.counts.purged_bytes.fetch_add(gone as u64, Ordering::Relaxed);
                    self.learn(gone as u64, now);
                }
            }
            if segment.all_lost() && self.take_out(segment) {
                let live = u64::from(segment.life.live());
                self.expire(index, segment);
                self.counts.evicted.fetch_add(live, Ordering::Relaxed);
                self.put_away(segment, false);
            }
        }
    }

    /// A segment to empty, out of its list, pinned and settled: one with nothing left in it near the old
    /// end, else the oldest that nobody has pinned, of the list that the policy gives up first.
    pub(super) fn victim(&self) -> Option<&Segment> {
        // Each try takes one out of its list; without memory for any, it ends.
        for _ in 0..8 {
            let mut lists = self.lists.lock();
            let new = lists.probation.bytes();
            let is_full = self.policy.is_full(new, lists.growth.target());
            let segment = match is_full || lists.protected.len() == 0 {
                true => self.oldest(&lists.probation).or_else(|| self.oldest(&lists.protected)),
                false => self.oldest(&lists.protected).or_else(|| self.oldest(&lists.probation)),
            };
            let Some(segment) = segment else {
                // Gets return copies from now on, so that values that are let go make room.
                self.crowded.store(true, Ordering::Relaxed);
                return None;
            };
            let taken = lists.take(&self.segments, segment);
            drop(lists);
            if taken && self.settle_or_return(segment) {
                return Some(segment);
            }
        }
        None
    }

    /// An empty segment near the old end of a list, else its oldest, of those that nobody has pinned.
    fn oldest(&self, list: &List) -> Option<&Segment> {
        let (mut oldest, mut looked) = (None, 0);
        let mut at = list.first();
        while let Some(number) = at.filter(|_| looked < REACH || oldest.is_none()) {
            let segment = self.segments.must(number);
            looked += 1;
            if segment.range.pins() == 0 {
                if looked <= REACH && segment.life.live() == 0 {
                    return Some(segment);
                }
                oldest = oldest.or(Some(segment));
            }
            at = list.after(segment).filter(|_| looked < FAR);
        }
        oldest
    }

    /// Empties the segment that the policy gives up first. `keeps`: values that have proved their worth move
    /// on. `false`: there is none to empty.
    pub(super) fn evict(&self, index: &dyn Index, keeps: bool) -> bool {
        if self.give_up_spare() {
            return true;
        }
        let Some(victim) = self.victim() else { return false };
        let filled = victim.filled.load(Ordering::Acquire);
        if victim.is_shared() {
            let target = self.lists.lock().growth.target();
            self.policy.follow(target, victim.life.values(), filled);
        }
        let (generation, is_protected) = (victim.life.generation(), victim.is_protected());
        let mut stays = false;
        self.each_value(victim, |at, head| {
            let from = Place::new(victim.number, generation, at);
            let Some(place) = index.holds(head.hash, from) else { return };
            let need = self.need(head);
            let cost = self.policy.cost(need);
            let cause = self.cause(victim, at, head);
            if keeps && place.uses() >= cost && cause == RemovalCause::Evicted {
                let left = if is_protected { place.uses().saturating_sub(cost) } else { 0 };
                if !victim.is_shared() {
                    // It has its segment to itself, and keeps it.
                    stays = index.relocate(head.hash, from, from.with_uses(left));
                } else if self.protect(victim, from, left, head, index) {
                    return;
                }
            }
            if !stays && index.forget(head.hash, from, cause) {
                self.counts.evicted.fetch_add(1, Ordering::Relaxed);
                self.policy.evicted(head.hash, need, is_protected);
            }
        });
        if stays {
            victim.set_protected(true);
            self.lists.lock().close(&self.segments, victim);
            victim.unpin();
            return true;
        }
        self.expire(index, victim);
        self.put_away(victim, false);
        true
    }

    /// Copies a value into the protected lane's open segment. `false`: there is no room, or the value was
    /// replaced meanwhile.
    fn protect(
        &self,
        victim: &Segment,
        from: Place,
        uses: u32,
        head: Header,
        index: &dyn Index,
    ) -> bool {
        let need = self.need(head);
        let mut into = loop {
            match self.reserve(&self.protected, need) {
                Ok(filling) => break filling,
                Err(seen) if self.open_spare(seen) => {}
                Err(_) => return false,
            }
        };
        let moved = self.move_value(victim, from, uses, &mut into, head, index);
        into.segment.unpin();
        moved
    }

    pub(super) fn move_value(
        &self,
        victim: &Segment,
        from: Place,
        uses: u32,
        into: &mut Filling<'_>,
        head: Header,
        index: &dyn Index,
    ) -> bool {
        let before = self.head(head.times.is_some());
        let bytes = victim.bytes(from.offset() + before, head.len as usize);
        into.segment.write(into.at + before, bytes);
        let place = self.fill(into, head).with_uses(uses);
        if index.relocate(head.hash, from, place) {
            into.at += self.need(head);
            self.counts.moved.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        // Overwritten meanwhile: no place leads to the copy.
        into.segment.life.take_back(into.generation);
        false
    }

    /// Forgets every value of a pinned, settled segment.
    pub(super) fn drop_values(&self, index: &dyn Index, victim: &Segment) {
        let generation = victim.life.generation();
        self.each_value(victim, |at, head| {
            let place = Place::new(victim.number, generation, at);
            if index.forget(head.hash, place, self.cause(victim, at, head)) {
                self.counts.evicted.fetch_add(1, Ordering::Relaxed);
                let need = self.need(head);
                self.policy.evicted(head.hash, need, victim.is_protected());
            }
        });
    }

    /// Calls `each` for the values of a settled, closed segment, which the caller has pinned when nobody else had, up
    /// to the first whose header is gone; keys that lead beyond it are found out of date later.
    pub(super) fn each_value(&self, segment: &Segment, mut each: impl FnMut(usize, Header)) {
        let filled = segment.filled.load(Ordering::Acquire);
        let mut at = 0;
        while at + HEADER <= filled {
            let Some(head) = segment.header(at, self.lifetimes.bytes()) else { return };
            let need = self.need(head);
            if need > filled - at {
                return;
            }
            each(at, head);
            at += need;
        }
    }
}
