//! Calls that end the process without running the destructors.

use crate::kernel::kernel;
use crate::{real, report};
use std::ffi::c_int;

/// Ends the process by the kernel's own call.
pub fn leave(status: c_int) -> ! {
    loop {
        // SAFETY: no code runs after it, and the call takes no address.
        unsafe { kernel!(libc::SYS_exit_group, status) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    // SAFETY: the program makes this call itself.
    unsafe { exit_of_program(status) }
}

/// Not under its exported name: a program may define `_exit` by `_Exit`.
unsafe fn exit_of_program(status: c_int) -> ! {
    report::at_exit();
    match real::exit_now() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(exit) => unsafe { exit(status) },
        None => leave(status),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: `_exit` under its other name, and the program makes this call itself.
    unsafe { exit_of_program(status) }
}

/// The C library runs the handlers of at_quick_exit and then calls its own `_exit`, which does not
/// come here. So the report is made before those handlers run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quick_exit(status: c_int) -> ! {
    report::at_exit();
    match real::quick_exit() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(exit) => unsafe { exit(status) },
        None => leave(status),
    }
}
