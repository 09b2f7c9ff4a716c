//! Making room: what is emptied, and what of it moves on.

use super::segment::{footprint, Header, Segment, HEADER, SEGMENT};
use super::space::{Index, Pool, Space};
use super::table::Place;
use crate::keeper::node::Phase;
use crate::keeper::pages::{self, PagemapHandle};
use crate::keeper::pin;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How many segments each new one looks at for purges.
const LOOK: usize = 32;
/// How far from the old end of the queue an empty segment is looked for before a full one is taken.
const REACH: usize = 16;
/// How many segments are looked at for the sparsest.
const SAMPLE: usize = 64;

impl Space {
    pub(super) fn retire_if_empty(&self, pool: &mut Pool, number: u32) {
        let segment = self.segment(number);
        if segment.live.load(Ordering::Acquire) != 0 {
            return;
        }
        // Not in the queue: open, or retired already.
        if let Some(at) = pool.queue.iter().position(|n| *n == number) {
            pool.queue.remove(at);
            pin::pin(segment.node());
            segment.next_generation();
            self.retire(pool, segment);
        }
    }

    /// Looks at some offered segments' page tables: purges that no reader has met teach as well.
    pub(super) fn look_for_purges(&self, pool: &mut Pool, now: Instant) {
        let Some(pagemap) = PagemapHandle::open() else { return };
        for _ in 0..LOOK.min(pool.queue.len()) {
            pool.hand = (pool.hand + 1) % pool.queue.len().max(1);
            let Some(number) = pool.queue.get(pool.hand).copied() else { return };
            let segment = self.segment(number);
            let node = segment.node();
            if node.load().phase() == Phase::Offered && pages::missing(&pagemap, node) > 0 {
                pin::pin(node);
                let gone = segment.settle();
                segment.unpin();
                if let Ok(gone) = gone {
                    self.counts.purged_bytes.fetch_add(gone as u64, Ordering::Relaxed);
                    let footprint = pool.footprint;
                    pool.growth.purged(gone as u64, footprint, now);
                }
            }
            if segment.all_lost() {
                pool.queue.remove(pool.hand);
                pin::pin(node);
                segment.next_generation();
                self.counts
                    .evicted
                    .fetch_add(u64::from(segment.live.load(Ordering::Relaxed)), Ordering::Relaxed);
                self.retire(pool, segment);
            }
        }
    }

    /// A segment to empty, out of the queue and pinned: one with nothing left in it near the old end,
    /// else the oldest that nobody reads.
    pub(super) fn victim(&self, pool: &mut Pool) -> Option<&Segment> {
        let reach = REACH.min(pool.queue.len());
        let empty = |n: &u32| self.segment(*n).live.load(Ordering::Relaxed) == 0;
        let unread = |n: &u32| self.segment(*n).node().load().pins() == 0;
        let at = pool
            .queue
            .iter()
            .take(reach)
            .position(empty)
            .or_else(|| pool.queue.iter().take(reach).position(unread))
            .unwrap_or(0);
        self.take_out(pool, at)
    }

    /// Empties the oldest segment into `into`, which nobody else fills yet.
    pub(super) fn evict(&self, pool: &mut Pool, index: &dyn Index, into: &Segment) {
        let Some(victim) = self.victim(pool) else { return };
        let mut room = SEGMENT / 2;
        let generation = victim.generation();
        self.each_value(victim, |at, head| {
            let from = Place::new(victim.number, generation, at);
            let Some(place) = index.holds(head.hash, from) else { return };
            let need = footprint(head.len as usize, self.expires);
            let deadline = self.deadline(victim, at);
            if place.used()
                && need <= room
                && victim.whole(at, need)
                && !index.expired(deadline)
                && self.move_value(victim, at, into, head, deadline, index)
            {
                room -= need;
                return;
            }
            if index.forget(head.hash, from) {
                self.counts.evicted.fetch_add(1, Ordering::Relaxed);
            }
        });
        victim.next_generation();
        self.retire(pool, victim);
    }

