//! When nobody reads any more what was taken out of a table.
//!
//! A reader counts itself in one of two counters while it reads; it waits for nobody. What a writer
//! unlinks can be freed once each counter was seen at zero after the unlinking, at whatever two
//! moments: a reader that can still reach the unlinked thing was counted before, and stays counted
//! in one of the two. (Both at zero at one moment, and new readers kept out, means that nobody reads
//! at all: then a writer may move things.) New readers are led to the counter that was seen at zero first, so that the
//! other one empties.

use crate::sync::{
    barrier_after_rmw, fence, section_begins, section_ends, AtomicU32, AtomicU64, Ordering,
};

/// The low bits of a counter: readers now. The high bits: lookups ever, for the statistics.
const READERS: u64 = (1 << 20) - 1;
const LOOKUP: u64 = 1 << 20;

/// See the module's head.
#[repr(C)]
pub(super) struct Epoch {
    counters: [AtomicU64; 2],
    /// The counter that new readers use: 0 or 1.
    current: AtomicU32,
    /// Something waits for readers to leave.
    pending: AtomicU32,
    /// New readers have to wait: a writer moves things.
    closed: AtomicU32,
}

/// What a batch of unlinked things has seen of the two counters.
#[derive(Clone, Copy, Default)]
pub(super) struct Grace {
    empty: [bool; 2],
}

impl Epoch {
    pub fn new() -> Epoch {
        Epoch {
            current: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            closed: AtomicU32::new(0),
            counters: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// Counts a reader; the answer goes to [`Epoch::leave`]. `lookup`: it counts in [`Epoch::lookups`].
    /// `None`: readers are kept out; the caller waits for the writers' lock and tries again.
    #[inline]
    pub fn enter(&self, lookup: bool) -> Option<usize> {
        section_begins();
        let at = self.current.load(Ordering::Relaxed) as usize & 1;
        let one = if lookup { LOOKUP + 1 } else { 1 };
        self.counters[at].fetch_add(one, Ordering::SeqCst);
        // What this reader reads from now on, it reads after it was counted.
        barrier_after_rmw();
        if self.closed.load(Ordering::Acquire) == 0 {
            return Some(at);
        }
        self.counters[at].fetch_sub(one, Ordering::SeqCst);
        section_ends();
        None
    }

    /// Keeps new readers out if there are none now. `true`: the caller may move what they read, and
    /// then calls [`Epoch::open`]. Under the writers' lock.
    pub fn close(&self) -> bool {
        self.closed.store(1, Ordering::Relaxed);
        // Either a reader sees this, or it is counted below.
        fence(Ordering::SeqCst);
        let count = |c: &AtomicU64| c.load(Ordering::SeqCst) & READERS;
        let nobody = self.counters.iter().all(|counter| count(counter) == 0);
        if !nobody {
            self.open();
        }
        nobody
    }

    /// Lets readers in again.
    pub fn open(&self) {
        self.closed.store(0, Ordering::Release);
    }

    /// Ends a reader. `true`: something may wait for just this one; call [`Epoch::pass`] for it.
    #[inline]
    pub fn leave(&self, at: usize) -> bool {
        let before = self.counters[at].fetch_sub(1, Ordering::SeqCst);
        section_ends();
        // Either this sees `pending`, or the thread that sets it sees that the reader is gone.
        barrier_after_rmw();
        before & READERS == 1 && self.pending.load(Ordering::Relaxed) != 0
    }

    /// Whether something waits for readers.
    #[inline]
    pub fn pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) != 0
    }

    /// Says whether something waits for readers. Under the writers' lock, before [`Epoch::pass`].
    pub fn set_pending(&self, pending: bool) {
        self.pending.store(u32::from(pending), Ordering::Relaxed);
    }

    /// Looks at the counters for a batch that was unlinked before; `true`: nobody reads it any more.
    /// Under the writers' lock.
    pub fn pass(&self, grace: &mut Grace) -> bool {
        // The unlinking, and `pending`, are visible to every reader that is not counted below.
        fence(Ordering::SeqCst);
        for at in 0..2 {
            // Acquire: what the last reader read, it read before the caller changes it.
            let readers = self.counters[at].load(Ordering::SeqCst) & READERS;
            grace.empty[at] |= readers == 0;
        }
        let current = self.current.load(Ordering::Relaxed) as usize & 1;
        if !grace.empty[current] && grace.empty[1 - current] {
            self.current.store(1 - current as u32, Ordering::Relaxed);
        }
        grace.empty == [true, true]
    }

    /// Lookups ever.
    pub fn lookups(&self) -> u64 {
        self.counters.iter().map(|c| c.load(Ordering::Relaxed) / LOOKUP).sum()
    }

    /// In a forked child whose only thread reads nothing: the parent's readers do not exist.
    pub fn forget_readers(&self) {
        for counter in &self.counters {
            counter.fetch_and(!READERS, Ordering::SeqCst);
        }
    }
}
