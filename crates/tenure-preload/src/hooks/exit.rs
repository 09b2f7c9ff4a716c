//! Ends of the process at which the destructors do not run.

use crate::kernel::kernel;
use crate::{real, report};
use std::ffi::c_int;

/// Ends the process as the kernel does.
pub fn leave(status: c_int) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { kernel!(libc::SYS_exit_group, status) };
    }
}

#[no_mangle]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    report::at_exit();
    match real::exit_now() {
        // SAFETY: the program's call.
        Some(exit) => unsafe { exit(status) },
        None => leave(status),
    }
}

#[no_mangle]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the program's call, under its other name.
    unsafe { _exit(status) }
}

/// The C library runs the handlers of at_quick_exit and then calls its own `_exit`, which is not seen:
/// the report is as of the beginning.
#[no_mangle]
pub unsafe extern "C" fn quick_exit(status: c_int) -> ! {
    report::at_exit();
    match real::quick_exit() {
        // SAFETY: the program's call.
        Some(exit) => unsafe { exit(status) },
        None => leave(status),
    }
}
