//! Where new values go: open segments, and the lists that the others are in.
//!
//! Values are appended to an open segment; a full one joins a queue. When the cache may not grow,
//! the oldest segment is emptied: values that were used since they were put there move to the new
//! open segment, the others go. That approximates LRU (it is CLOCK with segments), and no reader
//! waits: it holds pins on old segments, which are reused only when the last pin is gone.
//!
//! A thread takes a segment out of the lists under the lock, and is then the only one that moves it
//! on in its life. What takes system calls it does without the lock. Every call that locks the lists,
//! has a segment in its hands or changes the stack of emptied ones is [`Inside`].

use super::growth::Growth;
use super::inside::{is_inside, Inside};
use super::lists::{List, Name};
use super::pins;
use super::place::{Place, GENERATIONS, UNIT};
use super::segment::{footprint, map, Header, Segment, Segments, EXPIRY, HEADER, SEGMENT};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::budget;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::turn::{Mine, Turn};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// Values that take more than this have a segment of their own.
const LARGE: usize = SEGMENT / 4;

/// What the space asks of the index. Runs no code of the program's.
pub(super) trait Index {
    /// The place, with its used bit, if a key leads to it.
    fn holds(&self, hash: u32, place: Place) -> Option<Place>;
    /// Makes the key that leads to `from` lead to `to`; `false`: none does.
    fn relocate(&self, hash: u32, from: Place, to: Place) -> bool;
    /// Forgets the key that leads to the place; `false`: none does.
    fn forget(&self, hash: u32, place: Place) -> bool;
    /// Forgets all keys that lead to a segment, of whichever generation.
    fn forget_segment(&self, segment: u32);
    /// Whether a value with this deadline has ended.
    fn expired(&self, deadline: u64) -> bool;
}

/// Counts for the statistics.
#[derive(Default)]
pub(super) struct SpaceCounts {
    pub evicted: AtomicU64,
    pub moved: AtomicU64,
    pub purged_bytes: AtomicU64,
}

/// See the module's head.
pub(super) struct Space {
    pub segments: Segments,
    pub counts: SpaceCounts,
    lanes: Box<[Lane]>,
    pub lists: Lock<Lists>,
    /// Purged bytes that readers have met and the lists have not heard of.
    pub met: AtomicU64,
    /// The first of a stack of closed segments that may have lost their last value; one more than
    /// its number.
    emptied: AtomicU32,
    /// So many segments are pinned that new values find no room.
    pub crowded: AtomicBool,
    pub expires: bool,
}

/// Threads of one lane fill the same open segment.
#[repr(align(64))]
struct Lane {
    /// The open segment, which the lane has pinned: see [`Open`].
    open: AtomicU64,
    /// Held while the next segment is opened.
    opening: Turn,
}

/// An open segment: its number, its generation, and how far it is filled. 0 stands for none.
#[derive(Clone, Copy)]
struct Open(u64);

impl Open {
    fn new(segment: u32, generation: u32, at: usize) -> Open {
        Open(u64::from(generation) << 41 | u64::from(segment) << 19 | (at / UNIT) as u64)
    }
    fn decode(word: u64) -> Option<Open> {
        (word != 0).then_some(Open(word))
    }
    fn segment(self) -> u32 {
        (self.0 >> 19) as u32 & (super::place::SEGMENTS - 1)
    }
    fn generation(self) -> u32 {
        (self.0 >> 41) as u32
    }
    fn at(self) -> usize {
        (self.0 as usize & ((1 << 19) - 1)) * UNIT
    }
}

pub(super) struct Lists {
    /// Closed segments, oldest first.
    pub queue: List,
    pub free: List,
    pub bare: List,
    pub unmapped: List,
    pub draining: List,
    /// Bytes of segments with memory.
    pub footprint: u64,
    pub growth: Growth,
    /// The segment where the next look for purges begins.
    pub hand: Option<u32>,
    /// The segment where the next look for sparse ones begins.
    pub sampled: Option<u32>,
}

/// A part of an open segment that is being filled, pinned.
pub(super) struct Filling<'a> {
    pub segment: &'a Segment,
    pub generation: u32,
    pub at: usize,
}

/// Room for a value in a segment that the caller has pinned, and unpins.
pub(super) struct Room<'a> {
    pub segment: &'a Segment,
    pub place: Place,
    /// Where the value's bytes go.
    pub at: usize,
    /// Other values may have been evicted for it.
    pub evicted: bool,
}

