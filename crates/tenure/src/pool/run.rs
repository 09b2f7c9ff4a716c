//! The pool's record of each run.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The states of a run. A new record reads as zero.
pub(super) mod state {
    /// Never handed out.
    pub const FRESH: u32 = 0;
    /// The program has it.
    pub const IN_USE: u32 = 1;
    /// The one thread that set this state has it.
    pub const MOVING: u32 = 2;
    pub const WARM: u32 = 3;
    pub const OFFERED: u32 = 4;
    pub const RETURNED: u32 = 5;
    /// Its addresses are not the pool's. The program or the kernel has them, until all of them are
    /// free.
    pub const LEFT: u32 = 6;
    /// In the queue of runs that are being offered or returned.
    pub const QUEUED: u32 = 7;
    /// In use, and for some microseconds a thread that ends the pool has it.
    pub const TRIMMED: u32 = 8;
}

/// Facts about a run, set and cleared by its owner.
pub(super) mod flag {
    /// The program has changed the state of its mapping, or unmapped part of it. Only an allocation
    /// has this flag: a mapping leaves the pool then.
    pub const TAINTED: u32 = 1;
    /// Some of its pages came by mremap: they are separate mappings until the run is mapped anew.
    pub const MOVED: u32 = 2;
    /// Its huge part was advised.
    pub const ADVISED: u32 = 4;
    /// It was handed out as a mapping, not as an allocation.
    pub const MAPPED: u32 = 8;
    /// It is not accessible, because its last owner has unmapped it.
    pub const CLOSED: u32 = 16;
    /// It was returned to make room for another size.
    pub const MADE_ROOM: u32 = 32;
}

/// How many borders a record holds: a run that grew by moving has one for each move.
pub(super) const BORDERS: usize = 16;

/// The record of one run. A run that was never used has zeros in all fields. The fields but `state`
/// belong to the owner of the run: the lock of its list, or the thread that set `MOVING` or
/// `IN_USE`.
#[derive(Default)]
pub(super) struct Run {
    pub state: AtomicU32,
    /// Neighbours in a list, as number + 1.
    pub next: AtomicU32,
    pub prev: AtomicU32,
    /// The worker's clock when it was freed.
    pub freed_at: AtomicU32,
    /// The count of forks when its pages were last known not to be shared.
    pub forks: AtomicU32,
    pub flags: AtomicU32,
    /// Pages from the start on that may hold bytes other than zero.
    pub touched: AtomicU32,
    /// Pages from the run's start to the program's part.
    pub offset: AtomicU32,
    /// The bytes that the program asked for. They stay after the run is freed, for messages.
    pub size: AtomicU64,
    /// The pages of the run at which one mapping ends and the next begins, ascending; 0: no more.
    pub borders: [AtomicU32; BORDERS],
}

impl Run {
    pub fn is(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }
    pub fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::Relaxed);
    }
    pub fn clear(&self, flag: u32) {
        self.flags.fetch_and(!flag, Ordering::Relaxed);
    }
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed) as usize
    }
    pub fn touched(&self) -> usize {
        self.touched.load(Ordering::Relaxed) as usize
    }
    pub fn set_touched(&self, pages: usize) {
        self.touched.store(pages as u32, Ordering::Relaxed);
    }
    pub fn state(&self) -> u32 {
        loop {
            match self.state.load(Ordering::Acquire) {
                state::TRIMMED => crate::os::futex::yield_now(),
                state => return state,
            }
        }
    }
    pub fn set_state(&self, state: u32) {
        self.state.store(state, Ordering::Release);
    }
    /// Changes the state from `from` to `to`. Of several threads one succeeds.
    pub fn claim(&self, from: u32, to: u32) -> Result<(), u32> {
        let exchange =
            || self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        match exchange() {
            // It will be in use again soon, unchanged.
            Err(state::TRIMMED) if self.state() == from => self.claim(from, to),
            other => other.map(drop),
        }
    }
}
