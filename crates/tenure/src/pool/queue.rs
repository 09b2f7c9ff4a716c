//! The queue of free runs on their way to the kernel, and the clock that says when they are due.

use super::reservation::{Reservation, Spot};
use crate::os::page_size;
use crate::runtime::fork;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::published::Part;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many runs the queue has room for.
const LENGTH: usize = 128;

struct Queue {
    /// Counts periods while anything is warm or offered.
    clock: AtomicU32,
    /// Runs in the queue.
    runs: AtomicU64,
    /// Their bytes that former users may have written.
    bytes: AtomicU64,
    /// The run of which a part is being told to the kernel, by [`Slice`]'s code. 0: none.
    slice_of: AtomicU64,
    work: Lock<Work>,
}

/// For the whole process: as the pool.
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

/// For the whole process: what readers in other processes read.
pub(super) static PUBLISHED: Part = Part::word((&raw const QUEUE.bytes).cast(), "pool.warm_bytes");

/// A run on its way between two states; nobody else has it.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub spot: Spot,
    /// To be offered, not returned.
    pub offer: bool,
    /// Bytes that are through.
    pub done: usize,
}

/// Held over a fork: a child inherits what is half done, and goes on with it.
pub(super) struct Work {
    items: [Item; LENGTH],
    len: usize,
    /// When the clock last moved. `None`: it stands still, nothing is warm or offered.
    pub looked_at: Option<Instant>,
    /// When callers began to offer what is counted next, and how much they have.
    offered: Option<(Instant, u64)>,
    /// There is pressure, and something left to give up.
    pub pressed: bool,
}

/// The time, for [`freed_at`](super::run::Run::freed_at).
#[inline]
pub(super) fn clock() -> u32 {
    QUEUE.clock.load(Ordering::Relaxed)
}

/// The lock under which the queue is worked on.
pub(super) fn work() -> &'static Lock<Work> {
    &QUEUE.work
}

/// While it lives, a part of a queued run is told to the kernel, if the run is still queued when it begins.
/// No signal comes while its thread has the queue: a handler could wait for this very thread.
pub(super) struct Slice;

impl Slice {
    /// Before the run's state is looked at.
    pub fn begin(spot: Spot) -> Slice {
        // In one order with the state for all threads: either the run is seen to have left the queue, or this is
        // seen by whoever took it out.
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

/// Waits until a slice of the run that may have begun before is through: the caller has taken the run out of the
/// queue, and is about to leave its addresses to the program. It takes no lock: its thread may have one, further up,
/// for which the queue's holder waits.
pub(super) fn wait_for_slice(spot: Spot) {
    fence(Ordering::SeqCst);
    while QUEUE.slice_of.load(Ordering::SeqCst) == code(spot) {
        std::thread::yield_now();
    }
}

/// In a child whose handlers did not run: a thread of the parent's was at it.
pub(super) fn reset_in_child() {
    QUEUE.work.reset_in_child();
    QUEUE.slice_of.store(0, Ordering::SeqCst);
}

/// Runs and bytes between two states.
pub(super) fn queued() -> (u64, u64) {
    (QUEUE.runs.load(Ordering::Relaxed), QUEUE.bytes.load(Ordering::Relaxed))
}

impl Work {
    /// Moves the clock on by the periods that have passed; not by those in which it stood still.
    pub fn advance(&mut self, now: Instant, period: Duration) {
        let Some(before) = self.looked_at else {
            self.looked_at = Some(now);
            return;
        };
        let passed = now.saturating_duration_since(before);
        let periods = (passed.as_nanos() / period.as_nanos()) as u32;
        if periods > 0 {
            QUEUE.clock.fetch_add(periods, Ordering::Relaxed);
            self.looked_at = Some(before + period * periods);
        }
    }

    /// A caller has offered `bytes`. Answers how many are offered in a second, if it is known after `shortest`.
    pub fn rate(&mut self, now: Instant, bytes: u64, shortest: Duration) -> Option<u64> {
        let (since, before) = self.offered.unwrap_or((now, 0));
        let passed = now.saturating_duration_since(since);
        let is_known = passed >= shortest;
        self.offered = if is_known { None } else { Some((since, before + bytes)) };
        is_known.then(|| (before as f64 / passed.as_secs_f64()) as u64)
    }

    /// Puts a run whose state is `QUEUED` into the queue, which has room for it.
    pub fn add(&mut self, reservation: &Reservation, spot: Spot, offer: bool) {
        let run = reservation.run(spot);
        // MADV_FREE passes over pages that another process maps too, without a word.
        let offer = offer && run.forks.load(Ordering::Relaxed) == fork::count();
        self.items[self.len] = Item { spot, offer, done: 0 };
        self.len += 1;
        QUEUE.runs.fetch_add(1, Ordering::Relaxed);
        QUEUE.bytes.fetch_add(bytes(reservation, spot), Ordering::Relaxed);
    }

    /// The run that came last.
    pub fn last(&mut self) -> Option<&mut Item> {
        self.items[..self.len].last_mut()
    }

    /// Takes the run that came last out of the queue. Its bytes count until [`count_out`].
    pub fn pop(&mut self) -> Item {
        self.len -= 1;
        QUEUE.runs.fetch_sub(1, Ordering::Relaxed);
        self.items[self.len]
    }

    /// How many runs there is room for.
    pub fn room(&self) -> usize {
        LENGTH - self.len
    }
}

/// A run that was in the queue is in another list now. Answers its bytes.
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

    /// A signal's handler may hold up, further down on its thread, what the queue's holder waits for.
    #[test]
    fn a_slice_is_waited_for_and_the_queues_lock_is_not() {
        // Threads that have a lock allocate nothing, so they tell each other by a number.
        let step = AtomicU32::new(0);
        let come_to = |number| {
            while step.load(Ordering::SeqCst) < number {
                std::thread::yield_now();
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
