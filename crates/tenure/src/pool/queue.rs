//! The queue of free runs on their way to the kernel, and the clock that tells when a run is due.

use super::reservation::{Reservation, Spot};
use crate::os::page_size;
use crate::runtime::fork;
use crate::runtime::lock::{self, Lock, Rank};
use crate::runtime::published::Part;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The queue's size, in runs.
const LENGTH: usize = 128;

struct Queue {
    /// Counts periods while any run is warm or offered.
    clock: AtomicU32,
    /// The number of runs in the queue.
    runs: AtomicU64,
    /// The bytes of these runs that former users may have written.
    bytes: AtomicU64,
    /// The run of which a part is being offered or returned, in the code of [`Slice`]. 0: none.
    slice_of: AtomicU64,
    work: Lock<Work>,
}

/// For the whole process, as the pool is.
static QUEUE: Queue = Queue {
    clock: AtomicU32::new(0),
    runs: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    slice_of: AtomicU64::new(0),
    work: Lock::new(
        Rank::PoolDecay,
        Work {
            items: [Item { spot: Spot { class: 0, index: 0 }, offer: false, done: 0 }; LENGTH],
            len: 0,
            looked_at: None,
            offered: None,
            pressed: false,
        },
    ),
};

/// For the whole process: the counter that other processes read.
pub(super) static PUBLISHED: Part = Part::word((&raw const QUEUE.bytes).cast(), "pool.warm_bytes");

/// A run on its way between two states. The queue alone has it.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub spot: Spot,
    /// The run is to be offered, not returned.
    pub offer: bool,
    /// The bytes that are done.
    pub done: usize,
}

/// A fork holds its lock: a child inherits a half-finished queue, and continues with it.
pub(super) struct Work {
    items: [Item; LENGTH],
    len: usize,
    /// The time at which the clock last moved. `None`: the clock stands still, because no run is
    /// warm or offered.
    pub looked_at: Option<Instant>,
    /// When callers began to offer the bytes that are counted next, and how many they have offered.
    offered: Option<(Instant, u64)>,
    /// There is memory pressure, and some run still has pages to give up.
    pub pressed: bool,
}

/// The time, for [`freed_at`](super::run::Run::freed_at).
#[inline]
pub(super) fn clock() -> u32 {
    QUEUE.clock.load(Ordering::Relaxed)
}

/// The lock of the queue.
pub(super) fn work() -> &'static Lock<Work> {
    &QUEUE.work
}

/// While it lives, this thread offers or returns a part of a queued run, if the run is still queued
/// at the start. Signals are blocked while its thread has the queue: a handler could wait for this
/// very thread.
pub(super) struct Slice;

impl Slice {
    /// Call it before the run's state is read.
    pub fn begin(spot: Spot) -> Slice {
        // This store and the run's state have one order for all threads. Either this thread sees
        // that the run has left the queue, or the thread that took it out sees this store.
        QUEUE.slice_of.store(code(spot), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Slice
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        QUEUE.slice_of.store(0, Ordering::SeqCst);
    }
}

fn code(spot: Spot) -> u64 {
    ((spot.class as u64) << 32 | u64::from(spot.index)) + 1
}

/// Waits until a slice of the run that may have begun before is done. The caller has taken the run
/// out of the queue, and is about to leave its addresses to the program. It takes no lock: an
/// interrupted function of its thread may hold one for which the queue's holder waits.
pub(super) fn wait_for_slice(spot: Spot) {
    lock::assert_not_held(Rank::PoolDecay);
    fence(Ordering::SeqCst);
    while QUEUE.slice_of.load(Ordering::SeqCst) == code(spot) {
        crate::os::futex::yield_now();
    }
}

/// Called in a child whose fork handlers did not run: a thread of the parent may have held the
/// queue.
pub(super) fn reset_in_child() {
    QUEUE.work.reset_in_child();
    QUEUE.slice_of.store(0, Ordering::SeqCst);
}

/// The runs and the bytes between two states. Such a run still has all its pages, or some.
pub(super) fn queued() -> (u64, u64) {
    (QUEUE.runs.load(Ordering::Relaxed), QUEUE.bytes.load(Ordering::Relaxed))
}

impl Work {
    /// Advances the clock by the periods that have passed while it did not stand still, and by
    /// `at_most` of them.
    pub fn advance(&mut self, now: Instant, period: Duration, at_most: u32) {
        let Some(before) = self.looked_at else {
            self.looked_at = Some(now);
            return;
        };
        let passed = now.saturating_duration_since(before);
        let periods = (passed.as_nanos() / period.as_nanos()) as u32;
        if periods > 0 {
            QUEUE.clock.fetch_add(periods.min(at_most), Ordering::Relaxed);
            self.looked_at = Some(before + period * periods);
        }
    }

