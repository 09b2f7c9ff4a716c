//! Blocks that leave the pool with their pages.

#![allow(unsafe_code, reason = "takes a block by its address")]

use super::counters::{self, Counter};
use super::run::state;
use super::{central_list, free_run, given_up, leave, lookup, split};
use crate::os::arena;
use std::ptr::NonNull;

/// Takes the block at `p` out of the pool with its pages, in a mapping of `len` bytes: it begins
/// with the block's bytes. The pool makes one system call, `mremap`, and does not know the mapping
/// from then on. It does so only after [`end_before_filter`](super::end_before_filter). `None`: the
/// block is as before.
///
/// ```
/// use tenure::pool;
/// let block = pool::alloc(1 << 20, 16, false).expect("there is room");
/// // SAFETY: the block is this function's own.
/// assert!(unsafe { pool::take_out(block, 2 << 20) }.is_none());
/// // SAFETY: it is not used again.
/// unsafe { pool::free(block) };
/// ```
///
/// # Safety
/// [`alloc`](super::alloc) returned the block, and the caller uses only the returned mapping.
#[doc(alias = "mremap")]
pub unsafe fn take_out(p: NonNull<u8>, len: usize) -> Option<NonNull<u8>> {
    let at = p.as_ptr() as usize;
    let (reservation, spot) = lookup::find(at).filter(|_| given_up::is_filtered())?;
    let run = reservation.run(spot);
    free_run::claim("realloc", at, reservation, spot, run);
    let live = lookup::live(reservation, spot);
    let _leaving = leave::Leaving::begin();
    // SAFETY: the run is this thread's alone, and the caller uses its old address no more.
    let Ok(new) = (unsafe { arena::resize(live, len) }) else {
        run.set_state(state::IN_USE);
        return None;
    };
    counters::add(Counter::Frees, 1);
    counters::add(Counter::FreedBytes, run.size() as u64);
    split::forget_state(run);
    // What is left of the run holds no pages, and has no owner: to unmap it would be another call.
    run.set_state(state::LEFT);
    central_list::put_left(reservation, spot);
    NonNull::new(new as *mut u8)
}
