//! The pool as an `Allocator` of the `allocator-api2` crate. [`Pool`](super::Pool) itself is none: its own `grow` and `shrink`, which
//! would be called in place of the trait's, take blocks of the pool's only.

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

    /// Gives a block another size. `other` asks `A` for that; it is called where the block is `A`'s and stays `A`'s.
    ///
    /// # Safety
    /// As [`Allocator::grow`]'s, or [`Allocator::shrink`]'s.
    unsafe fn resize(
        &self,
        p: NonNull<u8>,
        old: Layout,
        new: Layout,
        zeroed: bool,
        other: impl FnOnce() -> Block,
    ) -> Block {
        // No block of size 0 is the pool's: its address is not one of the pool's.
        let pooled = owns(p.as_ptr());
        if pooled && new.size() >= MIN_RUN_BYTES {
            // SAFETY: the block is the pool's; the caller then uses only the new one.
            let resized = unsafe {
                match zeroed {
                    true => resize::grow_zeroed(p, old.size(), new.size(), new.align()),
                    false => super::realloc(p, new.size(), new.align(), false),
                }
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
        // SAFETY: both are valid for the smaller size, and apart: the new block was just made. The old one is given
        // back to where it came from, and used no more.
        unsafe {
            let bytes = old.size().min(new.size());
            std::ptr::copy_nonoverlapping(p.as_ptr(), to.cast().as_ptr(), bytes);
            self.deallocate(p, old);
        }
        Ok(to)
    }
}

// SAFETY: blocks are the pool's, which is one for the process and never ends while a block of it is in use, or `A`'s,
// whose clones are the same allocator, as `Allocator` asks of it. `owns` tells which, so each is given back to where it
// came from. A layout fits a block if its size does, because the pool keeps the sizes of its blocks itself.
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
        // SAFETY: the caller's promise is the same, and `A`'s `grow` is asked only for a block of `A`'s.
        unsafe { self.resize(p, old, new, false, || self.0.grow(p, old, new)) }
    }

    unsafe fn grow_zeroed(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Block {
        // SAFETY: the caller's promise is the same, and `A`'s `grow_zeroed` is asked only for a block of `A`'s.
        unsafe { self.resize(p, old, new, true, || self.0.grow_zeroed(p, old, new)) }
    }

    unsafe fn shrink(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Block {
        // SAFETY: the caller's promise is the same, and `A`'s `shrink` is asked only for a block of `A`'s.
        unsafe { self.resize(p, old, new, false, || self.0.shrink(p, old, new)) }
    }
}