impl Space {
    pub fn new(lanes: usize, ceiling: u64, priority: u8, expires: bool) -> Space {
        let floor = (lanes as u64 + 2) * SEGMENT as u64;
        let lane = |_| Lane { open: AtomicU64::new(0), opening: Turn::new() };
        Space {
            segments: Segments::new(priority),
            counts: SpaceCounts::default(),
            lanes: (0..lanes).map(lane).collect(),
            lists: Lock::new(
                Rank::CacheSpace,
                Lists {
                    queue: List::new(Name::Queue),
                    free: List::new(Name::Free),
                    bare: List::new(Name::Bare),
                    unmapped: List::new(Name::Unmapped),
                    draining: List::new(Name::Draining),
                    footprint: 0,
                    growth: Growth::new(floor, ceiling),
                    hand: None,
                    sampled: None,
                },
            ),
            met: AtomicU64::new(0),
            emptied: AtomicU32::new(0),
            crowded: AtomicBool::new(false),
            expires,
        }
    }

    /// Bytes before each value's own.
    pub fn head(&self) -> usize {
        HEADER + if self.expires { EXPIRY } else { 0 }
    }

    /// A reader found that `bytes` of a segment had been purged.
    pub fn met_purge(&self, bytes: usize) {
        self.met.fetch_add(bytes as u64, Ordering::Relaxed);
        self.counts.purged_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A key stopped leading to the place.
    pub fn left(&self, place: Place) {
        let _inside = Inside::begin();
        let segment = self.segments.must(place.segment());
        if segment.life.leave(place.generation()) {
            self.may_be_empty(segment);
        }
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
            // After this it may be remembered again.
            segment.is_emptied.store(false, Ordering::Release);
            each(segment);
        }
    }

    /// Finds room for a value and writes its header. The caller writes the value, lets a key lead to
    /// the place, and unpins the segment.
    pub fn room(
        &self,
        index: &dyn Index,
        lane: usize,
        head: Header,
        deadline: u64,
    ) -> Result<Room<'_>> {
        let _inside = Inside::begin();
        let need = footprint(head.len as usize, self.expires);
        if need > LARGE {
            return self.large(index, head, deadline, need);
        }
        let lane = &self.lanes[lane % self.lanes.len()];
        let mut evicted = false;
        loop {
            let seen = lane.open.load(Ordering::Acquire);
            match Open::decode(seen).filter(|open| open.at() + need <= SEGMENT) {
                None => {
                    self.open_next(index, lane, seen)?;
                    evicted = true;
                }
                Some(open) => {
                    let segment = self.segments.must(open.segment());
                    // The pin first: while the lane has the segment open it is pinned and settled.
                    segment.range.pin();
                    let (generation, at) = (open.generation(), open.at());
                    let next = Open::new(open.segment(), generation, at + need);
                    let exchanged = lane.open.compare_exchange(
                        seen,
                        next.0,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    if exchanged.is_ok() {
                        let filling = Filling { segment, generation, at };
                        let place = self.fill(&filling, head, deadline);
                        return Ok(Room { segment, place, at: at + self.head(), evicted });
                    }
                    segment.unpin();
                }
            }
        }
    }

    /// Writes a value's header; answers its place.
    pub fn fill(&self, filling: &Filling<'_>, head: Header, deadline: u64) -> Place {
        let Filling { segment, generation, at } = *filling;
        segment.write(at, &head.len.to_ne_bytes());
        segment.write(at + 4, &head.hash.to_ne_bytes());
        if self.expires {
            segment.write(at + HEADER, &deadline.to_ne_bytes());
        }
        segment.life.add(generation);
        Place::new(segment.number, generation, at)
    }

    /// Closes a lane's segment, if it is still the one seen, and opens another.
    fn open_next(&self, index: &dyn Index, lane: &Lane, seen: u64) -> Result<()> {
        let Some(opening) = lane.opening.take() else {
            let why = "the drop of a key that makes room uses the cache that makes it";
            let remedy = "have keys not insert into their cache when they are dropped";
            return Err(Error::new(ErrorKind::Deadlock, "Cache", why, remedy));
        };
        opening.goes_on_in_child();
        if lane.open.load(Ordering::Acquire) != seen {
            return Ok(());
        }
        let next = self.open(index)?;
        let open = Open::new(next.segment.number, next.generation, next.at);
        let before = lane.open.swap(open.0, Ordering::AcqRel);
        self.close(before);
        Ok(())
    }

    /// Asks what is free, for this cache and for all values that are held.
    pub fn hear(&self, now: Instant) {
        if !self.lists.lock().growth.is_due(now) {
            return;
        }
        let room = budget::room(now);
        pins::follow(room);
        let offered = self.bytes_of(|segment| segment.range.is_offered());
        self.lists.lock().growth.hear(room, offered, now);
    }