    /// Records that a caller has offered `bytes`. Returns how many bytes callers offer in a second,
    /// once `shortest` has passed.
    pub fn rate(&mut self, now: Instant, bytes: u64, shortest: Duration) -> Option<u64> {
        let (since, before) = self.offered.unwrap_or((now, 0));
        let passed = now.saturating_duration_since(since);
        let is_known = passed >= shortest;
        self.offered = if is_known { None } else { Some((since, before + bytes)) };
        is_known.then(|| (before as f64 / passed.as_secs_f64()) as u64)
    }

    /// Puts a run whose state is `QUEUED` into the queue. The queue has room for it.
    pub fn add(&mut self, reservation: &Reservation, spot: Spot, offer: bool) {
        let run = reservation.run(spot);
        // MADV_FREE skips pages that another process maps too, and reports nothing.
        let offer = offer && run.forks.load(Ordering::Relaxed) == fork::count();
        self.items[self.len] = Item { spot, offer, done: 0 };
        self.len += 1;
        QUEUE.runs.fetch_add(1, Ordering::Relaxed);
        QUEUE.bytes.fetch_add(bytes(reservation, spot), Ordering::Relaxed);
    }

    /// The run that was added last.
    pub fn last(&mut self) -> Option<&mut Item> {
        self.items[..self.len].last_mut()
    }

    /// Takes the run that was added last out of the queue. Its bytes count until [`count_out`].
    pub fn pop(&mut self) -> Item {
        self.len -= 1;
        QUEUE.runs.fetch_sub(1, Ordering::Relaxed);
        self.items[self.len]
    }

    /// How many more runs fit.
    pub fn room(&self) -> usize {
        LENGTH - self.len
    }
}

/// Records that a run of the queue is in another list now. Returns its bytes.
pub(super) fn count_out(reservation: &Reservation, spot: Spot) -> u64 {
    let bytes = bytes(reservation, spot);
    QUEUE.bytes.fetch_sub(bytes, Ordering::Relaxed);
    bytes
}

fn bytes(reservation: &Reservation, spot: Spot) -> u64 {
    (reservation.run(spot).touched() * page_size()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPOT: Spot = Spot { class: 3, index: 5 };

    /// A signal handler may run above a function of its thread that holds a lock for which the
    /// queue's holder waits.
    #[test]
    fn a_slice_is_waited_for_and_the_queues_lock_is_not() {
        // Also where no test ran before: forks hold the queue's lock.
        super::super::decay::service();
        // A thread that holds a lock must not allocate, so the threads signal each other by a
        // number.
        let step = AtomicU32::new(0);
        let come_to = |number| {
            while step.load(Ordering::SeqCst) < number {
                crate::os::futex::yield_now();
            }
        };
        let tell = |number| step.store(number, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let work = work().lock_unless_mine();
                tell(1);
                come_to(2);
                let slice = Slice::begin(SPOT);
                tell(3);
                std::thread::sleep(Duration::from_millis(50));
                tell(4);
                drop(slice);
                come_to(5);
                drop(work);
            });
            come_to(1);
            wait_for_slice(SPOT);
            tell(2);
            come_to(3);
            wait_for_slice(Spot { class: 3, index: 6 });
            wait_for_slice(SPOT);
            let is_through = step.load(Ordering::SeqCst) == 4;
            tell(5);
            assert!(is_through);
        });
    }
}
