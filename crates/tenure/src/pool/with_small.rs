//! The pool as a global allocator, with another allocator for small blocks.

#![allow(unsafe_code, reason = "is an allocator")]

use super::{owns, MIN_RUN_BYTES};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

/// An allocator that takes blocks of [`MIN_RUN_BYTES`] and more from the pool, and smaller ones
/// from `A`. A block that the pool refuses comes from `A`, too.
/// [`Pool::with_small`](super::Pool::with_small) makes it.
///
/// ```
/// use std::alloc::System; // stands for another allocator, such as mimalloc's
/// use tenure::pool::{Pool, WithSmall};
///
/// #[global_allocator]
/// static GLOBAL: WithSmall<System> = Pool.with_small(System);
///
/// fn main() {
///     tenure::pool::prepare().expect("a thread for the worker");
///     let mut frame = vec![0u8; 1 << 20];
///     assert!(tenure::pool::owns(frame.as_ptr()));
///     frame.resize(16 << 20, 1); // moves its pages: no copy
///     frame.truncate(100);
///     frame.shrink_to_fit(); // small now: it is the other allocator's
///     assert!(!tenure::pool::owns(frame.as_ptr()));
/// }
/// ```
///
/// # As an `Allocator`
/// With the feature `allocator-api2`, this type implements `Allocator` of that crate if `A` does: a
/// program can use it for one collection. A block of such a collection starts the worker. A block
/// of a global allocator does not.
///
#[cfg_attr(feature = "allocator-api2", doc = "```")]
#[cfg_attr(not(feature = "allocator-api2"), doc = "```ignore")]
/// use allocator_api2::vec::Vec;
/// use std::alloc::System;
/// use tenure::pool::{Pool, WithSmall};
///
/// let mut frame: Vec<u8, WithSmall<System>> = Vec::new_in(Pool.with_small(System));
/// frame.resize(1 << 20, 7);
/// assert!(tenure::pool::owns(frame.as_ptr()));
/// ```
///
/// # Cost
/// One comparison more than [`alloc`](super::alloc), [`free`](super::free) and
/// [`realloc`](super::realloc), or than `A`. A block that grows over the bound or shrinks below it
/// is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithSmall<A>(pub(super) A);

/// Allocates a run for a layout that the pool serves.
pub(super) fn run(layout: Layout, zeroed: bool) -> Option<NonNull<u8>> {
    let is_large = layout.size() >= MIN_RUN_BYTES;
    is_large.then(|| super::alloc(layout.size(), layout.align(), zeroed)).flatten()
}

// SAFETY: a block belongs to the pool or to `A`, and `owns` tells which, so each block goes back to
// its own allocator. Neither allocator unwinds. A block that changes its allocator is copied before
// the old one is given back, so its contents stay.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WithSmall<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match run(layout, false) {
            Some(p) => p.as_ptr(),
            // SAFETY: the caller of `alloc` passes a layout whose size is not zero.
            None => unsafe { self.0.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match run(layout, true) {
            Some(p) => p.as_ptr(),
            // SAFETY: the caller of `alloc_zeroed` passes a layout whose size is not zero.
            None => unsafe { self.0.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        match NonNull::new(p) {
            // SAFETY: the block is the pool's, and the caller does not use it any more.
            Some(p) if owns(p.as_ptr()) => unsafe { super::free(p) },
            // SAFETY: the block is not the pool's, so `A`'s, with this layout.
            _ => unsafe { self.0.dealloc(p, layout) },
        }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let pooled = NonNull::new(p).filter(|p| owns(p.as_ptr()));
        if let (Some(p), true) = (pooled, new_size >= MIN_RUN_BYTES) {
            // SAFETY: the block is the pool's, and the caller uses only the returned one.
            if let Some(p) = unsafe { super::realloc(p, new_size, layout.align(), false) } {
                return p.as_ptr();
            }
        }
        // SAFETY: the caller promises that the size, rounded up to the alignment, does not
        // overflow.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let to = match (run(new, false), pooled) {
            (Some(to), _) => to.as_ptr(),
            // SAFETY: the block is not the pool's, so it is `A`'s, with this layout. The caller
            // promises that the new size is not zero and does not overflow.
            (None, None) => return unsafe { self.0.realloc(p, layout, new_size) },
            // SAFETY: the caller of `realloc` passes a new size that is not zero.
            (None, Some(_)) => unsafe { self.0.alloc(new) },
        };
        if !to.is_null() {
            // SAFETY: both blocks hold at least the smaller size, and they do not overlap: the new
            // one was just made. The old one goes back to its own allocator, and nothing uses it
            // after that.
            unsafe {
                std::ptr::copy_nonoverlapping(p, to, layout.size().min(new_size));
                self.dealloc(p, layout);
            }
        }
        to
    }
}
