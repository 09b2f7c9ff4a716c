//! Moving what lies in a run of the pool's to a mapping of the program's own.
//!
//! To the program a run is one mapping. To the kernel it may be several: huge pages were advised for a part
//! of it, or pages came to it by an earlier move. Before 6.17 mremap moves one mapping at a time, and it
//! never makes several larger.

use super::map::raw_mmap;
use super::Errno;
use crate::keeper;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use tenure::pool::mapped;

const FIXED: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

pub unsafe fn raw_mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's call; it sets errno.
    unsafe { libc::syscall(libc::SYS_mremap, at, old_len, new_len, flags, to) as *mut c_void }
}

fn after(at: *mut c_void, len: usize) -> *mut c_void {
    at.cast::<u8>().wrapping_add(len).cast()
}

/// An empty mapping at `to`, or where the kernel likes it.
unsafe fn make_room(len: usize, to: *mut c_void, protection: c_int) -> *mut c_void {
    let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    if !to.is_null() {
        flags |= libc::MAP_FIXED;
    }
    // SAFETY: the caller's promise about `to`; else a new mapping.
    unsafe { raw_mmap(to, len, protection, flags, -1, 0) }
}

unsafe fn unmap(at: *mut c_void, len: usize) {
    let _errno = Errno::keep();
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_munmap, at, len) };
}

/// Moves what lies at `at` to `to`, or where the kernel likes it. What it grows by is the kernel's work: the
/// new part has the protection, the file and whatever else the mapping has.
///
/// The run's own addresses are never unmapped (MREMAP_DONTUNMAP): for a moment another thread's mapping
/// could land there, among the pool's.
///
/// # Safety
/// `at` is a run of `old` bytes that is the program's, which wants it moved; and so is what `to` names.
pub unsafe fn move_out(
    at: *mut c_void,
    old: usize,
    new: usize,
    to: *mut c_void,
    keeps_old: bool,
) -> *mut c_void {
    if new > old {
        // First out of the pool, then larger, then to where it is wanted. The run stays the program's
        // until that is done, or a failure could not be undone.
        // SAFETY: the caller's promises.
        let out = unsafe { move_out(at, old, old, null_mut(), true) };
        if out == libc::MAP_FAILED {
            return out;
        }
        // SAFETY: the program's call, at the mapping's new place.
        let large = unsafe { grow(out, old, new, to) };
        let _errno = Errno::keep();
        if large == libc::MAP_FAILED {
            // SAFETY: what lay at `at` has moved away, and its addresses are still the program's.
            unsafe { move_each(out, old, at, FIXED) };
        } else {
            // SAFETY: what was there has moved.
            unsafe { mapped::unmap(at as usize, old) };
            keeper::ask();
        }
        return large;
    }
    // SAFETY: the caller's promise about `to`.
    let place = unsafe { make_room(new, to, libc::PROT_READ | libc::PROT_WRITE) };
    if place == libc::MAP_FAILED {
        return place;
    }
    // The moved mapping takes the place of the first part of the new one.
    if !keeps_old {
        mapped::taint(at as usize, new);
    }
    // SAFETY: `place` was just made for this.
    if !unsafe { move_each(at, new, place, FIXED | libc::MREMAP_DONTUNMAP) } {
        // SAFETY: made above, and known to nobody.
        unsafe { unmap(place, new) };
        return libc::MAP_FAILED;
    }
    let _errno = Errno::keep();
    if keeps_old {
        mapped::taint(at as usize, old);
    } else {
        // SAFETY: what was there has moved; the rest the program gives up.
        unsafe { mapped::unmap(at as usize, old) };
        keeper::ask();
    }
    place
}

/// Moves mapping by mapping; `false` with errno: all is where it was.
///
/// # Safety
/// Both ranges are the caller's, and what lies at `to` may go.
unsafe fn move_each(at: *mut c_void, len: usize, to: *mut c_void, flags: c_int) -> bool {
    let mut done = 0;
    while done < len {
        let from = after(at, done);
        let piece = mapped::same_mapping(from as usize, len - done);
        // SAFETY: the caller's promise.
        let moved = unsafe { raw_mremap(from, piece, piece, flags, after(to, done)) };
        if moved == libc::MAP_FAILED {
            let _errno = Errno::keep();
            if done > 0 {
                // SAFETY: what lay there is at `to`.
                unsafe { move_each(to, done, at, FIXED) };
            }
            return false;
        }
        done += piece;
    }
    true
}

/// Makes the mappings at `at` larger at their end, and moves them to `to` or where the kernel likes it.
///
/// # Safety
/// They are the caller's, and so is what lies at `to`.
unsafe fn grow(at: *mut c_void, old: usize, new: usize, to: *mut c_void) -> *mut c_void {
    let mut before = 0;
    loop {
        let piece = mapped::same_mapping(after(at, before) as usize, old - before);
        if before + piece == old {
            break;
        }
        before += piece;
    }
    if before == 0 {
        let flags = if to.is_null() { libc::MREMAP_MAYMOVE } else { FIXED };
        // SAFETY: the caller's promises.
        return unsafe { raw_mremap(at, old, new, flags, to) };
    }
    // SAFETY: the caller's promise about `to`.
    let place = unsafe { make_room(new, to, libc::PROT_NONE) };
    if place == libc::MAP_FAILED {
        return place;
    }
    let (last, last_to) = (after(at, before), after(place, before));
    // The last one first: it alone may be refused more room.
    // SAFETY: `place` was just made for this.
    let done = unsafe { raw_mremap(last, old - before, new - before, FIXED, last_to) };
    if done == libc::MAP_FAILED {
        // SAFETY: made above, and known to nobody.
        unsafe { unmap(place, new) };
        return done;
    }
    // SAFETY: as above.
    if !unsafe { move_each(at, before, place, FIXED) } {
        let _errno = Errno::keep();
        // SAFETY: back to where it was; what it has grown by is empty.
        unsafe {
            raw_mremap(last_to, old - before, old - before, FIXED, last);
            unmap(place, new);
        }
        return libc::MAP_FAILED;
    }
    place
}
