//! How a segment becomes empty and is opened again.

#![allow(unsafe_code, reason = "discards the pages of an emptied segment")]

use super::lanes::Filling;
use super::segment::{map, Segment, SEGMENT};
use super::space::{all_held, no_memory, Index, Space};
use crate::error::Result;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How many segments that were pinned are looked at each time.
const DRAIN: usize = 32;
/// Of how many segments that are emptied for one new one the used values are kept.
const KEEP: usize = 8;

impl Space {
    /// The next segment to fill, pinned, perhaps with values that moved in already.
    pub(super) fn open(&self, index: &dyn Index) -> Result<Filling<'_>> {
        let segment = self.room_for_one(index)?;
        let mut into = Filling { segment, generation: segment.life.generation(), at: 0 };
        // Each lane finds an empty one: to grow beside a thread that moves values would be for good.
        if self.lists.lock().free.len() < self.lanes.len() {
            self.compact(index, &mut into);
        }
        Ok(into)
    }

    /// Opens the next segment for protected values, for new ones that come back. The caller may empty
    /// segments.
    pub(super) fn open_protected(&self, index: &dyn Index, seen: u64) -> Result<()> {
        let segment = self.room_for_one(index)?;
        if !self.open_with(segment, seen) {
            self.put_away_empty(segment);
        }
        Ok(())
    }

    /// Opens the next segment for protected values that move there, in memory beyond the cache's size if
    /// there is no other. `false`: there is none.
    pub(super) fn open_spare(&self, seen: u64) -> bool {
        let Ok(Some(segment)) = self.take_empty(Instant::now(), true) else { return false };
        if !self.open_with(segment, seen) {
            self.put_away_empty(segment);
        }
        true
    }

    /// Lets the protected lane fill an empty segment, if it still has open what was seen.
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

    /// Puts away a segment that was taken to be filled, and was not.
    fn put_away_empty(&self, segment: &Segment) {
        self.lists.lock().free.push(&self.segments, segment);
        segment.unpin();
    }

    /// An empty segment, pinned and reset, in no list. Others are emptied for it if the cache may not grow.
    fn room_for_one(&self, index: &dyn Index) -> Result<&Segment> {
        let now = Instant::now();
        self.hear(now);
        self.tidy(index, now);
        for tries in 0..64 {
            // What is kept of the emptied ones may take up as much as they had. Then less is kept.
            // Where the kernel refuses memory, the cache makes do with what it has.
            let some = self.take_empty(now, tries >= KEEP).unwrap_or(None);
            if let Some(segment) = some {
                if tries == 0 {
                    self.let_pass();
                }
                return Ok(segment);
            }
            if !self.evict(index, tries < KEEP) {
                // Readers may have all of them just now, for as long as they look at a value.
                std::thread::yield_now();
            }
        }
        // Or for longer.
        self.take_empty(now, true)?.ok_or_else(all_held)
    }

    /// While the cache grows, what probation has no room for is protected.
    fn let_pass(&self) {
        let mut lists = self.lists.lock();
        if lists.footprint <= lists.grown_to {
            return;
        }
        lists.grown_to = lists.footprint;
        if self.policy.is_full(lists.probation.bytes(), lists.growth.target()) {
            if let Some(segment) = lists.probation.pop(&self.segments) {
                segment.set_protected(true);
                lists.close(&self.segments, segment);
            }
        }
    }

    /// An empty segment with memory, pinned and reset, in no list. `None`: there is none, and the
    /// cache may not grow. `spare`: a little more memory may be used for a moment.
    fn take_empty(&self, now: Instant, spare: bool) -> Result<Option<&Segment>> {
        let mut lists = self.lists.lock();
        let (used, footprint) = (lists.used(), lists.footprint);
        // The segment that protected values move to is not counted.
        let may = spare
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
            // Its contents do not matter, only that its pages can be written again.
            if !plain && segment.settle().is_err() {
                self.put_away_empty(segment);
                return Err(no_memory());
            }
            segment.reset();
            return Ok(Some(segment));
        }
        if !lists.growth.has_spare(footprint) {
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
        lists.grown_to = lists.grown_to.min(footprint);
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
        if self.give_up_spare() {
            return true;
        }
        let Some(victim) = self.victim() else { return false };
        self.drop_values(index, victim);
        self.expire(index, victim);
        self.put_away(victim, true);
        true
    }

    /// Gives the memory of a segment back that waits for a large value. `false`: there is none.
    pub(super) fn give_up_spare(&self) -> bool {
        let mut lists = self.lists.lock();
        let Some(segment) = lists.spare.pop(&self.segments) else { return false };
        segment.range.pin();
        drop(lists);
        self.put_away(segment, true);
        true
    }

    /// An empty segment for one value that takes `need` bytes, pinned and reset, in no list: that of a value
    /// that was overwritten, so that its pages are there. `None`: there is none that is about as large.
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
        // Memory is short: the value is to wait for its turn.
        self.put_away(fits, true);
        None
    }

    /// Looks at segments that were pinned when they were put away.
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
            // Or a place of long ago would be taken for one of a generation to come.
            self.all_lanes().for_each(|lane| lane.vacated.forget(segment.number));
        }
    }

    /// Keeps the memory of a large value for the next one, if that is not much beside all values' bytes.
    fn spares(&self, segment: &Segment) -> bool {
        let mut lists = self.lists.lock();
        let spares =
            lists.may_spare(segment.capacity() as u64) && !lists.growth.too_large(lists.footprint);
        if spares {
            lists.spare.push(&self.segments, segment);
        }
        spares
    }

    /// Gives memory back that was little beside what was there before, and is much beside what is left.
    fn trim_spare(&self) {
        loop {
            let is_little = self.lists.lock().may_spare(0);
            if is_little || !self.give_up_spare() {
                return;
            }
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
            // Not where this gives up one of them.
            if !give {
                self.trim_spare();
            }
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
