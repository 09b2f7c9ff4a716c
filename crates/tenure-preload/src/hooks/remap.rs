//! mremap.

use super::rules::{is_plain_growth, let_go_of_pool, touches_pool};
use crate::errno::Errno;
use crate::kernel::kernel;
use crate::real::known;
use crate::serving::MAPPINGS;
use crate::{counters, keeper, reuse};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use tenure::pool::mapped::{self, Call};
use tenure::retire;

/// Makes the program's call by the C library's own definition. Newer ones (Debian 12's among them)
/// refuse unknown flags themselves, so a filter that refuses mremap does not see those calls.
unsafe fn of_the_library(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    match known!(mremap) {
        // SAFETY: `next` is the C library's function of that name, and it gets the program's own
        // arguments unchanged.
        Some(next) => unsafe { next(at, old_len, new_len, flags, to) },
        // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
        // unchanged.
        None => unsafe {
            kernel!(libc::SYS_mremap, at, old_len, new_len, flags, to) as *mut c_void
        },
    }
}

/// C declares it with a variable argument; the ABI passes that argument as the fifth.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    counters::MREMAPS.one();
    if touches_pool(at as usize, old_len) {
        if let Some(grown) = grown_in_pool(at, old_len, new_len, flags) {
            return grown;
        }
        let_go_of_pool(at as usize, old_len, Call::Changes);
    }
    if flags & libc::MREMAP_FIXED != 0 && touches_pool(to as usize, new_len) {
        let_go_of_pool(to as usize, new_len, Call::Replaces);
        // SAFETY: the program makes this call itself, so nothing refers to the memory that it
        // unmaps or moves.
        let moved = unsafe { of_the_library(at, old_len, new_len, flags, to) };
        if moved == libc::MAP_FAILED {
            mapped::was_refused(to as usize, new_len);
        }
        return moved;
    }
    let cut = old_len.saturating_sub(new_len);
    let may_be_cut = flags & !libc::MREMAP_MAYMOVE == 0 && new_len > 0;
    // SAFETY: the program makes this call itself, so nothing refers to the tail any more.
    if may_be_cut && MAPPINGS.retires(cut) && unsafe { shrunk(at, old_len, new_len, flags) } {
        return at;
    }
    // SAFETY: the program makes this call itself, so nothing refers to the memory that it unmaps or
    // moves.
    unsafe { of_the_library(at, old_len, new_len, flags, to) }
}

/// Makes a whole run larger inside the pool.
#[cold]
#[inline(never)]
fn grown_in_pool(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
) -> Option<*mut c_void> {
    if !is_plain_growth(at as usize, old_len, new_len, flags) || !MAPPINGS.serves(new_len) {
        return None;
    }
    reuse::regard_new_libraries();
    let errno = Errno::keep();
    // SAFETY: the program makes this call itself, so it uses the run under its new address from now
    // on.
    let grown = unsafe { mapped::resize(at as usize, old_len, new_len) };
    drop(errno);
    keeper::ask();
    grown.map(|at| at.as_ptr().cast())
}

/// Whether the tail was cut off, as the program asks. `false`: nothing was done, and the kernel is
/// to make the call.
#[cold]
#[inline(never)]
unsafe fn shrunk(at: *mut c_void, old_len: usize, new_len: usize, flags: c_int) -> bool {
    let errno = Errno::keep();
    // A call for the part that stays comes first: if the kernel refuses it, the tail must stay,
    // too.
    // SAFETY: the program's call without its tail, which changes nothing.
    let is_allowed = unsafe { of_the_library(at, new_len, new_len, flags, null_mut()) } == at;
    // SAFETY: the program gives the tail up.
    let gone = is_allowed && unsafe { retire::detach_tail(at.cast(), old_len, new_len) };
    drop(errno);
    keeper::ask();
    if gone {
        counters::ZAPPED_BEFORE.one();
        counters::ZAPPED_BEFORE_BYTES.add((old_len - new_len) as u64);
    }
    gone
}
