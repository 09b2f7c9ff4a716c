//! Ends of the process at which the destructors do not run.

use crate::kernel::kernel;
use crate::{real, report};
use std::ffi::c_int;

/// Ends the process as the kernel does.
pub fn leave(status: c_int) -> ! {
    loop {
        // SAFETY: no code runs after it, and the call takes no address.
        unsafe { kernel!(libc::SYS_exit_group, status) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    report::at_exit();
    match real::exit_now() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the definition
        // behind this one.
        Some(exit) => unsafe { exit(status) },
        None => leave(status),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: `_exit` under its other name, which the program calls itself.
    unsafe { _exit(status) }
}

/// The C library runs the handlers of at_quick_exit and then calls its own `_exit`, which is not seen:
/// the report is as of the beginning.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quick_exit(status: c_int) -> ! {
    report::at_exit();
    match real::quick_exit() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the definition
        // behind this one.
        Some(exit) => unsafe { exit(status) },
        None => leave(status),
    }
}
