//! The bar of a process that may touch only what it had pinned when it was made: a child without
//! userfaultfd, of memory that threads touch without pins.

use crate::sync::{AtomicU32, AtomicU8, Ordering};

/// There is no bar.
const OPEN: u8 = 0;
const BARRED: u8 = 1;
/// A thread ends the bar: nothing is closed any more, and pins are not yet allowed.
const ENDING: u8 = 2;

pub(super) struct Bar {
    state: AtomicU8,
    /// Threads that close chunks now.
    closing: AtomicU32,
}

impl Bar {
    pub fn new() -> Bar {
        Bar { state: AtomicU8::new(OPEN), closing: AtomicU32::new(0) }
    }

    #[inline]
    pub fn is_set(&self) -> bool {
        self.state.load(Ordering::SeqCst) != OPEN
    }

    /// In a child: its parent's threads that were closing chunks are not in it.
    pub fn reset_in_child(&self) {
        self.closing.store(0, Ordering::SeqCst);
    }

    /// Sets it, in a child that has one thread.
    pub fn set(&self) {
        self.state.store(BARRED, Ordering::SeqCst);
    }

    /// Calls `close` if the bar is set. The caller's signals are blocked: a handler's child would
    /// count down twice.
    pub fn while_set(&self, close: impl FnOnce()) {
        self.closing.fetch_add(1, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == BARRED {
            close();
        }
        self.closing.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends it by `open`, which gives all access back. No chunk is closed after that. `wait` lets
    /// other threads run. The caller's signals are blocked: a handler's child, which is barred,
    /// would go on with the end.
    pub fn end(&self, wait: impl Fn(), open: impl FnOnce() -> bool) -> bool {
        let begun = self.state.compare_exchange(BARRED, ENDING, Ordering::SeqCst, Ordering::SeqCst);
        if begun == Err(OPEN) {
            return true;
        }
        while self.closing.load(Ordering::SeqCst) > 0 {
            wait();
        }
        let is_open = open();
        if is_open {
            self.state.store(OPEN, Ordering::SeqCst);
        }
        is_open
    }
}