    /// Moves what is left of segments that are mostly overwritten or removed values into `into`, so
    /// that overwriting does not make the cache grow. `false`: there is no such segment.
    pub(super) fn compact(&self, pool: &mut Pool, index: &dyn Index, into: &Segment) -> bool {
        let mut any = false;
        // Two sparse segments at least must fit, or compacting would free nothing.
        while (into.filled.load(Ordering::Relaxed) as usize) < SEGMENT / 2 {
            let Some(sparse) = self.sparsest(pool) else { break };
            let generation = sparse.generation();
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
                    left.push((at, head, deadline));
                    bytes += need;
                } else if index.forget(head.hash, from) {
                    self.counts.evicted.fetch_add(1, Ordering::Relaxed);
                }
            });
            if bytes > SEGMENT - into.filled.load(Ordering::Relaxed) as usize {
                // Few values are left in it, but large ones.
                sparse.unpin();
                pool.queue.push_back(sparse.number);
                break;
            }
            for (at, head, deadline) in left {
                self.move_value(sparse, at, into, head, deadline, index);
            }
            sparse.next_generation();
            self.retire(pool, sparse);
            any = true;
        }
        any
    }

    /// The segment with the smallest share of values left, of some, if it is less than half; out of
    /// the queue, pinned.
    fn sparsest(&self, pool: &mut Pool) -> Option<&Segment> {
        let len = pool.queue.len();
        let mut best: Option<(f32, usize)> = None;
        for step in 0..len.min(SAMPLE) {
            let at = (pool.sampled + step) % len;
            let segment = self.segment(pool.queue[at]);
            let values = segment.values.load(Ordering::Relaxed) as f32;
            let left = segment.live.load(Ordering::Relaxed) as f32 / values.max(1.0);
            let read = segment.node().load().pins() > 0 || segment.capacity() != SEGMENT;
            if left < 0.5 && !read && best.is_none_or(|(least, _)| left < least) {
                best = Some((left, at));
            }
        }
        pool.sampled = (pool.sampled + SAMPLE) % len.max(1);
        let (_, at) = best?;
        self.take_out(pool, at)
    }

    /// Takes a segment out of the queue, pins it and takes its pages back.
    fn take_out(&self, pool: &mut Pool, at: usize) -> Option<&Segment> {
        let segment = self.segment(pool.queue.remove(at)?);
        pin::pin(segment.node());
        if segment.settle().map(|gone| self.met_purge(gone)).is_err() {
            // No memory to take it back: it stays where it is.
            segment.unpin();
            pool.queue.push_back(segment.number);
            return None;
        }
        Some(segment)
    }

    fn move_value(
        &self,
        victim: &Segment,
        at: usize,
        into: &Segment,
        head: Header,
        deadline: u64,
        index: &dyn Index,
    ) -> bool {
        let need = footprint(head.len as usize, self.expires);
        let to = into.filled.load(Ordering::Relaxed) as usize;
        into.write(to + self.head(), victim.bytes(at + self.head(), head.len as usize));
        let from = Place::new(victim.number, victim.generation(), at);
        let place = self.fill(into, to, need, head, deadline);
        if index.relocate(head.hash, from, place) {
            self.counts.moved.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        // Overwritten meanwhile: take the copy back.
        into.filled.store(to as u32, Ordering::Release);
        into.values.fetch_sub(1, Ordering::Relaxed);
        into.live.fetch_sub(1, Ordering::AcqRel);
        false
    }

    /// Forgets every value of a pinned segment.
    pub(super) fn drop_values(&self, victim: &Segment, index: &dyn Index) {
        let generation = victim.generation();
        self.each_value(victim, |at, head| {
            if index.forget(head.hash, Place::new(victim.number, generation, at)) {
                self.counts.evicted.fetch_add(1, Ordering::Relaxed);
            }
        });
        victim.next_generation();
    }

    /// Calls `each` for the values of a pinned, settled segment, up to the first whose header is
    /// gone; keys that lead beyond it are found out of date later.
    fn each_value(&self, segment: &Segment, mut each: impl FnMut(usize, Header)) {
        let filled = segment.filled.load(Ordering::Acquire) as usize;
        let mut at = 0;
        while at + HEADER <= filled {
            let Some(head) = segment.header(at) else { return };
            each(at, head);
            at += footprint(head.len as usize, self.expires);
        }
    }
}
