//! Where new values go: open segments, and what is evicted to make room for the next.
//!
//! Values are appended to an open segment; a full one joins a queue. When the cache may not grow,
//! the oldest segment is emptied: values that were used since they were put there move to the new
//! open segment, the others go. That approximates LRU (it is CLOCK with segments), and no reader
//! waits: it holds pins on old segments, which are reused only when the last pin is gone.

use super::growth::Growth;
use super::segment::{footprint, Header, Segment, Segments, EXPIRY, HEADER, SEGMENT};
use super::table::Place;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::node::Phase;
use crate::keeper::pin;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Values that take more than this have a segment of their own.
const LARGE: usize = SEGMENT / 4;

/// What eviction asks of the index.
pub(super) trait Index {
    /// The place, with its used bit, if a key leads to it.
    fn holds(&self, hash: u32, place: Place) -> Option<Place>;
    /// Makes the key that leads to `from` lead to `to`; `false`: none does.
    fn relocate(&self, hash: u32, from: Place, to: Place) -> bool;
    /// Forgets the key that leads to the place; `false`: none does.
    fn forget(&self, hash: u32, place: Place) -> bool;
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
    lanes: Box<[Mutex<Option<Open>>]>,
    pool: Mutex<Pool>,
    /// Purged bytes that readers have met and the pool has not heard of.
    met: AtomicU64,
    /// Closed segments that may have lost their last value.
    emptied: Mutex<Vec<u32>>,
    pub expires: bool,
}

/// An open segment, pinned.
struct Open {
    segment: u32,
    at: usize,
}

pub(super) struct Pool {
    /// Closed segments, oldest first.
    pub queue: VecDeque<u32>,
    /// Empty, with memory, volatile.
    free: Vec<u32>,
    /// Empty, without memory, pinned.
    bare: Vec<u32>,
    /// Large values' segments without a mapping, pinned.
    unmapped: Vec<u32>,
    /// Out of date, but a reader still has them pinned.
    draining: Vec<u32>,
    /// Bytes of segments with memory.
    pub footprint: u64,
    pub growth: Growth,
    /// Where the next look for purges begins.
    pub hand: usize,
    /// Where the next look for sparse segments begins.
    pub sampled: usize,
}

