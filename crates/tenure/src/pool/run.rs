//! What the pool knows of each run.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where a run is in its life. Zero is what fresh bookkeeping reads.
pub(super) mod state {
    /// Never handed out.
    pub const FRESH: u32 = 0;
    /// The program's.
    pub const IN_USE: u32 = 1;
    /// Of the one thread that set it.
    pub const MOVING: u32 = 2;
    pub const WARM: u32 = 3;
    pub const OFFERED: u32 = 4;
    pub const RETURNED: u32 = 5;
    /// Its addresses are not the pool's: the program or the kernel has them, until all of them are free.
    pub const LEFT: u32 = 6;
    /// In the queue of what is offered or returned.
    pub const QUEUED: u32 = 7;
    /// In use, and for some microseconds in the hands of a thread that ends the pool.
    pub const TRIMMED: u32 = 8;
}

/// Facts about a run, set and cleared by its owner.
pub(super) mod flag {
    /// The program has changed its mapping's state, or unmapped part of it: an allocation, for a mapping
    /// leaves the pool then.
    pub const TAINTED: u32 = 1;
    /// Pages came to it by mremap: they are mappings of their own until it is mapped anew.
    pub const MOVED: u32 = 2;
    /// Its huge part was advised.
    pub const ADVISED: u32 = 4;
    /// It was handed out as a mapping, not as an allocation.
    pub const MAPPED: u32 = 8;
    /// It may not be accessed, for its last owner has unmapped it.
    pub const CLOSED: u32 = 16;
    /// It was returned so that another size had room.
    pub const MADE_ROOM: u32 = 32;
}

/// Borders that a run remembers: a run that grew by moving has one for each time.
pub(super) const BORDERS: usize = 16;

/// One run's bookkeeping. Zero in all fields for a run that was never used. Except for the state,
/// fields belong to the owner of the run: its list's lock, or the thread that set `MOVING` or `IN_USE`.
#[derive(Default)]
pub(super) struct Run {
    pub state: AtomicU32,
    /// Neighbours in a list, as number + 1.
    pub next: AtomicU32,
    pub prev: AtomicU32,
    /// The worker's clock when it was freed.
    pub freed_at: AtomicU32,
    /// Forks seen when its pages were last known not to be shared.
    pub forks: AtomicU32,
    pub flags: AtomicU32,
    /// Pages from the start on that may hold something else than zeros.
    pub touched: AtomicU32,
    /// Pages from the run's start to what the program was given.
    pub offset: AtomicU32,
    /// Bytes that were asked for; kept after the run is freed, for messages.
    pub size: AtomicU64,
    /// Where in the run a mapping ends and the next begins, in pages, ascending; 0: no more.
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
                state::TRIMMED => std::thread::yield_now(),
                state => return state,
            }
        }
    }
    pub fn set_state(&self, state: u32) {
        self.state.store(state, Ordering::Release);
    }
    /// Moves from one state to another, for the one thread that succeeds.
    pub fn claim(&self, from: u32, to: u32) -> Result<(), u32> {
        let exchange =
            || self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        match exchange() {
            // It is about to be in use again, with nothing of it changed.
            Err(state::TRIMMED) if self.state() == from => self.claim(from, to),
            other => other.map(drop),
        }
    }
}
