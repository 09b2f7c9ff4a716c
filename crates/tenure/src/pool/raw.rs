//! The raw calls, for an allocator behind `malloc`. None allocates, creates a thread or changes
//! `errno`.

#![allow(unsafe_code, reason = "is malloc's interface")]

use super::counters::{self, Counter};
use super::run::{state, Run};
use super::{alloc_run, free_run, lookup, resize};
use crate::os::page_size;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Returns a run of at least `size` bytes at a multiple of `align`, a power of two. With `zeroed`
/// it holds zeros, otherwise the bytes of its former user. `None`: the range is exhausted, `size`
/// is more than [`largest`](super::largest), or the kernel refuses.
///
/// Contents that were not zeroed may change by themselves until each page is written for the first
/// time, because the kernel may take offered pages.
///
/// Cost: 40 to 100 ns for a run that is warm or offered; some fresh runs take one system call.
/// Zeroing: 24 ns a resident page, and 1.5 µs to find out from the kernel which pages are resident.
///
/// ```
/// use tenure::pool;
/// let run = pool::alloc(1 << 20, 4096, true).expect("there is room");
/// // SAFETY: the run is this example's, has the room, and is not used again.
/// unsafe {
///     assert_eq!(run.as_ptr().read(), 0);
///     pool::free(run);
/// }
/// ```
#[doc(alias = "malloc")]
#[doc(alias = "calloc")]
#[doc(alias = "memalign")]
#[doc(alias = "posix_memalign")]
pub fn alloc(size: usize, align: usize, zeroed: bool) -> Option<NonNull<u8>> {
    alloc_run::alloc(size, align, zeroed)
}

/// Gives a run back.
///
/// If the program has locked the run, it is unlocked: at once if tenure has locked it, and otherwise
/// when the worker offers it. It stays locked if all memory is (`mlockall`), or if a filter refuses
/// `msync`. End the run's guards before: they do not learn that it goes.
///
/// A pointer that is not an allocation's start, or was freed before, ends the process with a
/// message on standard error. Otherwise the pool would give the same memory to two owners.
///
/// ```
/// use tenure::pool;
/// let run = pool::alloc(1 << 20, 16, false).expect("there is room");
/// // SAFETY: it is not used again.
/// unsafe { pool::free(run) };
/// ```
///
/// # Cost
/// About 50 ns, and 0.2 to 0.5 µs more once tenure has locked memory of the pool. Past the bound on
/// warm runs, and without a worker, the call does a part of its work.
///
/// # Safety
/// Nothing uses the run any more.
#[doc(alias = "munmap")]
pub unsafe fn free(p: NonNull<u8>) {
    // SAFETY: nothing uses the run any more, as this function requires.
    unsafe { free_run::free(p.as_ptr() as usize) }
}

/// Makes the run at `p` hold `new_size` bytes at a multiple of `align`, as `realloc(3)` does. It
/// keeps the contents up to the smaller size, in place or at another address, and returns the
/// address. New bytes are zero if `zeroed`. `None`: there is no room, and the run at `p` is
/// unchanged.
///
/// Cost: nothing while the run has room. Otherwise the contents are copied into a warm run, if
/// there is one. From 512 KiB on without a warm run, and from 32 MiB on in any case, the kernel
/// moves the pages to another run (10 to 20 ns a page). A smaller size gives the remaining pages
/// back.
///
/// If the program has locked the run, the contents are always copied, and a run at another address
/// is not locked. The memory that the program gives up is unlocked, as by [`free`].
///
/// ```
/// use tenure::pool;
/// let run = pool::alloc(1 << 20, 16, true).expect("there is room");
/// // SAFETY: the old address is not used again.
/// unsafe {
///     let run = pool::realloc(run, 8 << 20, 16, true).expect("there is room");
///     pool::free(run);
/// }
/// ```
///
/// # Safety
/// `p` is a run of the pool. If the call returns another address, nothing uses the old one any
/// more.
#[doc(alias = "mremap")]
pub unsafe fn realloc(
    p: NonNull<u8>,
    new_size: usize,
    align: usize,
    zeroed: bool,
) -> Option<NonNull<u8>> {
    // SAFETY: `p` is a run of the pool, and the caller uses only the returned address.
    unsafe { resize::realloc(p.as_ptr() as usize, None, new_size, align, zeroed) }
}

/// Returns how many bytes of the run at `p` the program may use, as `malloc_usable_size(3)` does:
/// the size that the program asked for, in whole pages. `None`: [`alloc`] did not return this
/// pointer.
///
/// A run may have more room than that. The call does not report it: a program that adds these
/// numbers up, to keep to its own limit, would count memory that it does not use.
///
/// ```
/// use tenure::pool;
/// let run = pool::alloc(100_000, 16, false).expect("there is room");
/// // SAFETY: the run is this function's own, and it is not used again after `free`.
/// unsafe {
///     assert!(pool::usable_size(run).is_some_and(|bytes| bytes >= 100_000));
///     pool::free(run);
/// }
/// ```
///
/// # Cost
/// About 10 ns; no system call.
///
/// # Safety
/// A block at `p` is the caller's, and no other thread resizes or frees it meanwhile. The reported
/// bytes are the block's from now on: a [`realloc`] keeps them, and does not zero them.
#[doc(alias = "malloc_usable_size")]
pub unsafe fn usable_size(p: NonNull<u8>) -> Option<usize> {
    let (run, room, _) = room(p)?;
    let usable = run.size().next_multiple_of(page_size()).min(room);
    // The program may write to these bytes from now on, so a reallocation must keep them. If the
    // caller breaks its promise, the owner's bytes are kept all the same: the number never falls.
    let counted = run.size.fetch_max(usable as u64, Ordering::Relaxed);
    counters::add(Counter::AllocatedBytes, (usable as u64).saturating_sub(counted));
    Some(usable)
}

/// The run at `p`, the bytes from there to its end, and its whole length. `None`: `p` is not the
/// start of an allocation.
pub(super) fn room(p: NonNull<u8>) -> Option<(&'static Run, usize, usize)> {
    let at = p.as_ptr() as usize;
    let (reservation, spot) = lookup::find(at)?;
    let run = reservation.run(spot);
    if run.state() != state::IN_USE || lookup::start_of(reservation, spot) != at {
        return None;
    }
    let stride = reservation.area(spot.class).stride;
    Some((run, reservation.start(spot) + stride - at, stride))
}
