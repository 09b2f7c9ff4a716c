//! How a segment becomes empty and is opened again.

use super::segment::{map, Segment, SEGMENT};
use super::space::{all_held, no_memory, Filling, Index, Space};
use crate::error::Result;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How many segments that somebody had pinned are looked at each time.
const DRAIN: usize = 32;

impl Space {
    /// The next segment to fill, pinned, perhaps with values that moved in already.
    pub(super) fn open(&self, index: &dyn Index) -> Result<Filling<'_>> {
        let now = Instant::now();
        self.hear(now);
        self.tidy(index, now);
        let segment = match self.take_empty(now)? {
            Some(segment) => segment,
            // Nothing empty, and no more may be taken: the oldest one's values go, used or not.
            None => return self.empty_in_place(index),
        };
        let mut into = Filling { segment, generation: segment.life.generation(), at: 0 };
        let last = self.lists.lock().free.len() == 0;
        if last && !self.compact(index, &mut into) {
            // The last empty segment takes in what survives of the oldest, which is empty then.
            let mut lists = self.lists.lock();
            let footprint = lists.footprint;
            let grows = lists.growth.may_grow(footprint, now);
            drop(lists);
            if !grows {
                self.evict(index, &mut into);
            }
        }
        Ok(into)
    }

    /// An empty segment with memory, pinned and reset, in no list. `None`: there is none, and the
    /// cache may not grow.
    fn take_empty(&self, now: Instant) -> Result<Option<&Segment>> {
        let mut lists = self.lists.lock();
        if let Some(segment) = lists.free.pop(&self.segments) {
            // Pinned before the lock is free: see `reset_in_child`.
            let plain = segment.range.pin();
            drop(lists);
            // Its contents do not matter, only that its pages can be written again.
            if !plain && segment.settle().is_err() {
                self.lists.lock().free.push(&self.segments, segment);
                segment.unpin();
                return Err(no_memory());
            }
            segment.reset();
            return Ok(Some(segment));
        }
        let footprint = lists.footprint;
        if !lists.growth.may_grow(footprint, now) && !lists.growth.has_spare(footprint) {
            return Ok(None);
        }
        // Counted before it is there, so that other threads do not take the same room.
        lists.footprint += SEGMENT as u64;
        let bare = lists.bare.pop(&self.segments);
        drop(lists);
        let segment = match bare {
            Some(segment) => {
                segment.reset();
                Ok(segment)
            }
            None => map(SEGMENT).and_then(|mapping| {
                let segment = self.segments.make()?;
                segment.provide(mapping);
                Ok(segment)
            }),
        };
        if segment.is_err() {
            self.counted_off(SEGMENT as u64);
        }
        segment.map(Some)
    }

    /// Empties the oldest segment that nobody reads, for new values.
    fn empty_in_place(&self, index: &dyn Index) -> Result<Filling<'_>> {
        // A reader may come to each that is chosen, but then not to all.
        for _ in 0..64 {
            let Some(segment) = self.victim() else { break };
            self.drop_values(index, segment);
            self.expire(index, segment);
            if segment.is_shared() && segment.life.alone(&segment.range) {
                segment.reset();
                return Ok(Filling { segment, generation: segment.life.generation(), at: 0 });
            }
            self.put_away(segment, false);
            if let Some(segment) = self.take_empty(Instant::now())? {
                return Ok(Filling { segment, generation: segment.life.generation(), at: 0 });
            }
        }
        Err(all_held())
    }

    /// What is to be done before the next segment is chosen.
    pub(super) fn tidy(&self, index: &dyn Index, now: Instant) {
        self.drain();
        self.each_emptied(|segment| self.retire_if_empty(index, segment));
        let met = self.met.swap(0, Ordering::Relaxed);
        if met > 0 {
            self.learn(met, now);
        }
        self.look_for_purges(index, now);
        for _ in 0..4 {
            let lists = self.lists.lock();
            let too_large = lists.growth.too_large(lists.footprint);
            drop(lists);
            if !too_large || !self.give_up_one(index) {
                break;
            }
        }
    }

    /// The kernel took some of the cache's memory.
    pub(super) fn learn(&self, bytes: u64, now: Instant) {
        let mut lists = self.lists.lock();
        let footprint = lists.footprint;
        lists.growth.purged(bytes, footprint, now);
    }

    /// Gives one segment's memory back: an empty one's, or the oldest one's. `false`: there is none.
    pub(super) fn give_up_one(&self, index: &dyn Index) -> bool {
        let mut lists = self.lists.lock();
        if let Some(segment) = lists.free.pop(&self.segments) {
            segment.range.pin();
            drop(lists);
            self.put_away(segment, true);
            return true;
        }
        drop(lists);
        let Some(victim) = self.victim() else { return false };
        self.drop_values(index, victim);
        self.expire(index, victim);
        self.put_away(victim, true);
        true
    }

    /// Looks at segments that somebody had pinned when they were put away.
    fn drain(&self) {
        for _ in 0..DRAIN {
            let mut lists = self.lists.lock();
            let Some(segment) = lists.draining.pop(&self.segments) else { return };
            if segment.range.pins() > 0 {
                lists.draining.push(&self.segments, segment);
                continue;
            }
            segment.range.pin();
            drop(lists);
            self.put_away(segment, false);
        }
    }

    /// Ends a segment's generation; the caller has taken it out of the lists.
    pub(super) fn expire(&self, index: &dyn Index, segment: &Segment) {
        if segment.life.expire() {
            index.forget_segment(segment.number);
        }
    }

    /// Puts away a segment that is out of date, in no list, and that the caller has pinned. `give`:
    /// its memory goes back to the kernel.
    pub(super) fn put_away(&self, segment: &Segment, give: bool) {
        if !segment.life.alone(&segment.range) {
            // Its readers go on; the next look finds it.
            self.lists.lock().draining.push(&self.segments, segment);
            segment.unpin();
            return;
        }
        let capacity = segment.capacity() as u64;
        if !segment.is_shared() {
            segment.strip();
            self.counted_off(capacity);
            let mut lists = self.lists.lock();
            lists.growth.gave_back(capacity);
            lists.unmapped.push(&self.segments, segment);
            return;
        }
        let give = give || segment.all_lost() || {
            let lists = self.lists.lock();
            lists.growth.too_large(lists.footprint)
        };
        // SAFETY: the segment is out of date and this thread alone has it pinned: nobody reads its bytes.
        if give && unsafe { segment.range.discard_pages() }.is_ok() {
            self.counted_off(capacity);
            let mut lists = self.lists.lock();
            lists.growth.gave_back(capacity);
            lists.bare.push(&self.segments, segment);
            return;
        }
        self.lists.lock().free.push(&self.segments, segment);
        segment.unpin();
    }
}
