//! Ends of the process at which the destructors do not run.

use crate::{keeper, next, report};
use std::ffi::{c_int, c_void};

/// Ends the process as the kernel does.
pub fn leave(status: c_int) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

#[no_mangle]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    report::at_exit();
    match next::exit_now() {
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
    match next::quick_exit() {
        // SAFETY: the program's call.
        Some(exit) => unsafe { exit(status) },
        None => leave(status),
    }
}

/// Once the main thread has ended in this way the process ends with its last thread. This library's never
/// end, so somebody has to look for that.
#[no_mangle]
pub unsafe extern "C-unwind" fn pthread_exit(value: *mut c_void) -> ! {
    type Exit = unsafe extern "C-unwind" fn(*mut c_void) -> !;
    if rustix::thread::gettid() == rustix::process::getpid() {
        keeper::end_with_the_program();
    }
    let next = next::by_name(c"pthread_exit".as_ptr());
    if next.is_null() {
        leave(0);
    }
    // SAFETY: the C library's definition of the same symbol; the program's call. It unwinds this frame,
    // which has nothing to drop.
    unsafe { std::mem::transmute::<*mut c_void, Exit>(next)(value) }
}
