//! The pool as a Rust allocator.

#![allow(unsafe_code, reason = "is an allocator")]

use super::{resize, WithSmall};
use crate::error::{Error, ErrorKind, Result};
use crate::text::text;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;

/// The process's pool: it allocates blocks by layout, and it is a global allocator. As a global
/// allocator it serves blocks of [`MIN_RUN_BYTES`](super::MIN_RUN_BYTES) and more, and the system's
/// allocator serves smaller ones ([`with_small`](Self::with_small) selects another).
///
/// ```
/// #[global_allocator]
/// static GLOBAL: tenure::pool::Pool = tenure::pool::Pool;
///
/// fn main() {
///     tenure::pool::prepare().expect("a thread for the worker");
///     let large = vec![1u8; 1 << 20];
///     assert!(tenure::pool::owns(large.as_ptr()));
/// }
/// ```
///
/// [`WithSmall`] can also be the allocator of one collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool;

const SYSTEM: WithSmall<System> = WithSmall(System);

impl Pool {
    /// Returns an allocator that takes large blocks from the pool, and small ones from `small`.
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
    ///     assert!(tenure::pool::owns(vec![1u8; 1 << 20].as_ptr()));
    ///     assert!(!tenure::pool::owns(vec![1u8; 100].as_ptr()));
    /// }
    /// ```
    pub const fn with_small<A>(self, small: A) -> WithSmall<A> {
        WithSmall(small)
    }

    fn serve(call: &'static str, layout: Layout, zeroed: bool) -> Result<NonNull<[u8]>> {
        let size = layout.size();
        super::prepare_if_needed();
        match super::alloc(size, layout.align(), zeroed) {
            Some(p) => Ok(NonNull::slice_from_raw_parts(p, size)),
            None => Err(refused(call, size)),
        }
    }

