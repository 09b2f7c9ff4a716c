//! A C handler for touches of purged pages.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::cancel;
use crate::report::status;
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use tenure_core::volatile::{self, Detection, Purged};

/// A purged page raises SIGBUS when it is touched (userfaultfd).
pub const TENURE_DETECTION_USERFAULTFD: c_int = 1;
/// A purged page reads as zeros when it is touched. Unmarking and pinning report purges just as
/// exactly. The program must not write to a marked range, and touches are not refilled.
pub const TENURE_DETECTION_WORDS: c_int = 2;

/// Called for a touch of a purged page. `address` is the touched address. `[range, range + len)` is
/// the volatile range around it, as tenure knows it (neighbouring marks may have been merged). If
/// it returns 0, the signal goes on; otherwise the access is tried again.
pub type tenure_purged_access_fn =
    Option<unsafe extern "C" fn(address: *mut c_void, range: *mut c_void, len: usize) -> c_int>;

type Handler = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;

static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Returns how this process finds purges: TENURE_DETECTION_USERFAULTFD, or TENURE_DETECTION_WORDS
/// where userfaultfd is refused (many container profiles). `tenure doctor` prints why.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_detection() -> c_int {
    status("tenure_detection", || {
        Ok(match volatile::detection() {
            Detection::Userfaultfd => TENURE_DETECTION_USERFAULTFD,
            Detection::Words => TENURE_DETECTION_WORDS,
        })
    })
}

/// Calls `handler` on the thread that touches a purged page of a volatile range. If the handler
/// unmarks the range, makes its contents and returns 1, the access is tried again. If it returns 0,
/// the signal goes to the SIGBUS handler that was installed before this call (by default the
/// process dies of it). A second call replaces the handler. After a call with NULL every signal
/// goes on.
///
/// The handler runs inside a signal handler, at the instruction that touched the page. It may call
/// tenure, and everything else that the touching code could call at that point.
///
/// tenure installs no signal handler before this is called. Where tenure_detection() is
/// TENURE_DETECTION_WORDS, purged pages raise no SIGBUS and the handler is never called.
///
/// Errors: those of sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_on_purged_access(handler: tenure_purged_access_fn) -> c_int {
    status("tenure_on_purged_access", || {
        let pointer = handler.map_or(std::ptr::null_mut(), |handler| handler as *mut ());
        let before = HANDLER.swap(pointer, Ordering::AcqRel);
        if !pointer.is_null() {
            volatile::on_purged_access(on_purged)
                .inspect_err(|_| HANDLER.store(before, Ordering::Release))?;
        }
        Ok(0)
    })
}

fn on_purged(purged: Purged) -> bool {
    let handler = HANDLER.load(Ordering::Acquire);
    if handler.is_null() {
        return false;
    }
    // SAFETY: `HANDLER` only holds pointers to such functions.
    let handler: Handler = unsafe { std::mem::transmute(handler) };
    let (start, len) = purged.range;
    // The signal interrupted code that may be cancelled. Unwinding must not start in the middle of
    // it.
    let before = cancel::off();
    // SAFETY: the program's own function, with the arguments that the header promises it.
    let again = unsafe { handler(purged.address as *mut c_void, start as *mut c_void, len) != 0 };
    cancel::restore(before);
    again
}
