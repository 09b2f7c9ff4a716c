//! Makes room: chooses the segment to empty, and moves the values that stay.

use super::header::{Header, HEADER};
use super::lanes::Filling;
use super::listener::RemovalCause;
use super::lists::List;
use super::place::Place;
use super::segment::{Segment, Segments};
use super::space::{Index, Lists, Space};
use crate::os::pagemap::Pagemap;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How many segments the opening of a new one checks for purges.
const LOOK: usize = 32;
/// How far from the old end of a list the cache looks for an empty segment before it takes a full
/// one.
const REACH: usize = 16;
/// How far the cache looks for an unpinned segment.
const FAR: usize = 4096;

impl Lists {
    /// Puts a segment that is in no list into the list of its kind.
    pub(super) fn close(&mut self, all: &Segments, segment: &Segment) {
        let is_protected = segment.is_protected();
        if is_protected { &mut self.protected } else { &mut self.probation }.push(all, segment);
    }

    /// Takes a closed segment out of its list, pinned, if no other thread has it pinned. A thread
    /// that has it pinned may be writing a value to a vacated place: see [`reuse`](super::reuse).
    /// Returns `false` if the segment stays where it is.
    pub(super) fn take(&mut self, all: &Segments, segment: &Segment) -> bool {
        // Pinned before the lock is free: see `reset_in_child`.
        segment.is_closed() && segment.range.pin_alone().is_some() && self.remove(all, segment)
    }

    /// Takes a segment out of its list. The caller pinned it when no other thread had. Returns
    /// `false` if it is in no list.
    pub(super) fn remove(&mut self, all: &Segments, segment: &Segment) -> bool {
        self.probation.remove(all, segment) || self.protected.remove(all, segment)
    }

    /// Returns how many segments are closed.
    pub(super) fn closed(&self) -> usize {
        self.probation.len() + self.protected.len()
    }

