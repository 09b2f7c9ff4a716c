//! Touches of purged memory without a pin, and the SIGBUS that they raise.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::tally::{add, tally};
use crate::wrong;
use crate::{setting, sys};
use std::cell::Cell;

/// The action of a thread that touches a purged page.
pub struct Touch<'a> {
    /// The first address of the touched memory.
    pub start: usize,
    /// The end of the touched memory.
    pub end: usize,
    /// Makes the touched page readable again; called inside the signal handler.
    pub resolve: &'a dyn Fn(usize) -> bool,
}

thread_local! {
    static TOUCH: Cell<*const Touch<'static>> = const { Cell::new(std::ptr::null()) };
}

/// Runs `access`, which touches volatile memory. `touch` resolves a purged page.
pub fn touching<R>(touch: &Touch<'_>, access: impl FnOnce() -> R) -> R {
    TOUCH.set(std::ptr::from_ref(touch).cast());
    let result = access();
    TOUCH.set(std::ptr::null());
    result
}

fn on_purged(purged: tenure::volatile::Purged) -> bool {
    add(&tally().sigbus, 1);
    let touch = TOUCH.get();
    if touch.is_null() {
        wrong!("SIGBUS at {:#x}, which this thread may read and write", purged.address);
        // Continue, if that is the only cause.
        let page = purged.page as *mut u8;
        return setting::persist(|| {
            // SAFETY: memory that this thread may use is not volatile; unmarking changes nothing.
            unsafe { tenure::volatile::unmark(page, sys::page_bytes()) }.is_ok()
        });
    }
    // SAFETY: `touching` set it and is still running on this thread: the signal came in between.
    let touch = unsafe { &*touch };
    if !(touch.start..touch.end).contains(&purged.address) {
        return false;
    }
    if purged.page != purged.address / sys::page_bytes() * sys::page_bytes() {
        wrong!("on_purged_access was given {purged:x?}, whose page is another");
    }
    (touch.resolve)(purged.address)
}

/// The last case: nothing in the driver explains this signal.
extern "C" fn unexplained(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler installed with SA_SIGINFO.
    let (at, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    let touching = !TOUCH.get().is_null();
    wrong!("SIGBUS at {at:#x} (code {code}) that nothing explains (touching: {touching})");
    sys::exit_now(sys::EXIT_SIGBUS);
}

/// Installs the driver's last resort, then tenure's handler above it.
pub fn install() {
    sys::on_signal(libc::SIGBUS, unexplained);
    if let Err(error) = tenure::volatile::on_purged_access(on_purged) {
        wrong!("on_purged_access failed: {error}");
    }
}
