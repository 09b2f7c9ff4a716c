//! The hidden mappings that wait to be torn down.
//!
//! The queue is a fixed array, so its code allocates nothing. It belongs to one process: the kernel
//! does not copy hidden mappings into a child (`MADV_DONTFORK`), so a child begins with none.

#![allow(unsafe_code, reason = "takes over the queue in a forked child")]

use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS, GAUGES};
use crate::runtime::lock::{Lock, QuietGuard, Rank};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most hidden mappings: each counts against `vm.max_map_count`, 65,530 by default.
const MOST: usize = 512;
/// How many bytes a thread tears down between two looks at the table: 2 to 6 ms of work in base
/// pages.
const CHUNK: usize = 32 << 20;

/// The queue; the module's documentation describes it.
pub(super) struct Queue {
    waiting: [PageRange; MOST],
    count: usize,
    /// Chunks that were taken and are not unmapped yet.
    in_flight: usize,
    /// The bytes that wait and those in flight.
    bytes: u64,
    /// How many chunks in a row could not be torn down.
    failed: usize,
}

/// For the whole process: one worker tears down what all threads have retired.
static QUEUE: Lock<Queue> = Lock::new(Rank::RetireQueue, Queue::none());

pub(super) type Guard = QuietGuard<'static, Queue>;

/// Locks the queue. A fork waits while it is locked, so that a child gets no copy of a mapping that
/// is being hidden.
pub(super) fn lock() -> Guard {
    brought_up_to_date(QUEUE.lock_signals_blocked())
}

/// Locks the queue. `None`: a fork holds it, or is about to, and this thread must not wait for the
/// fork.
pub(super) fn lock_unless_forking() -> Option<Guard> {
    QUEUE.lock_signals_blocked_unless_forking().map(brought_up_to_date)
}

/// The chunks, and their bytes, that were torn down while a fork held the queue.
/// For the whole process, as the queue is.
static LATE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Records that a chunk was torn down when this thread could not wait for the queue. The next
/// holder counts it.
pub(super) fn done_late(chunk: PageRange) {
    LATE[0].fetch_add(1, Ordering::Relaxed);
    LATE[1].fetch_add(chunk.len() as u64, Ordering::Relaxed);
}

fn brought_up_to_date(mut queue: Guard) -> Guard {
    let [chunks, bytes] = [0, 1].map(|n| match LATE[n].load(Ordering::Relaxed) {
        0 => 0,
        _ => LATE[n].swap(0, Ordering::Relaxed),
    });
    if chunks + bytes > 0 {
        queue.in_flight -= chunks as usize;
        queue.given_back(bytes);
        queue.publish();
    }
    queue
}

/// Called before a fork.
pub(super) fn hold() {
    QUEUE.hold();
}

/// Called after the fork.
pub(super) fn release() {
    QUEUE.release();
}

/// Called in a child whose fork handlers did not run.
pub(super) fn recover() {
    QUEUE.reset_in_child();
}

/// Called in a child, which has none of its parent's hidden mappings.
pub(super) fn reset_in_child() {
    LATE.iter().for_each(|late| late.store(0, Ordering::Relaxed));
    // SAFETY: a fork's handlers hold the lock. If none ran, this child has one thread, which has no
    // guard of the lock. The fields are numbers, and all of them are set here, so a half-finished
    // change does no harm.
    let queue = unsafe { QUEUE.held_value() };
    (queue.count, queue.in_flight, queue.bytes) = (0, 0, 0);
    queue.failed = 0;
    queue.publish();
}

impl Queue {
    const fn none() -> Queue {
        Queue {
            waiting: [PageRange { start: 0, end: 0 }; MOST],
            count: 0,
            in_flight: 0,
            bytes: 0,
            failed: 0,
        }
    }

    pub fn has_room(&self) -> bool {
        self.count < MOST
    }

    /// Adds a hidden mapping, and counts it before any thread can tear it down. The caller has
    /// checked that there is room.
    pub fn add(&mut self, hidden: PageRange) {
        add(&COUNTERS.retired_moved, 1);
        add(&COUNTERS.retired_moved_bytes, hidden.len() as u64);
        self.waiting[self.count] = hidden;
        self.count += 1;
        self.bytes += hidden.len() as u64;
        self.publish();
    }

    /// A mapping that waits.
    pub fn next(&self) -> Option<PageRange> {
        self.count.checked_sub(1).map(|last| self.waiting[last])
    }

    /// Takes the beginning of that mapping, for the caller to tear down: up to the end of the chunk
    /// that holds `first_there`, its first resident page. `None`: another thread has changed the
    /// mapping.
    pub fn take(&mut self, seen: PageRange, first_there: usize) -> Option<PageRange> {
        let last = self.count.checked_sub(1)?;
        let whole = &mut self.waiting[last];
        if *whole != seen {
            return None;
        }
        let to = (first_there / CHUNK * CHUNK).saturating_add(CHUNK).min(whole.end);
        let chunk = PageRange::new(whole.start, to);
        whole.start = to;
        if whole.start == whole.end {
            self.count = last;
        }
        self.in_flight += 1;
        Some(chunk)
    }

