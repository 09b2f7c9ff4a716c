//! Whether the calling thread is at work on the segments of a cache, for a fork.
//!
//! A handler of a signal may fork while the thread that it interrupts has a segment in its hands, the
//! lists' lock, or half a change of the stack of emptied segments. Parent and child both go on with that
//! when the handler returns, so the child must not take it for what a thread that is gone left behind.

use std::cell::Cell;
use std::sync::atomic::{compiler_fence, Ordering};

thread_local! {
    // Constant and without a destructor: no allocation, and usable to a thread's very end.
    /// Each thread's own: a handler of a signal that forks asks for the thread that it interrupts.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, a fork by this thread leaves the segments as they are: see
/// [`Space::reset_in_child`](super::space::Space::reset_in_child). Not held while the program's code
/// runs, but for handlers of signals.
pub(super) struct Inside(());

impl Inside {
    #[inline]
    pub fn begin() -> Inside {
        DEPTH.set(DEPTH.get() + 1);
        // A handler runs on this thread: only the compiler could let it see this too late.
        compiler_fence(Ordering::SeqCst);
        Inside(())
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Whether the calling thread is inside.
pub(super) fn is_inside() -> bool {
    DEPTH.get() > 0
}
