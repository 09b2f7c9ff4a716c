//! This library's own system calls. They do not use any definition of the C library.

#![allow(unsafe_code, reason = "makes system calls")]

use crate::errno::Errno;
use std::ffi::c_long;

/// Makes the system call of that number. Sets errno.
pub unsafe fn call(number: c_long, arguments: [c_long; 6]) -> c_long {
    // SAFETY: the caller promises that the kernel may act on these arguments.
    unsafe { tenure::launcher::system_call(number, arguments) }.unwrap_or_else(|errno| {
        Errno::set(errno.raw_os_error());
        -1
    })
}

/// Makes a system call by number, with up to six arguments of any kind that fits a register.
macro_rules! kernel {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        let given: &[std::ffi::c_long] = &[$($argument as std::ffi::c_long),*];
        let mut all = [0; 6];
        all[..given.len()].copy_from_slice(given);
        $crate::kernel::call($number, all)
    }};
}
pub(crate) use kernel;