/// Room for a value in a pinned segment; the caller unpins it.
pub(super) struct Room<'a> {
    pub segment: &'a Segment,
    pub place: Place,
    /// Where the value's bytes go.
    pub at: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Space {
    pub fn new(lanes: usize, ceiling: u64, priority: u8, expires: bool) -> Space {
        let floor = (lanes as u64 + 2) * SEGMENT as u64;
        Space {
            segments: Segments::new(priority),
            counts: SpaceCounts::default(),
            lanes: (0..lanes).map(|_| Mutex::new(None)).collect(),
            pool: Mutex::new(Pool {
                queue: VecDeque::new(),
                free: Vec::new(),
                bare: Vec::new(),
                unmapped: Vec::new(),
                draining: Vec::new(),
                footprint: 0,
                growth: Growth::new(floor, ceiling),
                hand: 0,
                sampled: 0,
            }),
            met: AtomicU64::new(0),
            emptied: Mutex::new(Vec::new()),
            expires,
        }
    }

    pub fn segment(&self, number: u32) -> &Segment {
        self.segments.get(number).expect("numbers in the pool have been made")
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
        let segment = self.segment(place.segment());
        if segment.generation() == place.generation()
            && segment.live.fetch_sub(1, Ordering::AcqRel) == 1
        {
            lock(&self.emptied).push(place.segment());
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
        let need = footprint(head.len as usize, self.expires);
        if need > LARGE {
            return self.large(index, head, deadline, need);
        }
        let mut open = lock(&self.lanes[lane % self.lanes.len()]);
        if open.as_ref().is_none_or(|o| o.at + need > SEGMENT) {
            if let Some(full) = open.take() {
                self.close(full.segment);
            }
            *open = Some(self.open(index)?);
        }
        let open = open.as_mut().expect("opened above");
        let segment = self.segment(open.segment);
        let at = open.at;
        open.at += need;
        // The lane has it pinned, so this pin needs no more.
        pin::pin(segment.node());
        let place = self.fill(segment, at, need, head, deadline);
        Ok(Room { segment, place, at: at + self.head() })
    }

    pub fn fill(
        &self,
        segment: &Segment,
        at: usize,
        need: usize,
        head: Header,
        deadline: u64,
    ) -> Place {
        segment.write(at, &head.len.to_ne_bytes());
        segment.write(at + 4, &head.hash.to_ne_bytes());
        if self.expires {
            segment.write(at + HEADER, &deadline.to_ne_bytes());
        }
        segment.filled.store((at + need) as u32, Ordering::Release);
        segment.values.fetch_add(1, Ordering::Relaxed);
        segment.live.fetch_add(1, Ordering::AcqRel);
        Place::new(segment.number, segment.generation(), at)
    }

    fn close(&self, number: u32) {
        let segment = self.segment(number);
        if segment.live.load(Ordering::Acquire) == 0 {
            lock(&self.emptied).push(number);
        }
        lock(&self.pool).queue.push_back(number);
        segment.unpin();
    }

    /// The next segment to fill, pinned, perhaps with values that moved in already.
    fn open(&self, index: &dyn Index) -> Result<Open> {
        let now = Instant::now();
        let mut pool = lock(&self.pool);
        self.tidy(&mut pool, index, now);
        let spare = pool.free.pop();
        let last = pool.free.is_empty();
        let number = match spare {
            Some(number) => {
                let segment = self.segment(number);
                // Its contents do not matter, only that its pages can be written again.
                let taken = pin::pin(segment.node()) || segment.settle().is_ok();
                if !taken {
                    segment.unpin();
                    pool.free.push(number);
                    return Err(no_memory());
                }
                segment.reset();
                number
            }
            None => self.bare(&mut pool)?,
        };
        let into = self.segment(number);
        if last && !self.compact(&mut pool, index, into) {
            // The last spare segment takes in what survives of the oldest, which is spare then.
            let footprint = pool.footprint;
            if !pool.growth.may_grow(SEGMENT as u64, footprint, now) {
                self.evict(&mut pool, index, into);
            }
        }
        Ok(Open {
            segment: number,
            at: self.segment(number).filled.load(Ordering::Relaxed) as usize,
        })
    }

    /// An empty segment with fresh memory, pinned.
    fn bare(&self, pool: &mut Pool) -> Result<u32> {
        let number = match pool.bare.pop() {
            Some(number) => number,
            None => self.segments.make(SEGMENT)?.number,
        };
        pool.footprint += SEGMENT as u64;
        Ok(number)
    }

    /// What is to be done before the next segment is chosen.
    fn tidy(&self, pool: &mut Pool, index: &dyn Index, now: Instant) {
        for number in std::mem::take(&mut pool.draining) {
            let segment = self.segment(number);
            pin::pin(segment.node());
            self.retire(pool, segment);
        }
        for number in std::mem::take(&mut *lock(&self.emptied)) {
            self.retire_if_empty(pool, number);
        }
        let met = self.met.swap(0, Ordering::Relaxed);
        if met > 0 {
            let footprint = pool.footprint;
            pool.growth.purged(met, footprint, now);
        }
        self.look_for_purges(pool, now);
        for _ in 0..4 {
            if !pool.growth.too_large(pool.footprint) {
                break;
            }
            match pool.free.pop() {
                Some(number) => self.strip(pool, number),
                None => {
                    let Some(victim) = self.victim(pool) else { break };
                    self.drop_values(victim, index);
                    self.retire(pool, victim);
                }
            }
        }
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

    /// Puts away a segment that is out of date and that the caller has pinned.
    pub fn retire(&self, pool: &mut Pool, segment: &Segment) {
        if segment.node().load().pins() > 1 {
            segment.unpin();
            pool.draining.push(segment.number);
            return;
        }
        if segment.capacity() != SEGMENT {
            pool.footprint -= segment.capacity() as u64;
            segment.reset();
            segment.unmap();
            pool.unmapped.push(segment.number);
        } else if segment.all_lost() && segment.node().load().phase() == Phase::Resident {
            // Its pages are gone already.
            segment.reset();
            pool.footprint -= SEGMENT as u64;
            pool.bare.push(segment.number);
        } else if pool.growth.too_large(pool.footprint) && segment.settle().is_ok() {
            segment.reset();
            segment.give_back();
            pool.footprint -= SEGMENT as u64;
            pool.bare.push(segment.number);
        } else {
            segment.reset();
            segment.unpin();
            pool.free.push(segment.number);
        }
    }

    /// Gives a free segment's memory back.
    fn strip(&self, pool: &mut Pool, number: u32) {
        let segment = self.segment(number);
        pin::pin(segment.node());
        self.retire(pool, segment);
    }

    fn large(
        &self,
        index: &dyn Index,
        head: Header,
        deadline: u64,
        need: usize,
    ) -> Result<Room<'_>> {
        let capacity = need.next_multiple_of(crate::os::page_size());
        // A capacity of exactly one standard segment would be taken for one.
        let capacity =
            if capacity == SEGMENT { capacity + crate::os::page_size() } else { capacity };
        let now = Instant::now();
        let mut pool = lock(&self.pool);
        self.tidy(&mut pool, index, now);
        loop {
            let footprint = pool.footprint;
            if pool.growth.may_grow(capacity as u64, footprint, now) {
                break;
            }
            if let Some(number) = pool.free.pop() {
                let segment = self.segment(number);
                pin::pin(segment.node());
                if segment.settle().is_ok() {
                    segment.give_back();
                    pool.footprint -= SEGMENT as u64;
                    pool.bare.push(number);
                    continue;
                }
                segment.unpin();
                pool.free.push(number);
                return Err(no_memory());
            }
            let Some(victim) = self.victim(&mut pool) else {
                if pool.growth.target() < capacity as u64 {
                    return Err(too_large(head.len, pool.growth.target()));
                }
                break;
            };
            self.drop_values(victim, index);
            self.retire(&mut pool, victim);
        }
        let segment = match pool.unmapped.pop() {
            Some(number) => {
                let segment = self.segment(number);
                if let Err(error) = self.segments.provide(segment, capacity) {
                    pool.unmapped.push(number);
                    return Err(error);
                }
                segment
            }
            None => self.segments.make(capacity)?,
        };
        pool.footprint += segment.capacity() as u64;
        let place = self.fill(segment, 0, need, head, deadline);
        pool.queue.push_back(segment.number);
        Ok(Room { segment, place, at: self.head() })
    }

    /// Forgets all values; the index has forgotten them already.
    pub fn clear(&self) {
        for lane in &self.lanes {
            if let Some(open) = lock(lane).take() {
                self.close(open.segment);
            }
        }
        let mut pool = lock(&self.pool);
        while let Some(number) = pool.queue.pop_front() {
            let segment = self.segment(number);
            pin::pin(segment.node());
            segment.next_generation();
            self.retire(&mut pool, segment);
        }
    }

    /// Footprint, target, and bytes of bookkeeping.
    pub fn sizes(&self) -> (u64, u64, u64) {
        let pool = lock(&self.pool);
        let made = u64::from(self.segments.made());
        (pool.footprint, pool.growth.target(), made * Segment::BOOKKEEPING as u64)
    }

    /// All locks, for a fork, in the order in which they nest.
    pub fn lock_all(&self) -> Locked<'_> {
        Locked {
            _lanes: self.lanes.iter().map(lock).collect(),
            _pool: lock(&self.pool),
            _emptied: lock(&self.emptied),
        }
    }
}

/// See [`Space::lock_all`].
pub(super) struct Locked<'a> {
    _emptied: MutexGuard<'a, Vec<u32>>,
    _pool: MutexGuard<'a, Pool>,
    _lanes: Vec<MutexGuard<'a, Option<Open>>>,
}

fn no_memory() -> Error {
    Error::system("Cache", "madvise(MADV_POPULATE_WRITE)", rustix::io::Errno::NOMEM)
}

fn too_large(len: u32, target: u64) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        "Cache",
        format!("a value of {len} bytes does not fit the {target} bytes that the cache may have"),
        "raise the ceiling or the memory limit",
    )
}
