//! Whether the calling thread works on the segments of a cache. A fork asks for that.
//!
//! A signal handler may fork while the thread that it interrupts has a segment, has the lists'
//! lock, or has half changed the stack of emptied segments. Parent and child both go on with that
//! work when the handler returns. So the child must not treat it as the remains of a thread that is
//! gone.

use std::cell::Cell;
use std::sync::atomic::{compiler_fence, Ordering};

thread_local! {
    // Constant and without a destructor: it allocates nothing, and a thread can use it until its
    // very end.
    /// Each thread's own: a signal handler that forks asks for the thread that it interrupts.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, a fork by this thread leaves the segments as they are: see
/// [`Space::reset_in_child`](super::space::Space::reset_in_child). It is not held while the
/// program's code runs, except for signal handlers.
pub(super) struct Inside(());

impl Inside {
    #[inline]
    pub fn begin() -> Inside {
        DEPTH.set(DEPTH.get() + 1);
        // A handler runs on this thread, so only the compiler could reorder this.
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

/// Returns whether the calling thread is inside.
pub(super) fn is_inside() -> bool {
    DEPTH.get() > 0
}