    /// The bytes of segments of some kind.
    fn bytes_of(&self, kind: impl Fn(&Segment) -> bool) -> u64 {
        let of_kind = |segment: &&Segment| segment.capacity() > 0 && kind(segment);
        self.segments.iter().filter(of_kind).map(|s| s.capacity() as u64).sum()
    }

    /// Puts a lane's segment into the queue.
    fn close(&self, open: u64) {
        let Some(open) = Open::decode(open) else { return };
        let segment = self.segments.must(open.segment());
        segment.filled.store(open.at(), Ordering::Release);
        let mut lists = self.lists.lock();
        lists.queue.push(&self.segments, segment);
        drop(lists);
        if segment.life.live() == 0 {
            self.may_be_empty(segment);
        }
        segment.unpin();
    }

    /// The deadline of the value at an offset, if values have one here.
    pub fn deadline(&self, segment: &Segment, at: usize) -> u64 {
        if !self.expires || !segment.whole(at + HEADER, EXPIRY) {
            return u64::MAX;
        }
        let mut bytes = [0; EXPIRY];
        bytes.copy_from_slice(segment.bytes(at + HEADER, EXPIRY));
        u64::from_ne_bytes(bytes)
    }

    fn large(
        &self,
        index: &dyn Index,
        head: Header,
        deadline: u64,
        need: usize,
    ) -> Result<Room<'_>> {
        let capacity = need.next_multiple_of(crate::os::page_size());
        // A capacity of exactly one shared segment would be taken for one.
        let capacity =
            if capacity == SEGMENT { capacity + crate::os::page_size() } else { capacity };
        let now = Instant::now();
        self.hear(now);
        let held = |segment: &Segment| segment.range.pins() > 0 && !segment.link.is(Name::Bare);
        let held = self.bytes_of(held);
        let lists = self.lists.lock();
        let most = lists.growth.most(lists.footprint, held);
        drop(lists);
        if capacity as u64 > most {
            // Whatever the cache gave up, it would not do.
            return Err(too_large(head.len, most));
        }
        self.tidy(index, now);
        let mut last = false;
        let mut lists = loop {
            let mut lists = self.lists.lock();
            let footprint = lists.footprint;
            if lists.growth.may_take(capacity as u64, footprint, last) {
                break lists;
            }
            drop(lists);
            if last {
                return Err(too_large(head.len, most));
            }
            last = !self.give_up_one(index);
        };
        // Counted before it is there, so that other threads leave room for it.
        lists.footprint += capacity as u64;
        let bare = lists.unmapped.pop(&self.segments);
        drop(lists);
        let provided = bare.map_or_else(|| self.segments.make(), Ok);
        let provided = provided.and_then(|segment| match map(capacity) {
            Ok(mapping) => {
                segment.provide(mapping);
                Ok(segment)
            }
            Err(error) => {
                self.lists.lock().unmapped.push(&self.segments, segment);
                Err(error)
            }
        });
        let segment = match provided {
            Ok(segment) => segment,
            Err(error) => {
                self.counted_off(capacity as u64);
                return Err(error);
            }
        };
        let filling = Filling { segment, generation: segment.life.generation(), at: 0 };
        let place = self.fill(&filling, head, deadline);
        segment.filled.store(need, Ordering::Release);
        self.lists.lock().queue.push(&self.segments, segment);
        Ok(Room { segment, place, at: self.head(), evicted: true })
    }

    /// Bytes that were counted are not there.
    pub fn counted_off(&self, bytes: u64) {
        let mut lists = self.lists.lock();
        // A child may have begun to count anew meanwhile.
        lists.footprint = lists.footprint.saturating_sub(bytes);
    }

    /// Forgets all values; the index has forgotten them already.
    pub fn clear(&self, index: &dyn Index) {
        let _inside = Inside::begin();
        for lane in &self.lanes {
            let opening = lane.opening.take();
            opening.iter().for_each(Mine::goes_on_in_child);
            let before = lane.open.swap(0, Ordering::AcqRel);
            self.close(before);
        }
        // No more than there are: other threads may fill segments all the time.
        let mut left = self.lists.lock().queue.len();
        while left > 0 {
            left -= 1;
            let mut lists = self.lists.lock();
            let Some(segment) = lists.queue.pop(&self.segments) else { return };
            segment.range.pin();
            drop(lists);
            self.expire(index, segment);
            self.put_away(segment, false);
        }
    }

    /// Footprint, target, and bytes of bookkeeping.
    pub fn sizes(&self) -> (u64, u64, u64) {
        let _inside = Inside::begin();
        let lists = self.lists.lock();
        let made = u64::from(self.segments.made());
        (lists.footprint, lists.growth.target(), made * Segment::BOOKKEEPING as u64)
    }

    /// Takes the lists' lock over a fork. The right to open a segment is not waited for: its holder
    /// makes system calls.
    pub fn hold(&self) {
        self.lists.hold();
    }

    /// Frees it.
    pub fn release(&self) {
        self.lists.release();
    }

    /// In a forked child: nobody opens a segment. With `adopt`, segments in the hands of threads that
    /// do not exist go back to the lists. The caller holds the lists' lock.
    ///
    /// Nothing is done if the calling thread is [`Inside`], here or in another cache: a handler of a
    /// signal that interrupted it forks, and it goes on with the lists, the segment and the stack that
    /// it has in its hands. What the other threads had in theirs stays out of use in such a child: a
    /// few segments each, and emptied segments that only the end of the queue finds.
    pub fn reset_in_child(&self, adopt: bool) {
        if is_inside() {
            return;
        }
        // SAFETY: held over the fork by this thread, which has no guard of it: it is not inside.
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
            if segment.link.is(Name::Queue) && segment.life.live() == 0 {
                self.may_be_empty(segment);
            }
        }
        lists.footprint = footprint;
    }

    /// Takes over a segment that a thread had in its hands that does not exist here.
    fn adopt(&self, lists: &mut Lists, segment: &Segment) {
        // Such a thread has it pinned once. With more pins, a value in it may be this thread's; then
        // it stays as it is. So it does where numbers would begin again.
        if segment.range.pins() != 1 || segment.life.generation() == GENERATIONS {
            return;
        }
        if segment.capacity() == 0 {
            lists.unmapped.push(&self.segments, segment);
        } else {
            segment.life.expire();
            lists.draining.push(&self.segments, segment);
            // Not `unpin`, which may wait for the worker: all locks are held here.
            segment.range.unpin_unseen();
        }
    }

    fn is_open(&self, segment: &Segment) -> bool {
        let opens = |lane: &Lane| Open::decode(lane.open.load(Ordering::Relaxed));
        self.lanes.iter().filter_map(opens).any(|open| open.segment() == segment.number)
    }

    /// In a child whose fork handlers did not run: frees the locks. `true`: that of the lists was
    /// held, so that they may be half changed.
    pub fn recover(&self) -> bool {
        let held = self.lists.reset_in_child();
        if !held {
            self.lists.hold();
            // The memory of such a child is of no single moment, so nothing is adopted.
            self.reset_in_child(false);
            self.lists.release();
        }
        held
    }

    /// Makes the cache empty where the lists cannot be relied on: the segments that were there are
    /// lost.
    pub fn abandon(&self, index: &dyn Index) {
        let _inside = Inside::begin();
        for lane in &self.lanes {
            lane.open.store(0, Ordering::SeqCst);
        }
        for segment in self.segments.iter() {
            // Pinned for good: it is in no list.
            segment.range.pin();
            segment.link.clear();
            self.expire(index, segment);
        }
        self.emptied.store(0, Ordering::SeqCst);
        let mut lists = self.lists.lock();
        lists.queue = List::new(Name::Queue);
        lists.free = List::new(Name::Free);
        lists.bare = List::new(Name::Bare);
        lists.unmapped = List::new(Name::Unmapped);
        lists.draining = List::new(Name::Draining);
        lists.footprint = 0;
        (lists.hand, lists.sampled) = (None, None);
    }

    /// How many values have a token, at most: the pins of shared segments, without the lanes' and
    /// those of empty segments. Allocates nothing.
    pub fn held_values(&self) -> u64 {
        let held = |segment: &Segment| {
            let own = u32::from(self.is_open(segment));
            u64::from(segment.range.pins().saturating_sub(own))
        };
        let filled = |segment: &&Segment| segment.is_shared() && !segment.link.is(Name::Bare);
        self.segments.iter().filter(filled).map(held).sum()
    }
}

pub(super) fn no_memory() -> Error {
    Error::system("Cache", "madvise(MADV_POPULATE_WRITE)", rustix::io::Errno::NOMEM)
}

/// Everything is pinned, and the cache may not grow.
pub(super) fn all_held() -> Error {
    let why = "values that the program holds keep all of the cache's memory";
    Error::new(ErrorKind::OutOfMemory, "Cache", why, "drop values soon, or raise the ceiling")
}

fn too_large(len: u32, most: u64) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        "Cache",
        format!("a value of {len} bytes does not fit the {most} bytes that the cache may have"),
        "raise the ceiling or the memory limit",
    )
}
