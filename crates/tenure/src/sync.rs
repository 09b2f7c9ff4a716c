//! The atomics, cells and locks that the modules with a loom model use.
//!
//! A model crate compiles those modules from the same source and puts loom's types here.

pub(crate) use crate::cache::lock::{Guard, Lock, Rank};
pub(crate) use std::sync::atomic::{fence, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use std::cell::Cell;

/// `std::cell::UnsafeCell` with loom's interface.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer that it may only read through.
    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer that it may write through. The caller makes sure that no other
    /// thread uses the cell meanwhile.
    #[inline]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A full barrier right after a sequentially consistent read-modify-write of this thread.
///
/// On x86-64 that instruction is the barrier already, so only the compiler has to be told.
#[inline(always)]
pub(crate) fn barrier_after_rmw() {
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    fence(Ordering::SeqCst);
}

/// Asks the processor to load a cache line soon; any address will do.
#[inline(always)]
pub(crate) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing that a program sees, and faults on no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

thread_local! {
    // Constant and without a destructor: usable until the thread's very end, and no allocation.
    static SECTIONS: Cell<u32> = const { Cell::new(0) };
}

/// The thread begins to read shared data in an epoch; a fork asks for it, see [`sections_open`].
#[inline(always)]
pub(crate) fn section_begins() {
    SECTIONS.set(SECTIONS.get() + 1);
}

/// The thread ends what [`section_begins`] began.
#[inline(always)]
pub(crate) fn section_ends() {
    SECTIONS.set(SECTIONS.get() - 1);
}

/// How many sections the calling thread is in: more than 0 only if a key's code forks.
pub(crate) fn sections_open() -> u32 {
    SECTIONS.get()
}
