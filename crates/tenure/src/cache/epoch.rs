//! Finds out when no reader can read any more what a writer took out of a table.
//!
//! A reader counts itself in one of two counters while it reads, and never waits. A writer may free
//! an unlinked thing after it has seen each counter at zero since the unlinking, at any two
//! moments. A reader that can still reach the unlinked thing was counted before the unlinking, and
//! stays counted in one of the two counters. (If both are zero at one moment and new readers are
//! kept out, no thread reads at all: then a writer may move things.) After the writer has seen one
//! counter at zero, it leads new readers to that counter, so that the other one empties.

use crate::sync::{
    barrier_after_rmw, fence, section_begins, section_ends, sections_in, AtomicU32, AtomicU64,
    Ordering,
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
    /// Whether the table waits for readers to leave: 1 or 0.
    pending: AtomicU32,
    /// 1: new readers have to wait, because a writer moves things.
    closed: AtomicU32,
}

/// What a writer has seen of the two counters since it unlinked a batch.
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

    /// Counts a reader. The caller passes the result to [`Epoch::leave`]. `lookup`: it counts in
    /// [`Epoch::lookups`]. Returns `None` if readers are kept out: the caller waits for the
    /// writers' lock and tries again.
    #[inline]
    pub fn enter(&self, lookup: bool) -> Option<usize> {
        let at = self.current.load(Ordering::Relaxed) as usize & 1;
        section_begins(self.address_of(at));
        let one = if lookup { LOOKUP + 1 } else { 1 };
        self.counters[at].fetch_add(one, Ordering::SeqCst);
        // What this reader reads from here on, it reads after it was counted.
        barrier_after_rmw();
        if self.closed.load(Ordering::Acquire) == 0 {
            return Some(at);
        }
        self.counters[at].fetch_sub(one, Ordering::SeqCst);
        section_ends(self.address_of(at));
        None
    }

    #[inline]
    fn address_of(&self, at: usize) -> usize {
        std::ptr::from_ref(&self.counters[at]).addr()
    }

    /// Keeps new readers out if there are none now. Returns `true` if the caller may move what
    /// readers read; it then calls [`Epoch::open`]. Under the writers' lock.
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

    /// Ends a reader. Returns `true` if a writer may wait for this reader alone: the caller then
    /// calls [`Epoch::pass`].
    #[inline]
    pub fn leave(&self, at: usize) -> bool {
        let before = self.counters[at].fetch_sub(1, Ordering::SeqCst);
        section_ends(self.address_of(at));
        // Either this sees `pending`, or the thread that sets it sees that the reader is gone.
        barrier_after_rmw();
        before & READERS == 1 && self.pending.load(Ordering::Relaxed) != 0
    }

    /// Returns whether the table waits for readers.
    #[inline]
    pub fn pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) != 0
    }

    /// Sets whether the table waits for readers. Under the writers' lock, before [`Epoch::pass`].
    pub fn set_pending(&self, pending: bool) {
        self.pending.store(u32::from(pending), Ordering::Relaxed);
    }

    /// Looks at the counters for a batch that was unlinked before. Returns `true` if no reader can
    /// read the batch any more. Under the writers' lock.
    pub fn pass(&self, grace: &mut Grace) -> bool {
        // Every reader that is not counted below sees the unlinking and `pending`.
        fence(Ordering::SeqCst);
        for at in 0..2 {
            // Acquire: the last reader's reads come before the changes of the caller.
            let readers = self.counters[at].load(Ordering::SeqCst) & READERS;
            grace.empty[at] |= readers == 0;
        }
        let current = self.current.load(Ordering::Relaxed) as usize & 1;
        if !grace.empty[current] && grace.empty[1 - current] {
            self.current.store(1 - current as u32, Ordering::Relaxed);
        }
        grace.empty == [true, true]
    }

    /// Returns the number of lookups so far.
    pub fn lookups(&self) -> u64 {
        self.counters.iter().map(|c| c.load(Ordering::Relaxed) / LOOKUP).sum()
    }

    /// Forgets the parent's readers, which do not exist in a forked child. The child's only thread,
    /// the caller, reads if it forked inside a key's code.
    pub fn forget_other_readers(&self) {
        for at in 0..2 {
            let counter = &self.counters[at];
            let before = counter.load(Ordering::SeqCst);
            let readers = before & READERS;
            // A signal handler forks at any point: a section is noted first, and counted then.
            let own = sections_in(self.address_of(at)).map_or(readers, |own| own.min(readers));
            counter.store(before - readers + own, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// There is a reader at all times. Else what is removed under load would never be freed.
    #[test]
    fn readers_that_overlap_keep_no_batch_for_ever() {
        let epoch = Epoch::new();
        // One reader in each counter.
        let mut readers = VecDeque::from([epoch.enter(false).unwrap()]);
        assert!(!epoch.pass(&mut Grace::default()));
        readers.push_back(epoch.enter(false).unwrap());
        assert_ne!(readers[0], readers[1], "nothing would be tested");
        let mut grace = Grace::default();
        let over = (0..100).position(|_| {
            let over = epoch.pass(&mut grace);
            readers.push_back(epoch.enter(false).unwrap());
            epoch.leave(readers.pop_front().unwrap());
            over
        });
        assert!(over.is_some(), "the batch waits for new readers");
        readers.into_iter().for_each(|reader| _ = epoch.leave(reader));
    }
}