    /// Records that a chunk is torn down.
    pub fn done(&mut self, chunk: PageRange) {
        self.in_flight -= 1;
        self.failed = 0;
        self.given_back(chunk.len() as u64);
        self.publish();
    }

    /// Records that so many bytes of a chunk in flight are torn down.
    pub fn shrink_in_flight(&mut self, bytes: u64) {
        self.given_back(bytes);
    }

    /// Counts with the queue locked, so that whoever finds it empty finds the bytes counted.
    fn given_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        add(&COUNTERS.torn_down_bytes, bytes);
    }

    /// Puts a chunk back that could not be torn down, behind all others. At `vm.max_map_count` the
    /// kernel refuses to unmap the middle of a mapping. So a waiting range right below or above the
    /// chunk belongs to one mapping with it, which the kernel may have joined from several. As one
    /// record it is torn down from its start, where no split is needed.
    pub fn put_back(&mut self, chunk: PageRange) {
        self.in_flight -= 1;
        self.failed += 1;
        let mut whole = chunk;
        let mut at = 0;
        while at < self.count {
            let other = self.waiting[at];
            if other.end != whole.start && other.start != whole.end {
                at += 1;
                continue;
            }
            whole = PageRange::new(whole.start.min(other.start), whole.end.max(other.end));
            self.waiting.copy_within(at + 1..self.count, at);
            self.count -= 1;
            at = 0;
        }
        if self.has_room() {
            self.waiting.copy_within(..self.count, 1);
            self.waiting[0] = whole;
            self.count += 1;
        } else {
            // The table is full, so the chunk stays mapped until the process ends, as after a
            // munmap that failed.
            self.bytes -= whole.len() as u64;
        }
        self.publish();
    }

    /// How many mappings wait.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether every waiting mapping was tried, and none could be torn down.
    pub fn is_stuck(&self) -> bool {
        self.failed >= self.count
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Retired mappings that wait, and chunks in flight.
    pub fn mappings(&self) -> u64 {
        (self.count + self.in_flight) as u64
    }

    /// Whether nothing waits, and nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.in_flight == 0
    }

    fn publish(&self) {
        GAUGES.retiring_bytes.store(self.bytes, Ordering::Relaxed);
        GAUGES.retiring.store(self.mappings(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_mapping_once() {
        let mut queue = Queue::none();
        let page = crate::os::page_size();
        let whole = PageRange::new(3 * page, 9 * CHUNK + 5 * page);
        queue.add(whole);
        assert_eq!(queue.take(PageRange::new(page, 2 * page), page), None);
        let mut at = whole.start;
        let mut chunks = 0;
        while let Some(next) = queue.next() {
            assert_eq!(next.start, at);
            // A hole of more than three chunks in the middle.
            let there = if at == 2 * CHUNK { 5 * CHUNK + page } else { at };
            let chunk = queue.take(next, there).unwrap();
            assert_eq!(chunk.start, at);
            assert!(chunk.end % CHUNK == 0 || chunk.end == whole.end);
            at = chunk.end;
            chunks += 1;
            queue.done(chunk);
        }
        assert_eq!((at, queue.bytes(), chunks), (whole.end, 0, 7));
        assert!(queue.is_empty());
    }

    #[test]
    fn what_fails_waits_behind_the_others_and_is_joined() {
        let mut queue = Queue::none();
        let ranges = [(1, 3), (5, 7), (9, 12)];
        let ranges = ranges.map(|(start, end)| PageRange::new(start * CHUNK, end * CHUNK));
        ranges.into_iter().for_each(|range| queue.add(range));
        assert_eq!(queue.mappings(), 3);
        for n in [2, 1, 0] {
            assert_eq!((queue.next(), queue.is_stuck()), (Some(ranges[n]), false));
            let chunk = queue.take(ranges[n], ranges[n].start).unwrap();
            // The rest of it waits, and the chunk is in flight.
            assert_eq!(queue.mappings(), 4);
            queue.put_back(chunk);
        }
        assert!(queue.is_stuck());
        assert_eq!((queue.next(), queue.count()), (Some(ranges[2]), 3));
        let chunk = queue.take(ranges[2], ranges[2].start).unwrap();
        queue.done(chunk);
        assert!(!queue.is_stuck());
        // A mapping that the kernel has joined from two.
        queue.add(PageRange::new(3 * CHUNK, 5 * CHUNK));
        let top = queue.next().unwrap();
        let chunk = queue.take(top, top.start).unwrap();
        queue.put_back(chunk);
        assert_eq!(queue.waiting[0], PageRange::new(CHUNK, 7 * CHUNK));
        assert_eq!((queue.count(), queue.bytes()), (2, 8 * CHUNK as u64));
    }
}