    pub(super) fn pop_closed<'a>(&mut self, all: &'a Segments) -> Option<&'a Segment> {
        self.probation.pop(all).or_else(|| self.protected.pop(all))
    }

    /// Returns the bytes of segments that are in use.
    pub(super) fn used(&self) -> u64 {
        self.footprint.saturating_sub(self.free.bytes())
    }

    /// Returns whether the spare memory of large values, with this many more bytes, is little
    /// beside all segments.
    pub(super) fn may_spare(&self, more: u64) -> bool {
        self.spare.bytes() + more <= self.footprint / 8
    }

    /// Returns the closed segment that follows this one, in a circle.
    fn after(&self, segment: &Segment) -> Option<u32> {
        let (first, second) = (self.probation.first(), self.protected.first());
        if self.protected.has(segment) {
            self.protected.after(segment).or(first).or(second)
        } else {
            self.probation.after(segment).or(second).or(first)
        }
    }

    /// Calls `each` for up to `most` closed segments, from `from` on or from the oldest. Returns
    /// where the next walk begins.
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

    /// Takes back the pages of a segment that [`Space::take_out`] took. If there is no memory for
    /// that, returns the segment to its list.
    pub(super) fn settle_or_return(&self, segment: &Segment) -> bool {
        match segment.settle() {
            Ok(0) => true,
            Ok(gone) => {
                self.met_purge(gone);
                true
            }
            Err(_) => {
                self.put_back(segment);
                false
            }
        }
    }

    /// Puts a segment that [`Space::take_out`] took back into the list of its kind, as the newest.
    pub(super) fn put_back(&self, segment: &Segment) {
        self.lists.lock().close(&self.segments, segment);
        // The last value may have left while the segment was in no list.
        if segment.life.live() == 0 {
            self.may_be_empty(segment);
        }
        segment.unpin();
    }

    pub(super) fn retire_if_empty(&self, index: &dyn Index, segment: &Segment) {
        if !self.retire_if(index, segment, |segment| segment.life.live() == 0) {
            // A thread reads it, or writes a value that does not count yet.
            self.may_be_empty(segment);
        }
    }

    /// Ends a closed segment if it `is_over`. Returns `false` if another thread has it pinned.
    fn retire_if(
        &self,
        index: &dyn Index,
        segment: &Segment,
        is_over: impl Fn(&Segment) -> bool,
    ) -> bool {
        if !is_over(segment) || !segment.is_closed() {
            return true;
        }
        if !self.take_out(segment) {
            return false;
        }
        // Another thread may have filled it anew before.
        if is_over(segment) {
            self.expire(index, segment, &self.counts.evicted);
            self.put_away(segment, false);
        } else {
            self.put_back(segment);
        }
        true
    }

    /// Checks some segments: how many are pinned, and whether the kernel has purged offered ones.
    /// Purges that no reader has met also teach the cache its size.
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
        // Held values may keep at most a quarter of the ceiling. Otherwise too little is left to
        // replace.
        let pinned = pinned * lists.closed() as u64 / u64::max(looked, 1);
        let crowded = lists.growth.is_much_of_ceiling(pinned * self.segment_bytes as u64);
        self.crowded.store(crowded, Ordering::Relaxed);
        drop(lists);
        let Some(pagemap) = Pagemap::open().ok() else { return };
        for (segment, generation) in some.into_iter().flatten() {
            let gone = segment.range.is_offered() && segment.range.missing_bytes(&pagemap) > 0;
            // The generation is compared: another thread may be giving the segment other memory.
            if gone && segment.life.enter(&segment.range, generation).is_some() {
                let gone = segment.settle();
                segment.unpin();
                if let Ok(gone) = gone {
                    self.counts.purged_bytes.fetch_add(gone as u64, Ordering::Relaxed);
                    self.learn(gone as u64, now);
                }
            }
            self.retire_if(index, segment, Segment::all_lost);
        }
    }

    /// Returns a segment to empty, out of its list, pinned and settled. It is one without values
    /// near the old end of a list, or the oldest unpinned one of the list that the policy gives up
    /// first.
    pub(super) fn victim(&self) -> Option<&Segment> {
        // Each try takes one segment out of its list. If there is no memory for any, the loop ends.
        for _ in 0..8 {
            let mut lists = self.lists.lock();
            if self.has_full_probation(&lists, 2) {
                self.let_oldest_pass(&mut lists);
            }
            let is_full = self.has_full_probation(&lists, 0);
            let segment = match is_full || lists.protected.len() == 0 {
                true => self.oldest(&lists.probation).or_else(|| self.oldest(&lists.protected)),
                false => self.oldest(&lists.protected).or_else(|| self.oldest(&lists.probation)),
            };
            let Some(segment) = segment else {
                // From now on gets return copies, so that released values make room.
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

    /// Returns whether new values have more than their part, and this many segments more. The open
    /// segment, which is half full on average, counts.
    pub(super) fn has_full_probation(&self, lists: &Lists, more: u64) -> bool {
        let size = self.segment_bytes as u64;
        let bytes = (lists.probation.bytes() + size / 2).saturating_sub(more * size);
        self.policy.is_full(bytes, lists.growth.target())
    }

    /// Protects the oldest values on probation. The cache grows, or other settings give probation
    /// less. By evictions alone it would not become smaller in a loop, where no value on probation
    /// is used: each new segment takes the place of an emptied one.
    pub(super) fn let_oldest_pass(&self, lists: &mut Lists) {
        if let Some(segment) = lists.probation.pop(&self.segments) {
            segment.set_protected(true);
            lists.close(&self.segments, segment);
        }
    }

    /// Returns an unpinned empty segment near the old end of a list, or the oldest unpinned one.
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

    /// Empties the segment that the policy gives up first. `keeps`: values that have proved their
    /// worth move to another segment. Returns `false` if there is no segment to empty.
    pub(super) fn evict(&self, index: &dyn Index, keeps: bool) -> bool {
        if self.give_up_spare() {
            return true;
        }
        let Some(victim) = self.victim() else { return false };
        let filled = victim.filled.load(Ordering::Acquire);
        let target = self.lists.lock().growth.target();
        self.policy.follow(target, victim.life.values(), filled, false);
        let (generation, is_protected) = (victim.life.generation(), victim.is_protected());
        let mut stays = false;
        self.each_value(victim, |at, head| {
            let from = Place::new(victim.number, generation, at);
            let Some(place) = index.holds(head.hash, from) else { return };
            let need = self.need(head);
            let cost = self.policy.cost(need);
            let cause = self.cause(victim, at, head);
            if keeps && place.uses() >= cost && cause == RemovalCause::Evicted {
                let left = if is_protected { self.policy.left(place.uses(), cost) } else { 0 };
                if !victim.is_shared() {
                    // The value has its segment to itself, and keeps it.
                    stays = index.relocate(head.hash, from, from.with_uses(left));
                } else if self.protect(victim, from, left, head, index) {
                    return;
                }
            }
            if !stays && index.forget(head.hash, from, cause) {
                self.policy.evicted(head.hash, need, is_protected);
            }
        });
        if stays {
            victim.set_protected(true);
            self.put_back(victim);
            return true;
        }
        self.expire(index, victim, &self.counts.evicted);
        self.put_away(victim, false);
        true
    }

    /// Copies a value into the protected lane's open segment. Returns `false` if there is no room,
    /// or another thread replaced the value meanwhile.
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

    /// Copies a value to the end of `into`. Returns `false` if its key leads elsewhere by now, or a
    /// clear has emptied `into`.
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
        // Before a key leads there: it may leave at once.
        if into.segment.life.add(into.generation).is_none() {
            return false;
        }
        if index.relocate(head.hash, from, place) {
            // A get may have noted a use since the header was read. From here on gets note it at the
            // new place.
            let times = self.lifetimes.bytes();
            let of = victim.times(from.offset(), times).filter(|_| self.lifetimes.has_idle());
            if let Some(of) = of {
                into.segment.note_use(into.at, of.used);
            }
            into.at += self.need(head);
            // The copy counts from here on.
            let _ = victim.life.leave(from.generation());
            self.counts.moved.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        // Another thread overwrote the value meanwhile: no place leads to the copy.
        if into.segment.life.take_back(into.generation).is_none() {
            // A clear counts the copy.
            self.counts.removed_copies.fetch_add(1, Ordering::Relaxed);
        }
        false
    }

    /// Forgets every value of a pinned, settled segment.
    pub(super) fn drop_values(&self, index: &dyn Index, victim: &Segment) {
        let generation = victim.life.generation();
        self.each_value(victim, |at, head| {
            let place = Place::new(victim.number, generation, at);
            if index.forget(head.hash, place, self.cause(victim, at, head)) {
                let need = self.need(head);
                self.policy.evicted(head.hash, need, victim.is_protected());
            }
        });
    }

    /// Calls `each` for the values of a settled, closed segment, up to the first value whose header
    /// is gone. The caller pinned the segment when no other thread had. Later gets find that the
    /// remaining keys are out of date.
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

#[cfg(test)]
mod tests {
    use super::super::trials::SETTINGS;
    use crate::Cache;

    #[test]
    fn probation_becomes_smaller_when_other_settings_ask_for_it() {
        let cache = Cache::<u64>::builder().ceiling(64 << 20).build().unwrap();
        let parts = || {
            let lists = cache.inner.space.lists.lock();
            (lists.probation.bytes(), lists.protected.bytes())
        };
        let value = [7; 40_000];
        // A round of the trials between two inserts would give probation less for a moment. Which
        // keys they play depends on the hasher's random keys.
        let policy = &cache.inner.space.policy;
        policy.holds_to(SETTINGS.len() - 1);
        (0..4_000).for_each(|key| cache.insert(key, &value).unwrap());
        let (probation, protected) = parts();
        assert!(probation > 2 * protected, "{probation} and {protected}");
        // The trials find no hits, so they choose what the cache begins with.
        policy.lets_trials_choose();
        (4_000..8_000).for_each(|key| cache.insert(key, &value).unwrap());
        let (probation, protected) = parts();
        assert!(probation < protected / 5, "{probation} and {protected}");
    }

    /// It would count as a new one otherwise, and older values would stay longer than newer ones.
    #[test]
    fn a_segment_with_values_keeps_its_place() {
        let cache = Cache::<u64>::builder().ceiling(64 << 20).build().unwrap();
        (0..100).for_each(|key| cache.insert(key, &[7; 100_000]).unwrap());
        let space = &cache.inner.space;
        let protected = || {
            let lists = space.lists.lock();
            (lists.protected.first(), lists.protected.len())
        };
        // Where memory is short the cache may become smaller in between.
        let keeps_its_place = || {
            let before = protected();
            assert!(before.1 > 1, "nothing would be tested");
            space.retire_if_empty(&cache.inner.shards, space.segments.must(before.0.unwrap()));
            protected() == before
        };
        assert!((0..4).any(|_| keeps_its_place()));
    }
}
