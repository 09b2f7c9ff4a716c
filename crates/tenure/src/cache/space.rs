//! Where new values go: the open segments, and the lists of all other segments.
//!
//! The space appends values to an open segment. A full segment joins a list. When the cache may not
//! grow, the space empties the oldest segment of one list. The [policy](super::policy) chooses the
//! list, and which values of the segment move to another one. No reader waits: it has pins on old
//! segments, and a segment is reused only after its last pin is gone.
//!
//! A thread takes a segment out of the lists under the lock. After that only this thread changes
//! what the segment is used for. It makes system calls without the lock. Every call that locks the
//! lists, works on a segment or changes the stack of emptied segments is [`Inside`].

#![allow(unsafe_code, reason = "puts the lists in order in a child")]

use super::counts::Counts;
use super::growth::Growth;
use super::header::{Header, Times, HEADER};
use super::inside::{is_inside, Inside};
use super::lanes::{Filling, Lane};
use super::lifetimes::Lifetimes;
use super::listener::RemovalCause;
use super::lists::{List, Name};
use super::pins;
use super::place::{Place, GENERATIONS, UNIT};
use super::policy::Policy;
use super::segment::{map, Kept, Segment, Segments, SEGMENT};
use crate::error::{Error, ErrorKind, Result};
use crate::os::room_now;
use crate::runtime::budget;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::turn::Mine;
use crate::text::text;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Weak;
use std::time::Instant;

/// Longer values have a segment of their own, with a mapping for each.
pub(super) const LARGE: usize = SEGMENT / 4;
/// What a cache may have at least, whatever its ceiling: enough for a value of 2 MB beside the open
/// segments.
const LEAST: usize = 5 * LARGE;
/// The cache keeps used values while it empties this many segments for a new one, or for a large
/// value.
pub(super) const KEEP: usize = 8;

/// What the space needs from the index. It runs no code of the program.
pub(super) trait Index {
    /// Returns the place with its uses, if a key leads to it.
    fn holds(&self, hash: u32, place: Place) -> Option<Place>;
    /// Makes the key that leads to `from` lead to `to`. Returns `false` if no key leads to `from`.
    fn relocate(&self, hash: u32, from: Place, to: Place) -> bool;
    /// Forgets the key that leads to the place, because its value leaves for this cause. Returns
    /// `false` if no key leads there.
    fn forget(&self, hash: u32, place: Place, cause: RemovalCause) -> bool;
    /// Forgets all keys that lead to a segment, of any generation.
    fn forget_segment(&self, segment: u32);
}

/// See the module's head.
pub(super) struct Space {
    /// The bytes of a segment for many values.
    pub segment_bytes: usize,
    pub segments: Segments,
    pub counts: Counts,
    pub policy: Policy,
    /// Where new values go.
    pub lanes: Box<[Lane]>,
    /// Where protected values go.
    pub protected: Lane,
    pub lists: Lock<Lists>,
    /// Purged bytes that readers have met and the lists have not counted yet.
    pub met: AtomicU64,
    /// The first of a stack of closed segments that may have lost their last value: its number plus
    /// one.
    emptied: AtomicU32,
    /// Pins keep so much memory that new values find no room.
    pub crowded: AtomicBool,
    pub lifetimes: Lifetimes,
}

pub(super) struct Lists {
    /// Closed segments, oldest first: those with new values, and those with protected ones.
    pub probation: List,
    pub protected: List,
    pub free: List,
    pub spare: List,
    pub bare: List,
    pub unmapped: List,
    pub draining: List,
    /// Bytes of segments with memory.
    pub footprint: u64,
    /// The largest footprint since the kernel last took memory.
    pub grown_to: u64,
    pub growth: Growth,
    /// The segment where the next check for purges begins.
    pub hand: Option<u32>,
    /// The number of the segment at which the last search for sparse ones ended.
    pub sampled: u32,
}

/// Room for a value in a segment that the caller has pinned, and later unpins.
pub(super) struct Room<'a> {
    pub segment: &'a Segment,
    pub place: Place,
    /// Where the value's bytes go.
    pub at: usize,
    /// Another value had the place before.
    pub again: bool,
    /// The cache may have evicted other values for it.
    pub evicted: bool,
}

