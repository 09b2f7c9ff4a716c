//! mremap.

use super::map::{reaches, touches_pool, UNMAP_LEAST};
use super::moving::{move_out, raw_mremap};
use super::Errno;
use crate::{keeper, seen};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use tenure::pool::mapped;
use tenure::retire;

/// More than a program has room for beside the pool, on any architecture.
const MOST_ADDRESSES: usize = 1 << 56;

/// C declares it with a variable argument; the fifth is where that would be.
#[no_mangle]
pub unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    seen::MREMAPS.one();
    let start = at as usize;
    if touches_pool(start, old_len) {
        // SAFETY: the program's call, here and below.
        return unsafe { mremap_of_pool(at, old_len, new_len, flags, to) };
    }
    if flags & libc::MREMAP_FIXED != 0 && touches_pool(to as usize, new_len) {
        let _errno = Errno::keep();
        mapped::place(to as usize, new_len);
        mapped::taint(to as usize, new_len);
    }
    let cut = old_len.saturating_sub(new_len);
    let may_be_cut = flags & !libc::MREMAP_MAYMOVE == 0 && new_len > 0;
    // SAFETY: as above.
    if may_be_cut && reaches(cut, &UNMAP_LEAST) && unsafe { shrunk(at, old_len, new_len, flags) } {
        return at;
    }
    // SAFETY: as above.
    unsafe { raw_mremap(at, old_len, new_len, flags, to) }
}

/// Whether the tail was cut off, as the call asks. `false`: nothing was done, and the call is the kernel's.
#[cold]
#[inline(never)]
unsafe fn shrunk(at: *mut c_void, old_len: usize, new_len: usize, flags: c_int) -> bool {
    let errno = Errno::keep();
    // The kernel is asked first about the part that stays: what it refuses must not have lost its tail.
    // SAFETY: the program's call with the tail left out, which changes nothing.
    let is_allowed = unsafe { raw_mremap(at, new_len, new_len, flags, null_mut()) } == at;
    // SAFETY: the program gives the tail up.
    let gone = is_allowed && unsafe { retire::detach_tail(at.cast(), old_len, new_len) };
    drop(errno);
    keeper::ask();
    if gone {
        seen::ZAPPED_BEFORE.one();
        seen::ZAPPED_BEFORE_BYTES.add((old_len - new_len) as u64);
    }
    gone
}

/// Of a mapping that is a run of the pool's. It shrinks where it is, and grows by moving to another run; what
/// goes to an address of the program's choice, or is not a whole run, leaves the pool: its page tables
/// are moved to a mapping of the program's own, and the run goes back.
#[cold]
#[inline(never)]
unsafe fn mremap_of_pool(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let page = rustix::param::page_size();
    let round = |len: usize| len.checked_next_multiple_of(page);
    let (Some(old), Some(new)) = (round(old_len), round(new_len)) else {
        return failed(libc::EINVAL);
    };
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let may_move = flags & libc::MREMAP_MAYMOVE != 0;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let keeps_old = flags & libc::MREMAP_DONTUNMAP != 0;
    let overlap = fixed && (to as usize) < at as usize + old && (at as usize) < to as usize + new;
    if at as usize % page != 0
        || old == 0
        || new == 0
        || flags & !known != 0
        || (fixed || keeps_old) && !may_move
        || keeps_old && old != new
        || fixed && to as usize % page != 0
        || overlap
    {
        return failed(libc::EINVAL);
    }
    if mapped::is_free(at as usize, page) {
        return failed(libc::EFAULT);
    }
    if new > MOST_ADDRESSES {
        // The kernel's to refuse, by an errno that differs from version to version.
        // SAFETY: the program's call.
        return unsafe { raw_mremap(at, old_len, new_len, flags, to) };
    }
    if !fixed && !keeps_old && new <= old {
        if new < old {
            // SAFETY: the program gives the tail up.
            unsafe { super::map::munmap((at as usize + new) as *mut c_void, old - new) };
        }
        return at;
    }
    if !may_move {
        return failed(libc::ENOMEM);
    }
    if fixed && touches_pool(to as usize, new) {
        mapped::place(to as usize, new);
        mapped::taint(to as usize, new);
    }
    if !fixed && !keeps_old {
        let errno = Errno::keep();
        // SAFETY: the program's call.
        let resized = unsafe { mapped::resize(at as usize, old, new) };
        drop(errno);
        if let Some(at) = resized {
            keeper::ask();
            return at.as_ptr().cast();
        }
    }
    // SAFETY: the place is new or the program's to replace; `at` has `old` bytes, of which the program
    // gives up what does not move.
    unsafe { move_out(at, old, new, if fixed { to } else { null_mut() }, keeps_old) }
}

fn failed(errno: c_int) -> *mut c_void {
    Errno::set(errno);
    libc::MAP_FAILED
}
