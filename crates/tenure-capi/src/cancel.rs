//! `pthread_cancel`: no thread is cancelled inside tenure.
//!
//! A cancelled thread leaves all its functions at once, by an unwinding that Rust code cannot
//! survive: it ends the process, or leaves locks and pins behind. So each exported function turns
//! cancellation off while it runs.

#![allow(unsafe_code, reason = "calls the C library")]

use libc::c_int;

// The libc crate does not define these. glibc and musl have the same values and types.
const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
}

/// The former state, for [`restore`].
#[must_use]
pub(crate) struct Before {
    state: c_int,
    kind: c_int,
}

/// Turns cancellation of the calling thread off. `errno` stays as it is.
///
/// For a thread with the asynchronous type the state is not enough. glibc's `pthread_cancel` checks
/// the state, but the signal that it sends can arrive long after that, and the signal's handler
/// checks only the type. So this changes the type, too. But libc's own calls change it back while
/// they are in the kernel, and at their end they wait for a signal that is on its way. So this
/// makes one such call. The signal comes during that call, and cancels the thread before any work
/// was done. Otherwise no signal comes until [`restore`].
/// during it, and cancels the thread before anything was done, or none comes until [`restore`].
#[inline(always)]
pub(crate) fn off() -> Before {
    let mut before = Before { state: PTHREAD_CANCEL_DISABLE, kind: PTHREAD_CANCEL_DEFERRED };
    // SAFETY: each call writes the local that it is given, and changes a flag of the calling thread
    // only. A thread with the asynchronous type may call both (POSIX lists them as
    // async-cancel-safe). The poll of no files writes nothing and returns at once; a thread that is
    // cancelled there has nothing to drop.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before.state);
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &mut before.kind);
        if before.kind != PTHREAD_CANCEL_DEFERRED {
            libc::poll(std::ptr::null_mut(), 0, 0);
        }
    }
    before
}

/// Restores cancellation. With the asynchronous type a request that came meanwhile takes effect
/// inside this call, which then does not return. So the caller has only to return after it, and has
/// nothing to drop.
#[inline(always)]
pub(crate) fn restore(before: Before) {
    // SAFETY: the values are those that the system returned, and the system writes nothing to a
    // null pointer.
    unsafe {
        pthread_setcanceltype(before.kind, std::ptr::null_mut());
        pthread_setcancelstate(before.state, std::ptr::null_mut());
    }
}