impl Space {
    pub fn new(
        cache: Weak<dyn Kept>,
        (lanes, segment_bytes): (usize, usize),
        ceiling: u64,
        priority: u8,
        lifetimes: Lifetimes,
    ) -> Space {
        let floor = ((lanes + 2) * segment_bytes).max(LEAST) as u64;
        Space {
            segment_bytes,
            segments: Segments::new(cache, priority),
            counts: Counts::default(),
            policy: Policy::new(),
            lanes: (0..lanes).map(|_| Lane::new(false)).collect(),
            protected: Lane::new(true),
            lists: Lock::new(
                Rank::CacheSpace,
                Lists {
                    probation: List::new(Name::Probation),
                    protected: List::new(Name::Protected),
                    free: List::new(Name::Free),
                    spare: List::new(Name::Spare),
                    bare: List::new(Name::Bare),
                    unmapped: List::new(Name::Unmapped),
                    draining: List::new(Name::Draining),
                    footprint: 0,
                    grown_to: 0,
                    growth: Growth::new(segment_bytes as u64, floor, ceiling),
                    hand: None,
                    sampled: 0,
                },
            ),
            met: AtomicU64::new(0),
            emptied: AtomicU32::new(0),
            crowded: AtomicBool::new(false),
            lifetimes,
        }
    }

    /// Returns the bytes before a value's own bytes. `ends`: including its times.
    pub fn head(&self, ends: bool) -> usize {
        HEADER + if ends { self.lifetimes.bytes() } else { 0 }
    }

    /// Returns the bytes that a value takes in a segment, with its header.
    pub fn need(&self, head: Header) -> usize {
        (self.head(head.times.is_some()) + head.len as usize).next_multiple_of(UNIT)
    }

    /// Returns whether a value has ended.
    pub fn has_ended(&self, head: Header) -> bool {
        head.times.is_some_and(|times| self.lifetimes.is_over(times))
    }

    /// Returns why the value at an offset leaves when the cache makes room.
    pub fn cause(&self, segment: &Segment, at: usize, head: Header) -> RemovalCause {
        if !segment.whole(at, self.need(head)) {
            RemovalCause::Purged
        } else if self.has_ended(head) {
            RemovalCause::Expired
        } else {
            RemovalCause::Evicted
        }
    }

