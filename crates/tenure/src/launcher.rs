//! For tenure's launcher.

#![allow(unsafe_code, reason = "hands out memory")]

pub use crate::os::stack::Stack;

use crate::runtime::published::Part;

/// Memory for what the launcher notes: a heap of its own, held over forks, and usable in a child that was made
/// without their handlers.
pub mod heap {
    use std::ptr::NonNull;

    /// A block of at least so many bytes, aligned to as many up to a page.
    pub fn allocate(bytes: usize) -> Option<NonNull<u8>> {
        crate::runtime::heap::allocate(bytes).ok()
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// From [`allocate`] with the same number of bytes, and in use no more.
    pub unsafe fn free(block: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { crate::runtime::heap::free(block, bytes) }
    }
}

/// Does something that asks the pool for memory, or gives it some back, and that does not wait for a fork for ever: the
/// caller may have a lock for which the fork waits. What the pool does not serve meanwhile is the next allocator's.
///
/// A fork waits for the C library's streams, and for locks of libraries whose handlers were registered early, with all of the
/// pool's locks in its hands.
pub fn without_waiting_for_forks<R>(act: impl FnOnce() -> R) -> R {
    let _no_wait = crate::runtime::fork::NoWait::long_for_fork();
    act()
}

/// Shows counters of the launcher's to readers in other processes: `count` words, with a name each.
pub const fn published(at: *const u8, names: &'static str, count: usize) -> Part {
    Part::words(at, names, count, 1, 0)
}

/// Lists such counters.
pub fn publish(part: &'static Part) {
    crate::runtime::published::publish(&[part]);
}

/// Opens the files of `/proc` that are asked again and again, under high numbers: later another thread of the
/// program's could be about to use the low number by which each comes.
pub fn open_files() {
    crate::os::kept::open_now();
}

/// Whether callers of the pool offer so much that the worker, which would do it for them, pays.
pub fn worker_pays() -> bool {
    crate::pool::worker_pays()
}

/// Whether the calling thread is tenure's background thread.
pub fn is_background_thread() -> bool {
    crate::runtime::worker::is_worker()
}
