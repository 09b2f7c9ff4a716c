//! The pool as an `Allocator` of the `allocator-api2` crate. [`Pool`](super::Pool) itself does not
//! implement it. Its own `grow` and `shrink` would be called in place of the trait's, and they take
//! only blocks of the pool.

#![allow(unsafe_code, reason = "is an allocator")]

use super::with_small::{run, WithSmall};
use super::{owns, resize, MIN_RUN_BYTES};
use allocator_api2::alloc::{AllocError, Allocator};
use std::alloc::Layout;
use std::ptr::NonNull;

type Block = Result<NonNull<[u8]>, AllocError>;

impl<A: Allocator> WithSmall<A> {
    fn serve(&self, layout: Layout, zeroed: bool) -> Option<NonNull<[u8]>> {
        if layout.size() < MIN_RUN_BYTES {
            return None;
        }
        super::prepare_if_needed();
        run(layout, zeroed).map(|p| NonNull::slice_from_raw_parts(p, layout.size()))
    }

    /// Changes the size of a block. `other` calls `A` for a block of `A` that stays with `A`.
    ///
    /// # Safety
    /// The conditions of [`Allocator::grow`], or of [`Allocator::shrink`].
    unsafe fn resize(
        &self,
        p: NonNull<u8>,
        old: Layout,
        new: Layout,
        zeroed: bool,
        other: impl FnOnce() -> Block,
    ) -> Block {
        // A block of size 0 has an address outside the pool.
        let pooled = owns(p.as_ptr());
        if pooled && new.size() >= MIN_RUN_BYTES {
            // SAFETY: the block is the pool's, and the caller uses only the returned one.
            let resized = unsafe {
                let at = p.as_ptr() as usize;
                resize::realloc(at, Some(old.size()), new.size(), new.align(), zeroed)
            };
            if let Some(p) = resized {
                return Ok(NonNull::slice_from_raw_parts(p, new.size()));
            }
        }
        let to = match self.serve(new, zeroed) {
            Some(to) => to,
            None if !pooled => return other(),
            None if zeroed => self.0.allocate_zeroed(new)?,
            None => self.0.allocate(new)?,
        };
        // SAFETY: both blocks hold at least the smaller size, and they do not overlap: the new one
        // was just made. The old one goes back to its own allocator, and nothing uses it after
        // that.
        unsafe {
            let bytes = old.size().min(new.size());
            std::ptr::copy_nonoverlapping(p.as_ptr(), to.cast().as_ptr(), bytes);
            self.deallocate(p, old);
        }
        Ok(to)
    }
}

// SAFETY: a block belongs to the pool or to `A`. The pool is one for the process, and it never ends
// while a block of it is in use. The clones of `A` are one allocator, as `Allocator` demands.
// `owns` tells the two apart, so each block goes back to its own allocator. The pool records the
// sizes of its blocks, so a layout fits a block if its size does.
unsafe impl<A: Allocator> Allocator for WithSmall<A> {
    fn allocate(&self, layout: Layout) -> Block {
        self.serve(layout, false).map_or_else(|| self.0.allocate(layout), Ok)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Block {
        self.serve(layout, true).map_or_else(|| self.0.allocate_zeroed(layout), Ok)
    }

    unsafe fn deallocate(&self, p: NonNull<u8>, layout: Layout) {
        match owns(p.as_ptr()) {
            // SAFETY: the block is the pool's, and the caller does not use it any more.
            true => unsafe { super::free(p) },
            // SAFETY: the block is not the pool's, so `A`'s, with this layout.
            false => unsafe { self.0.deallocate(p, layout) },
        }
    }

    unsafe fn grow(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Block {
        // SAFETY: the caller makes the promise of `Allocator::grow`, and `A`'s `grow` is called
        // only for a block of `A`.
        unsafe { self.resize(p, old, new, false, || self.0.grow(p, old, new)) }
    }

    unsafe fn grow_zeroed(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Block {
        // SAFETY: the caller makes the promise of `Allocator::grow_zeroed`, and `A`'s `grow_zeroed`
        // is called only for a block of `A`.
        unsafe { self.resize(p, old, new, true, || self.0.grow_zeroed(p, old, new)) }
    }

    unsafe fn shrink(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Block {
        // SAFETY: the caller makes the promise of `Allocator::shrink`, and `A`'s `shrink` is called
        // only for a block of `A`.
        unsafe { self.resize(p, old, new, false, || self.0.shrink(p, old, new)) }
    }
}