    /// Returns a run for `layout`. It holds the bytes of its former user. A page of it may change
    /// by itself until it is first written.
    ///
    /// ```
    /// use std::alloc::Layout;
    /// use tenure::pool::Pool;
    /// let layout = Layout::from_size_align(1 << 20, 64).expect("a power of two");
    /// let block = Pool.alloc(layout)?;
    /// // SAFETY: allocated above with this layout, and used no more.
    /// unsafe { Pool.dealloc(block.cast(), layout) };
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`alloc`](fn@super::alloc).
    ///
    /// `ENOMEM`: the size is above [`largest`](super::largest), or the kernel refuses more memory
    /// (a limit on addresses, or on mappings).
    pub fn alloc(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        Pool::serve("Pool::alloc", layout, false)
    }

    /// Returns a run for `layout` that holds zeros.
    ///
    /// ```
    /// use std::alloc::Layout;
    /// use tenure::pool::Pool;
    /// let layout = Layout::from_size_align(1 << 20, 64).expect("a power of two");
    /// let block = Pool.alloc_zeroed(layout)?;
    /// // SAFETY: allocated above with this layout, initialised with zeros, and used no more after that.
    /// unsafe {
    ///     assert!(block.as_ref().iter().all(|byte| *byte == 0));
    ///     Pool.dealloc(block.cast(), layout);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`alloc`](fn@super::alloc) with zeroing.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[doc(alias = "calloc")]
    pub fn alloc_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>> {
        Pool::serve("Pool::alloc_zeroed", layout, true)
    }

    /// Gives a block back.
    ///
    /// ```
    /// use std::alloc::Layout;
    /// use tenure::pool::Pool;
    /// let layout = Layout::new::<[u64; 100_000]>();
    /// let block = Pool.alloc(layout)?;
    /// // SAFETY: allocated above with this layout, and used no more.
    /// unsafe { Pool.dealloc(block.cast(), layout) };
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`free`](super::free).
    ///
    /// # Safety
    /// `p` came from this type's calls with this layout, and nothing uses it any more.
    pub unsafe fn dealloc(&self, p: NonNull<u8>, layout: Layout) {
        let _ = layout;
        // SAFETY: `p` is a block of the pool, and nothing uses it any more.
        unsafe { super::free(p) }
    }

    /// Makes a block larger. It stays in place if its run has room; otherwise the kernel moves its
    /// pages.
    ///
    /// ```
    /// use std::alloc::Layout;
    /// use tenure::pool::Pool;
    /// let (old, new) = (Layout::new::<[u8; 1 << 20]>(), Layout::new::<[u8; 1 << 21]>());
    /// let block = Pool.alloc(old)?;
    /// // SAFETY: allocated with `old`, grown to `new`; the old pointer is used no more.
    /// unsafe {
    ///     let block = Pool.grow(block.cast(), old, new)?;
    ///     Pool.dealloc(block.cast(), new);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`realloc`](super::realloc).
    ///
    /// # Safety
    /// As [`dealloc`](Self::dealloc). On success the old block is freed. `new` is not smaller than
    /// `old`.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc). The old block is then unchanged.
    #[doc(alias = "realloc")]
    pub unsafe fn grow(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>> {
        debug_assert!(new.size() >= old.size());
        // SAFETY: `p` is a block of the pool, and the caller uses only the returned one.
        unsafe { self.resize("Pool::grow", p, new) }
    }

    /// Makes a block larger as [`grow`](Self::grow) does. The new bytes are zero.
    ///
    /// ```
    /// use std::alloc::Layout;
    /// use tenure::pool::Pool;
    /// let (old, new) = (Layout::new::<[u8; 1 << 20]>(), Layout::new::<[u8; 1 << 21]>());
    /// let block = Pool.alloc_zeroed(old)?;
    /// // SAFETY: allocated with `old`, grown to `new`; the old pointer is used no more.
    /// unsafe {
    ///     let block = Pool.grow_zeroed(block.cast(), old, new)?;
    ///     assert!(block.as_ref().iter().all(|byte| *byte == 0));
    ///     Pool.dealloc(block.cast(), new);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`realloc`](super::realloc).
    ///
    /// # Safety
    /// As [`grow`](Self::grow).
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    pub unsafe fn grow_zeroed(
        &self,
        p: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>> {
        debug_assert!(new.size() >= old.size());
        let at = p.as_ptr() as usize;
        // SAFETY: `p` is a block of the pool, and the caller uses only the returned one.
        match unsafe { resize::realloc(at, Some(old.size()), new.size(), new.align(), true) } {
            Some(p) => Ok(NonNull::slice_from_raw_parts(p, new.size())),
            None => Err(refused("Pool::grow_zeroed", new.size())),
        }
    }

    /// Makes a block smaller, and gives the remaining pages back.
    ///
    /// ```
    /// use std::alloc::Layout;
    /// use tenure::pool::Pool;
    /// let (old, new) = (Layout::new::<[u8; 1 << 21]>(), Layout::new::<[u8; 1 << 20]>());
    /// let block = Pool.alloc(old)?;
    /// // SAFETY: allocated with `old`, shrunk to `new`; the old pointer is used no more.
    /// unsafe {
    ///     let block = Pool.shrink(block.cast(), old, new)?;
    ///     Pool.dealloc(block.cast(), new);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`realloc`](super::realloc).
    ///
    /// # Safety
    /// As [`grow`](Self::grow), with `new` not larger than `old`.
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    pub unsafe fn shrink(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>> {
        debug_assert!(new.size() <= old.size());
        // SAFETY: `p` is a block of the pool, and the caller uses only the returned one.
        unsafe { self.resize("Pool::shrink", p, new) }
    }

    unsafe fn resize(
        &self,
        call: &'static str,
        p: NonNull<u8>,
        new: Layout,
    ) -> Result<NonNull<[u8]>> {
        // SAFETY: `p` is a block of the pool, and the callers use only the returned one.
        match unsafe { super::realloc(p, new.size(), new.align(), false) } {
            Some(p) => Ok(NonNull::slice_from_raw_parts(p, new.size())),
            None => Err(refused(call, new.size())),
        }
    }
}

pub(super) fn refused(call: &'static str, size: usize) -> Error {
    if size > super::largest() {
        return Error::new(
            ErrorKind::OutOfMemory,
            call,
            text!("{size} bytes are more than the pool's largest run has ({})", super::largest()),
            "use Mapping::anonymous, or raise RLIMIT_AS before the pool is first used",
        );
    }
    Error::new(
        ErrorKind::OutOfMemory,
        call,
        text!(
            "there is no run for {size} bytes: no addresses, or the kernel refuses to map more, or mprotect"
        ),
        "free memory, or raise RLIMIT_AS, RLIMIT_DATA or vm.max_map_count",
    )
}

// SAFETY: `WithSmall` is an allocator, and every value of `Pool` calls the one `SYSTEM`.
unsafe impl GlobalAlloc for Pool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller makes the promise of `GlobalAlloc::alloc`, which `SYSTEM` demands.
        unsafe { SYSTEM.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller makes the promise of `GlobalAlloc::alloc_zeroed`, which `SYSTEM`
        // demands.
        unsafe { SYSTEM.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller gives a block of `alloc`, `alloc_zeroed` or `realloc` here, so it
        // comes from `SYSTEM`.
        unsafe { SYSTEM.dealloc(p, layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller gives a block of `alloc`, `alloc_zeroed` or `realloc` here, so it
        // comes from `SYSTEM`.
        unsafe { SYSTEM.realloc(p, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pool counts a block of no bytes as one byte. The bytes that `usable_size` has reported
    /// belong to the block.
    #[test]
    fn bytes_beyond_the_old_layout_are_zero_in_a_grown_block() {
        let layout = |size| Layout::from_size_align(size, 1).unwrap();
        for (old, new, shows) in
            [(0, 1, false), (0, 1 << 20, false), (70_000, 71_000, true), (70_000, 1 << 20, true)]
        {
            let block = Pool.alloc(layout(80_000)).unwrap();
            // SAFETY: each block is this test's and large enough, and the test does not use it
            // after it gave it back.
            unsafe {
                block.cast::<u8>().write_bytes(7, 80_000);
                let block = Pool.shrink(block.cast(), layout(80_000), layout(old)).unwrap();
                if shows {
                    let usable = crate::pool::usable_size(block.cast()).unwrap();
                    block.cast::<u8>().add(old).write_bytes(7, usable - old);
                }
                let block = Pool.grow_zeroed(block.cast(), layout(old), layout(new)).unwrap();
                let bytes = std::slice::from_raw_parts(block.cast::<u8>().as_ptr(), new);
                assert!(bytes[..old].iter().all(|byte| *byte == 7), "{old} {new}");
                let wrong = bytes[old..].iter().position(|byte| *byte != 0);
                assert_eq!(wrong, None, "{old} {new}");
                Pool.dealloc(block.cast(), layout(new));
            }
        }
    }
}
