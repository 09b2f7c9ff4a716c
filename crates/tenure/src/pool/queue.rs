//! The queue of free runs on their way to the kernel, and the clock that says when they are due.

use super::territory::{Spot, Territory};
use crate::os::page_size;
use crate::runtime::fork;
use crate::runtime::lock::{Guard, Lock, Rank};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A visit's work takes 2 ms.
const PATIENCE: Duration = Duration::from_millis(10);
/// How many runs the queue has room for.
const LENGTH: usize = 128;

struct Queue {
    /// Counts periods while anything is warm or offered.
    clock: AtomicU32,
    /// Runs in the queue.
    runs: AtomicU64,
    /// Their bytes that former users may have written.
    bytes: AtomicU64,
    work: Lock<Work>,
}

static QUEUE: Queue = Queue {
    clock: AtomicU32::new(0),
    runs: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
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

/// The same for a thread that allocates or frees. It does not wait for ever: it may be a signal's handler, and whoever
/// has the lock may wait for a list that the handler's thread was changing.
pub(super) fn work_soon() -> Option<Guard<'static, Work>> {
    let until = Instant::now() + PATIENCE;
    loop {
        let work = QUEUE.work.try_lock();
        if work.is_some() || QUEUE.work.is_guarded_here() || Instant::now() >= until {
            return work;
        }
        std::thread::yield_now();
    }
}

/// Waits until a slice that may have begun before is through: the caller has taken a run out of the queue, and
/// is about to leave its addresses to the program.
pub(super) fn wait_for_slice() {
    drop(QUEUE.work.lock_unless_mine());
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
    pub fn add(&mut self, territory: &Territory, spot: Spot, offer: bool) {
        let run = territory.run(spot);
        // MADV_FREE passes over pages that another process maps too, without a word.
        let offer = offer && run.forks.load(Ordering::Relaxed) == fork::count();
        self.items[self.len] = Item { spot, offer, done: 0 };
        self.len += 1;
        QUEUE.runs.fetch_add(1, Ordering::Relaxed);
        QUEUE.bytes.fetch_add(bytes(territory, spot), Ordering::Relaxed);
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
pub(super) fn count_out(territory: &Territory, spot: Spot) -> u64 {
    let bytes = bytes(territory, spot);
    QUEUE.bytes.fetch_sub(bytes, Ordering::Relaxed);
    bytes
}

fn bytes(territory: &Territory, spot: Spot) -> u64 {
    (territory.run(spot).touched() * page_size()) as u64
}
