//! Making room: what is emptied, and what of it moves on.

use super::lists::Name;
use super::place::Place;
use super::segment::{footprint, Header, Segment, HEADER, SEGMENT};
use super::space::{Filling, Index, Lists, Space};
use crate::os::pagemap::Pagemap;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How many segments each new one looks at for purges.
const LOOK: usize = 32;
/// How far from the old end of the queue an empty segment is looked for before a full one is taken.
const REACH: usize = 16;
/// How far an unpinned segment is looked for.
const FAR: usize = 4096;
/// How many segments are looked at for the sparsest.
const SAMPLE: usize = 64;

impl Lists {
    /// Calls `each` for up to `most` segments of the queue from `from` on, or from its old end;
    /// answers where to go on.
    fn walk<'a>(
        &self,
        space: &'a Space,
        from: Option<u32>,
        most: usize,
        mut each: impl FnMut(&'a Segment),
    ) -> Option<u32> {
        let listed = |number: &u32| self.queue.has(space.segments.must(*number));
        let mut at = from.filter(listed).or(self.queue.first());
        for _ in 0..most.min(self.queue.len()) {
            let segment = space.segments.must(at?);
            each(segment);
            at = self.queue.after(segment).or(self.queue.first());
        }
        at
    }
}

impl Space {
    /// Takes a segment out of the queue, pinned; `false`: it is not there.
    fn take_out(&self, segment: &Segment) -> bool {
        let mut lists = self.lists.lock();
        let taken = lists.queue.remove(&self.segments, segment);
        if taken {
            // Before the lock is free: see `reset_in_child`.
            segment.range.pin();
        }
        taken
    }

    /// Takes back the pages of a segment that [`Space::take_out`] took; if there is no memory for
    /// that, the segment goes back to the queue.
    fn settle_or_return(&self, segment: &Segment) -> bool {
        match segment.settle() {
            Ok(0) => true,
            Ok(gone) => {
                self.met_purge(gone);
                true
            }
            Err(_) => {
                self.lists.lock().queue.push(&self.segments, segment);
                segment.unpin();
                false
            }
        }
    }

    pub(super) fn retire_if_empty(&self, index: &dyn Index, segment: &Segment) {
        if segment.life.live() != 0 || !segment.link.is(Name::Queue) {
            return;
        }
        if segment.range.pins() > 0 {
            // Somebody reads it, or writes a value that counts for nothing yet.
            self.may_be_empty(segment);
        } else if self.take_out(segment) {
            if segment.life.live() == 0 {
                self.expire(index, segment);
                self.put_away(segment, false);
            } else {
                self.lists.lock().queue.push(&self.segments, segment);
                segment.unpin();
            }
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
        let pinned = pinned * lists.queue.len() as u64 / u64::max(looked, 1);
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
            if segment.all_lost() && segment.range.pins() == 0 && self.take_out(segment) {
                let live = u64::from(segment.life.live());
                self.expire(index, segment);
                self.counts.evicted.fetch_add(live, Ordering::Relaxed);
                self.put_away(segment, false);
            }
        }
    }

    /// A segment to empty, out of the queue, pinned and settled: one with nothing left in it near
    /// the old end, else the oldest that nobody has pinned.
    pub(super) fn victim(&self) -> Option<&Segment> {
        // Each try takes one out of the queue; without memory for any, it ends.
        for _ in 0..8 {
            let mut lists = self.lists.lock();
            let (mut empty, mut oldest) = (None, None);
            let mut looked = 0;
            let mut at = lists.queue.first();
            while let Some(number) = at.filter(|_| looked < REACH || oldest.is_none()) {
                let segment = self.segments.must(number);
                looked += 1;
                if segment.range.pins() == 0 {
                    oldest = oldest.or(Some(segment));
                    if empty.is_none() && looked <= REACH && segment.life.live() == 0 {
                        empty = Some(segment);
                    }
                }
                at = lists.queue.after(segment).filter(|_| looked < FAR);
            }
            if oldest.is_none() {
                // Gets return copies from now on, so that values that are let go make room.
                self.crowded.store(true, Ordering::Relaxed);
            }
            let segment = empty.or(oldest)?;
            lists.queue.remove(&self.segments, segment);
            segment.range.pin();
            drop(lists);
            if self.settle_or_return(segment) {
                return Some(segment);
            }
        }
        None
    }

