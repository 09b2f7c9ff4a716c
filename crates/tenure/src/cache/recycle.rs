//! How a segment becomes empty, and how a lane opens it again.

#![allow(unsafe_code, reason = "discards the pages of an emptied segment")]

use super::lanes::Filling;
use super::segment::{map, Segment};
use super::space::{all_held, no_memory, Index, Space, KEEP};
use crate::error::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How many draining segments each pass checks.
const DRAIN: usize = 32;

/// The memory beyond the cache's size that a segment may take.
#[derive(Clone, Copy, PartialEq)]
enum Beyond {
    Nothing,
    /// A little, for a moment: see [`Growth::has_spare`](super::growth::Growth::has_spare).
    Spare,
    /// What is free. The cache has nothing to give up instead.
    Free,
}

impl Space {
    /// Returns the next segment to fill, pinned. Some values may have moved into it already.
    pub(super) fn open(&self, index: &dyn Index) -> Result<Filling<'_>> {
        let segment = self.room_for_one(index)?;
        let mut into = Filling { segment, generation: segment.life.generation(), at: 0 };
        // Each lane must find an empty segment: if the cache grew beside a thread that moves
        // values, it would keep that size.
        if self.lists.lock().free.len() < self.lanes.len() {
            self.compact(index, &mut into);
        }
        Ok(into)
    }

    /// Opens the next segment for protected values, for new values that come back. The call may
    /// empty segments.
    pub(super) fn open_protected(&self, index: &dyn Index, seen: u64) -> Result<()> {
        let segment = self.room_for_one(index)?;
        if !self.open_with(segment, seen) {
            self.put_away_empty(segment);
        }
        Ok(())
    }

    /// Opens the next segment for protected values that move there, with memory beyond the cache's
    /// size if there is no other. Returns `false` if there is none.
    pub(super) fn open_spare(&self, seen: u64) -> bool {
        let Ok(Some(segment)) = self.take_empty(Instant::now(), Beyond::Spare) else {
            return false;
        };
        if !self.open_with(segment, seen) {
            self.put_away_empty(segment);
        }
        true
    }

    /// Makes an empty segment the protected lane's open one, if the lane still has open what the
    /// caller saw.
    fn open_with(&self, segment: &Segment, seen: u64) -> bool {
        let Some(opening) = self.protected.opening.take() else { return false };
        opening.goes_on_in_child();
        let is_wanted = self.protected.open.load(Ordering::Acquire) == seen;
        if is_wanted {
            let next = Filling { segment, generation: segment.life.generation(), at: 0 };
            self.put_open(&self.protected, &next);
        }
        is_wanted
    }

    /// Puts away a segment that was taken to be filled, and was not filled.
    fn put_away_empty(&self, segment: &Segment) {
        self.lists.lock().free.push(&self.segments, segment);
        segment.unpin();
    }

    /// Returns an empty segment, pinned and reset, in no list. If the cache may not grow, it
    /// empties other segments for that.
    fn room_for_one(&self, index: &dyn Index) -> Result<&Segment> {
        let now = Instant::now();
        self.hear(now);
        self.tidy(index, now);
        for tries in 0..64 {
            // The kept values of emptied segments may take as much room as they had. Then the cache
            // keeps fewer of them. If the kernel refuses memory, the cache works with what it has.
            let beyond = if tries < KEEP { Beyond::Nothing } else { Beyond::Spare };
            let some = self.take_empty(now, beyond).unwrap_or(None);
            if let Some(segment) = some {
                if tries == 0 {
                    self.let_pass();
                }
                return Ok(segment);
            }
            if !self.evict(index, tries < KEEP) {
                // Readers may have all segments pinned, for as long as they look at a value.
                crate::os::futex::yield_now();
            }
        }
        // Or readers hold them for longer, or this is a child, and threads of its parent held them.
        self.look_for_free_memory();
        self.take_empty(now, Beyond::Free)?.ok_or_else(all_held)
    }

    /// Protects values that do not fit into probation while the cache grows.
    pub(super) fn let_pass(&self) {
        let mut lists = self.lists.lock();
        if lists.footprint <= lists.grown_to {
            return;
        }
        lists.grown_to = lists.footprint;
        let target = lists.growth.target();
        if self.has_full_probation(&lists, 0) {
            self.let_oldest_pass(&mut lists);
        }
        let newest = lists.probation.last().or(lists.protected.last());
        drop(lists);
        if let Some(newest) = newest.map(|number| self.segments.must(number)) {
            let filled = newest.filled.load(Ordering::Acquire);
            self.policy.follow(target, newest.life.values(), filled, true);
        }
    }

    /// Returns an empty segment with memory, pinned and reset, in no list. Returns `None` if there
    /// is none and the cache may not grow.
    fn take_empty(&self, now: Instant, beyond: Beyond) -> Result<Option<&Segment>> {
        let size = self.segment_bytes as u64;
        let mut lists = self.lists.lock();
        let (used, footprint) = (lists.used(), lists.footprint);
        // The segment that protected values move to does not count.
        let may = beyond != Beyond::Nothing
            || lists.free.len() > 0 && lists.growth.has_room(used)
            || lists.growth.may_grow(used, now)
            || lists.growth.has_room(used);
        if !may {
            return Ok(None);
        }
        if let Some(segment) = lists.free.pop(&self.segments) {
            // Pinned before the lock is free: see `reset_in_child`.
            let plain = segment.range.pin();
            drop(lists);
            // The contents do not matter, only that its pages can be written again.
            if !plain && segment.settle().is_err() {
                self.put_away_empty(segment);
                return Err(no_memory());
            }
            segment.reset();
            return Ok(Some(segment));
        }
        let has_memory = lists.growth.has_spare(footprint)
            || beyond == Beyond::Free && lists.growth.may_take(size, footprint, true);
        if !has_memory {
            return Ok(None);
        }
        // Counted before the memory is there, so that other threads do not take the same room.
        lists.footprint += size;
        let bare = lists.bare.pop(&self.segments);
        drop(lists);
        let segment = match bare {
            Some(segment) => {
                segment.reset();
                Ok(segment)
            }
            None => map(self.segment_bytes).and_then(|mapping| {
                let segment = self.segments.make()?;
                segment.provide(mapping, true);
                Ok(segment)
            }),
        };
        if segment.is_err() {
            self.counted_off(size);
        }
        segment.map(Some)
    }

    /// Does the work that must come before the choice of the next segment.
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

    /// Notes that the kernel took some of the cache's memory.
    pub(super) fn learn(&self, bytes: u64, now: Instant) {
        let mut lists = self.lists.lock();
        let footprint = lists.footprint;
        lists.growth.purged(bytes, footprint, now);
        lists.grown_to = lists.grown_to.min(footprint);
    }

    /// Gives the memory of one empty segment back. Returns `false` if there is none.
    pub(super) fn give_up_empty(&self) -> bool {
        let mut lists = self.lists.lock();
        if let Some(segment) = lists.free.pop(&self.segments) {
            segment.range.pin();
            drop(lists);
            self.put_away(segment, true);
            return true;
        }
        drop(lists);
        self.give_up_spare()
    }

    /// Gives one segment's memory back: an empty segment's, or the oldest one's. Returns `false` if
    /// there is none.
    pub(super) fn give_up_one(&self, index: &dyn Index) -> bool {
        if self.give_up_empty() {
            return true;
        }
        let Some(victim) = self.victim() else { return false };
        self.drop_values(index, victim);
        self.expire(index, victim, &self.counts.evicted);
        self.put_away(victim, true);
        true
    }

    /// Gives back the memory of a spare segment, which waits for a large value. Returns `false` if
    /// there is none.
    pub(super) fn give_up_spare(&self) -> bool {
        let mut lists = self.lists.lock();
        let Some(segment) = lists.spare.pop(&self.segments) else { return false };
        segment.range.pin();
        drop(lists);
        self.put_away(segment, true);
        true
    }

    /// Returns an empty segment for one value that takes `need` bytes, pinned and reset, in no
    /// list. It is the segment of an overwritten value, so its pages are there. Returns `None` if
    /// none is about as large.
    pub(super) fn take_spare(&self, need: usize) -> Option<&Segment> {
        let mut lists = self.lists.lock();
        let mut at = lists.spare.first();
        let fits = loop {
            let segment = self.segments.must(at?);
            if (need..=need + need / 8).contains(&segment.capacity()) {
                break segment;
            }
            at = lists.spare.after(segment);
        };
        lists.spare.remove(&self.segments, fits);
        // Pinned before the lock is free: see `reset_in_child`.
        let plain = fits.range.pin();
        drop(lists);
        match if plain { Ok(0) } else { fits.settle() } {
            Ok(0) => {
                fits.reset();
                return Some(fits);
            }
            Ok(gone) => self.met_purge(gone),
            Err(_) => {}
        }
        // Memory is short: the value must wait for its turn.
        self.put_away(fits, true);
        None
    }

    /// Checks segments that were pinned when they were put away.
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

    /// Ends a segment's generation, and adds the values that were still there to `count`. The caller
    /// has taken it out of the lists.
    pub(super) fn expire(&self, index: &dyn Index, segment: &Segment, count: &AtomicU64) {
        let ended = segment.life.expire();
        count.fetch_add(ended.values.into(), Ordering::Relaxed);
        if ended.wraps {
            index.forget_segment(segment.number);
            // The numbers wrap: an old place could be taken for one of a later generation.
            self.all_lanes().for_each(|lane| lane.vacated.forget(segment.number));
        }
    }

    /// Keeps the memory of a large value for the next one, if that is little beside all values'
    /// bytes.
    fn spares(&self, segment: &Segment) -> bool {
        let mut lists = self.lists.lock();
        let spares =
            lists.may_spare(segment.capacity() as u64) && !lists.growth.too_large(lists.footprint);
        if spares {
            lists.spare.push(&self.segments, segment);
        }
        spares
    }

    /// Gives back spare memory until it is little beside the memory that is left.
    fn trim_spare(&self) {
        loop {
            let is_little = self.lists.lock().may_spare(0);
            if is_little || !self.give_up_spare() {
                return;
            }
        }
    }

    /// Puts away a segment that is out of date and in no list, and that the caller has pinned.
    /// `give`: gives its memory back to the kernel.
    pub(super) fn put_away(&self, segment: &Segment, give: bool) {
        if !segment.life.alone(&segment.range) {
            // Readers still use it; a later pass over the draining segments finds it.
            self.lists.lock().draining.push(&self.segments, segment);
            segment.unpin();
            return;
        }
        let capacity = segment.capacity() as u64;
        if !segment.is_shared() {
            if !give && self.spares(segment) {
                segment.unpin();
                return;
            }
            segment.strip();
            self.counted_off(capacity);
            let mut lists = self.lists.lock();
            lists.growth.gave_back(capacity);
            lists.unmapped.push(&self.segments, segment);
            drop(lists);
            // Not if this call already gives a spare segment up.
            if !give {
                self.trim_spare();
            }
            return;
        }
        let give = give || segment.all_lost() || {
            let lists = self.lists.lock();
            lists.growth.too_large(lists.footprint)
        };
        // SAFETY: the segment is out of date and only this thread has it pinned, so no thread reads
        // its bytes.
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

#[cfg(test)]
mod tests {
    use crate::Cache;
    use std::time::Instant;

    /// Purges have just told the cache to stay small, and values are held in all of its segments.
    #[test]
    fn held_values_refuse_no_insert_while_memory_is_free() {
        let cache = Cache::<u64>::new().unwrap();
        (0..80).for_each(|key| cache.insert(key, &vec![7; 500_000]).unwrap());
        let held: Vec<_> = (0..80).filter_map(|key| cache.get(&key)).collect();
        let purge = || {
            let mut lists = cache.inner.space.lists.lock();
            let footprint = lists.footprint;
            lists.growth.purged(u64::MAX, footprint, Instant::now());
        };
        for key in 80..160 {
            purge();
            cache.insert(key, &vec![7; 500_000]).unwrap();
        }
        assert!(held.iter().all(|value| value[0] == 7 && value[499_999] == 7));
    }

    /// The kernel has taken much of it, so the cache was too large.
    #[test]
    fn a_cache_that_was_too_large_gives_memory_back() {
        let cache = Cache::<u64>::new().unwrap();
        (0..80).for_each(|key| cache.insert(key, &vec![7; 500_000]).unwrap());
        let space = &cache.inner.space;
        let before = cache.weighted_size();
        space.learn(u64::MAX, Instant::now());
        space.tidy(&cache.inner.shards, Instant::now());
        let after = cache.weighted_size();
        assert!(after < before, "{after} bytes of {before}");
    }
}