    /// Counts `bytes` of a segment that a reader found purged.
    pub fn met_purge(&self, bytes: usize) {
        self.met.fetch_add(bytes as u64, Ordering::Relaxed);
        self.counts.purged_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Remembers a segment whose last value may be gone.
    pub fn may_be_empty(&self, segment: &Segment) {
        if segment.is_emptied.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut first = self.emptied.load(Ordering::Relaxed);
        loop {
            segment.next_emptied.store(first, Ordering::Relaxed);
            match self.emptied.compare_exchange_weak(
                first,
                segment.number + 1,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Calls `each` with the remembered segments, and forgets them.
    pub fn each_emptied(&self, mut each: impl FnMut(&Segment)) {
        let mut at = self.emptied.swap(0, Ordering::Acquire);
        while at != 0 {
            let segment = self.segments.must(at - 1);
            at = segment.next_emptied.load(Ordering::Relaxed);
            // After this the segment may be remembered again.
            segment.is_emptied.store(false, Ordering::Release);
            each(segment);
        }
    }

    /// Finds room for a value and writes its header. The caller writes the value, lets a key lead
    /// to the place, and unpins the segment.
    ///
    /// `before`: the place that the key led to just now, if the caller looked it up.
    pub fn room(
        &self,
        index: &dyn Index,
        lane: usize,
        head: Header,
        before: Option<Place>,
    ) -> Result<Room<'_>> {
        let _inside = Inside::begin();
        let need = self.need(head);
        if self.policy.samples(head.hash) {
            self.policy.play(head.hash, need);
        }
        if need > LARGE {
            return self.large(index, head);
        }
        let lane = self.lane(lane);
        let mut evicted = false;
        let mut to = lane;
        if self.policy.comes_back(head.hash, need) {
            to = &self.protected;
        } else if let Some(room) = before.and_then(|before| self.reuse(lane, before, head)) {
            return Ok(room);
        }
        loop {
            match self.reserve(to, need) {
                Ok(filling) => {
                    let place = self.fill(&filling, head);
                    let at = filling.at + self.head(head.times.is_some());
                    return Ok(Room { segment: filling.segment, place, at, again: false, evicted });
                }
                Err(seen) => {
                    let opened = self.open_next(index, lane, to, seen);
                    if to.is_protected && opened.is_err() {
                        to = lane;
                        continue;
                    }
                    opened?;
                    evicted = true;
                }
            }
        }
    }

    /// Returns the lane of this number's threads.
    pub fn lane(&self, number: usize) -> &Lane {
        &self.lanes[number % self.lanes.len()]
    }

    /// Closes a lane's segment if it is still the one that the caller saw, and opens another.
    /// `own`: the lane of this thread's new values. Only the holder of its `opening` empties
    /// segments for it.
    fn open_next(&self, index: &dyn Index, own: &Lane, lane: &Lane, seen: u64) -> Result<()> {
        let Some(opening) = own.opening.take() else {
            let why = "a key that is dropped to make room uses its own cache";
            let remedy = "do not insert into the cache in the drop of a key";
            return Err(Error::new(ErrorKind::Deadlock, "Cache", why, remedy));
        };
        opening.goes_on_in_child();
        if lane.open.load(Ordering::Acquire) != seen {
            return Ok(());
        }
        if lane.is_protected {
            return self.open_protected(index, seen);
        }
        // Closed first: it may be the segment to empty.
        let before = lane.open.swap(0, Ordering::AcqRel);
        self.close(before);
        let next = self.open(index)?;
        self.put_open(lane, &next);
        Ok(())
    }

    /// Asks how much memory is free, for this cache and for all held values.
    pub fn hear(&self, now: Instant) {
        if !self.lists.lock().growth.is_due(now) {
            return;
        }
        let (room, offered) = self.free_now(now);
        self.lists.lock().growth.hear(room, offered, now);
    }

    /// Returns the room that is left, and how many bytes of it are the cache's own.
    fn free_now(&self, now: Instant) -> (room_now::Room, u64) {
        let room = budget::room(now);
        pins::follow(room);
        (room, self.bytes_of(|segment| segment.range.is_offered()))
    }

    /// Asks how much memory is free, because nothing else is left.
    pub(super) fn look_for_free_memory(&self) {
        let (room, offered) = self.free_now(Instant::now());
        self.lists.lock().growth.look(room, offered);
    }

    /// Returns the bytes of segments of some kind.
    fn bytes_of(&self, kind: impl Fn(&Segment) -> bool) -> u64 {
        let of_kind = |segment: &&Segment| segment.capacity() > 0 && kind(segment);
        self.segments.iter().filter(of_kind).map(|s| s.capacity() as u64).sum()
    }

    fn large(&self, index: &dyn Index, head: Header) -> Result<Room<'_>> {
        let head = Header { times: head.times.or(Some(Times::NEVER)), ..head };
        let need = self.need(head);
        // Overwritten large values become spare segments here.
        self.each_emptied(|segment| self.retire_if_empty(index, segment));
        let segment = match self.take_spare(need) {
            Some(segment) => segment,
            None => self.open_large(index, need, head.len)?,
        };
        let filling = Filling { segment, generation: segment.life.generation(), at: 0 };
        let place = self.fill(&filling, head);
        segment.filled.store(need, Ordering::Release);
        segment.set_protected(self.policy.comes_back(head.hash, need));
        self.lists.lock().close(&self.segments, segment);
        Ok(Room { segment, place, at: self.head(true), again: false, evicted: true })
    }

    /// Returns a new segment for one value of `len` bytes, which takes `need`, pinned and reset, in
    /// no list.
    fn open_large(&self, index: &dyn Index, need: usize, len: u32) -> Result<&Segment> {
        let capacity = need.next_multiple_of(crate::os::page_size());
        // A spare segment usually has another size: without this they would add up.
        self.give_up_spare();
        let now = Instant::now();
        self.hear(now);
        let held = |segment: &Segment| segment.range.pins() > 0 && !segment.link.is(Name::Bare);
        let held = self.bytes_of(held);
        let lists = self.lists.lock();
        let most = lists.growth.most(lists.footprint, held);
        drop(lists);
        if capacity as u64 > most {
            // Even if the cache gave up everything, the value would not fit.
            return Err(too_large(len, most));
        }
        self.tidy(index, now);
        let (mut last, mut tries) = (false, 0);
        let mut lists = loop {
            let mut lists = self.lists.lock();
            let footprint = lists.footprint;
            if lists.growth.may_take(capacity as u64, footprint, last) {
                break lists;
            }
            drop(lists);
            if last {
                return Err(too_large(len, most));
            }
            if !self.give_up_empty() {
                last = !self.evict(index, tries < KEEP);
                tries += 1;
            }
        };
        // Counted before the memory is there, so that other threads leave room for it.
        lists.footprint += capacity as u64;
        let bare = lists.unmapped.pop(&self.segments);
        drop(lists);
        if tries == 0 {
            self.let_pass();
        }
        let provided = bare.map_or_else(|| self.segments.make(), Ok);
        let provided = provided.and_then(|segment| match map(capacity) {
            Ok(mapping) => {
                segment.provide(mapping, false);
                Ok(segment)
            }
            Err(error) => {
                self.lists.lock().unmapped.push(&self.segments, segment);
                Err(error)
            }
        });
        if provided.is_err() {
            self.counted_off(capacity as u64);
        }
        provided
    }

    /// Takes back the count of bytes that are not there.
    pub fn counted_off(&self, bytes: u64) {
        let mut lists = self.lists.lock();
        // A child may have counted anew meanwhile.
        lists.footprint = lists.footprint.saturating_sub(bytes);
    }

    /// Forgets all values. The index has forgotten them already.
    pub fn clear(&self, index: &dyn Index) {
        let _inside = Inside::begin();
        for lane in self.all_lanes() {
            let opening = lane.opening.take();
            opening.iter().for_each(Mine::goes_on_in_child);
            let before = lane.open.swap(0, Ordering::AcqRel);
            self.close(before);
        }
        // At most the present number: other threads may fill segments all the time.
        let mut left = self.lists.lock().closed();
        while left > 0 {
            left -= 1;
            let mut lists = self.lists.lock();
            let Some(segment) = lists.pop_closed(&self.segments) else { return };
            segment.range.pin();
            drop(lists);
            self.expire(index, segment, &self.counts.removed);
            self.put_away(segment, false);
        }
    }

    /// Returns the footprint, the target, and the bytes of bookkeeping.
    pub fn sizes(&self) -> (u64, u64, u64) {
        let _inside = Inside::begin();
        let lists = self.lists.lock();
        let made = u64::from(self.segments.made());
        let bookkeeping = made * Segment::BOOKKEEPING as u64 + self.policy.bytes();
        (lists.footprint, lists.growth.target(), bookkeeping)
    }

    /// Takes the lists' lock over a fork. It does not wait for the right to open a segment, because
    /// its holder makes system calls.
    pub fn hold(&self) {
        self.lists.hold();
    }

    /// Frees the lock.
    pub fn release(&self) {
        self.lists.release();
    }

    /// Repairs the lists in a forked child, where no other thread opens a segment. With `adopt`,
    /// segments that threads of the parent worked on go back to the lists. The caller holds the
    /// lists' lock.
    ///
    /// The call does nothing if the calling thread is [`Inside`], here or in another cache: a
    /// signal handler that interrupted it forks, and the thread goes on with its lists, its segment
    /// and its stack. What the other threads worked on stays out of use in such a child: a few
    /// segments for each thread, and emptied segments that only an eviction finds.
    pub fn reset_in_child(&self, adopt: bool) {
        if is_inside() {
            return;
        }
        // SAFETY: this thread holds the lock over the fork, and has no guard of it, because it is
        // not inside.
        let lists = unsafe { self.lists.held_value() };
        self.emptied.store(0, Ordering::Relaxed);
        let mut footprint = 0;
        for segment in self.segments.iter() {
            segment.is_emptied.store(false, Ordering::Relaxed);
            if adopt && segment.link.is(Name::None) && !self.is_open(segment) {
                self.adopt(lists, segment);
            }
            if !segment.link.is(Name::Bare) {
                footprint += segment.capacity() as u64;
            }
            if segment.is_closed() && segment.life.live() == 0 {
                self.may_be_empty(segment);
            }
        }
        lists.footprint = footprint;
    }

    /// Takes over a segment that a thread worked on that does not exist here.
    fn adopt(&self, lists: &mut Lists, segment: &Segment) {
        // Such a thread has it pinned once. With more pins, a value in it may belong to this
        // thread, so it stays as it is. It also stays if the numbers would wrap.
        if segment.range.pins() != 1 || segment.life.generation() == GENERATIONS {
            return;
        }
        if segment.capacity() == 0 {
            lists.unmapped.push(&self.segments, segment);
        } else {
            let ended = segment.life.expire();
            self.counts.evicted.fetch_add(ended.values.into(), Ordering::Relaxed);
            lists.draining.push(&self.segments, segment);
            // Not `unpin`, which may wait for the worker: this thread holds all locks.
            segment.range.unpin_unseen();
        }
    }

    /// Frees the locks in a child whose fork handlers did not run. Returns `true` if the lists'
    /// lock was held, so that the lists may be half changed.
    pub fn recover(&self) -> bool {
        let held = self.lists.reset_in_child();
        if !held {
            self.lists.hold();
            // The memory of such a child is not a copy of a single moment, so it adopts nothing.
            self.reset_in_child(false);
            self.lists.release();
        }
        held
    }

    /// Makes the cache empty when the lists are unreliable. The present segments are lost.
    pub fn abandon(&self, index: &dyn Index) {
        let _inside = Inside::begin();
        for lane in self.all_lanes() {
            lane.open.store(0, Ordering::SeqCst);
        }
        for segment in self.segments.iter() {
            // Pinned for good: it is in no list.
            segment.range.pin();
            segment.link.clear();
            self.expire(index, segment, &self.counts.evicted);
        }
        self.emptied.store(0, Ordering::SeqCst);
        let mut lists = self.lists.lock();
        lists.probation = List::new(Name::Probation);
        lists.protected = List::new(Name::Protected);
        lists.free = List::new(Name::Free);
        lists.spare = List::new(Name::Spare);
        lists.bare = List::new(Name::Bare);
        lists.unmapped = List::new(Name::Unmapped);
        lists.draining = List::new(Name::Draining);
        (lists.footprint, lists.grown_to) = (0, 0);
        (lists.hand, lists.sampled) = (None, 0);
    }

    /// Returns the largest number of values that can have a token: the pins of shared segments,
    /// without those of lanes and of empty segments. Allocates nothing.
    pub fn held_values(&self) -> u64 {
        let held = |segment: &Segment| {
            let own = u32::from(self.is_open(segment));
            u64::from(segment.range.pins().saturating_sub(own))
        };
        let filled = |segment: &&Segment| segment.is_shared() && !segment.link.is(Name::Bare);
        self.segments.iter().filter(filled).map(held).sum()
    }

    /// Returns the bytes of the segments that a thread or a held value has pinned. The pin of the
    /// lane that fills a segment does not count, nor do the pins of bare segments.
    pub fn held_bytes(&self) -> u64 {
        self.bytes_of(|segment| {
            let is_held = segment.range.pins() > u32::from(self.is_open(segment));
            is_held && !segment.link.is(Name::Bare)
        })
    }
}

pub(super) fn no_memory() -> Error {
    Error::system("Cache", "madvise(MADV_POPULATE_WRITE)", rustix::io::Errno::NOMEM)
}

/// Returns the error if every segment is pinned, and the cache may not grow.
pub(super) fn all_held() -> Error {
    let why = "values that the program holds keep all of the cache's memory";
    Error::new(ErrorKind::OutOfMemory, "Cache", why, "drop values soon, or raise the ceiling")
}

fn too_large(len: u32, most: u64) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        "Cache",
        text!("a value of {len} bytes does not fit the {most} bytes that the cache may have"),
        "raise the ceiling or the memory limit",
    )
}