    /// Empties the oldest segment into `into`, which nobody else fills yet.
    pub(super) fn evict(&self, index: &dyn Index, into: &mut Filling<'_>) {
        let Some(victim) = self.victim() else { return };
        let mut room = SEGMENT / 2;
        let generation = victim.life.generation();
        self.each_value(victim, |at, head| {
            let from = Place::new(victim.number, generation, at);
            let Some(place) = index.holds(head.hash, from) else { return };
            let need = footprint(head.len as usize, self.expires);
            let deadline = self.deadline(victim, at);
            if place.used()
                && need <= room.min(SEGMENT - into.at)
                && victim.whole(at, need)
                && !index.expired(deadline)
                && self.move_value(victim, from, into, head, deadline, index)
            {
                room -= need;
                return;
            }
            if index.forget(head.hash, from) {
                self.counts.evicted.fetch_add(1, Ordering::Relaxed);
            }
        });
        self.expire(index, victim);
        self.put_away(victim, false);
    }

    /// Moves what is left of segments that are mostly overwritten or removed values into `into`, so
    /// that overwriting does not make the cache grow. `false`: there is no such segment.
    pub(super) fn compact(&self, index: &dyn Index, into: &mut Filling<'_>) -> bool {
        let mut any = false;
        // Two sparse segments at least must fit, or compacting would free nothing.
        while into.at < SEGMENT / 2 {
            let Some(sparse) = self.sparsest() else { break };
            let generation = sparse.life.generation();
            let mut left = Vec::new();
            let mut bytes = 0;
            self.each_value(sparse, |at, head| {
                let from = Place::new(sparse.number, generation, at);
                let need = footprint(head.len as usize, self.expires);
                let deadline = self.deadline(sparse, at);
                if index.holds(head.hash, from).is_none() {
                    return;
                }
                if sparse.whole(at, need) && !index.expired(deadline) {
                    left.push((from, head, deadline));
                    bytes += need;
                } else if index.forget(head.hash, from) {
                    self.counts.evicted.fetch_add(1, Ordering::Relaxed);
                }
            });
            if bytes > SEGMENT - into.at {
                // Few values are left in it, but large ones.
                self.lists.lock().queue.push(&self.segments, sparse);
                sparse.unpin();
                break;
            }
            for (from, head, deadline) in left {
                self.move_value(sparse, from, into, head, deadline, index);
            }
            self.expire(index, sparse);
            self.put_away(sparse, false);
            any = true;
        }
        any
    }

    /// The segment with the smallest share of values left, of some, if it is less than half; out of
    /// the queue, pinned, settled.
    fn sparsest(&self) -> Option<&Segment> {
        let mut best: Option<(f32, &Segment)> = None;
        let mut lists = self.lists.lock();
        let from = lists.sampled;
        lists.sampled = lists.walk(self, from, SAMPLE, |segment| {
            let left = segment.life.live() as f32 / segment.life.values().max(1) as f32;
            let read = segment.range.pins() > 0 || !segment.is_shared();
            if left < 0.5 && !read && best.is_none_or(|(least, _)| left < least) {
                best = Some((left, segment));
            }
        });
        let (_, segment) = best?;
        lists.queue.remove(&self.segments, segment);
        segment.range.pin();
        drop(lists);
        self.settle_or_return(segment).then_some(segment)
    }

    fn move_value(
        &self,
        victim: &Segment,
        from: Place,
        into: &mut Filling<'_>,
        head: Header,
        deadline: u64,
        index: &dyn Index,
    ) -> bool {
        let bytes = victim.bytes(from.offset() + self.head(), head.len as usize);
        into.segment.write(into.at + self.head(), bytes);
        let place = self.fill(into, head, deadline);
        if index.relocate(head.hash, from, place) {
            into.at += footprint(head.len as usize, self.expires);
            self.counts.moved.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        // Overwritten meanwhile: no place leads to the copy, and the next value goes there.
        into.segment.life.take_back(into.generation);
        false
    }

    /// Forgets every value of a pinned, settled segment.
    pub(super) fn drop_values(&self, index: &dyn Index, victim: &Segment) {
        let generation = victim.life.generation();
        self.each_value(victim, |at, head| {
            if index.forget(head.hash, Place::new(victim.number, generation, at)) {
                self.counts.evicted.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Calls `each` for the values of a pinned, settled, closed segment, up to the first whose
    /// header is gone; keys that lead beyond it are found out of date later.
    fn each_value(&self, segment: &Segment, mut each: impl FnMut(usize, Header)) {
        let filled = segment.filled.load(Ordering::Acquire);
        let mut at = 0;
        while at + HEADER <= filled {
            let Some(head) = segment.header(at) else { return };
            let need = footprint(head.len as usize, self.expires);
            if need > filled - at {
                return;
            }
            each(at, head);
            at += need;
        }
    }
}
