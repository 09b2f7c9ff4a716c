//! This library's own system calls. They do not use any definition of the C library.

#![allow(unsafe_code, reason = "makes system calls")]

use crate::errno::Errno;
use std::ffi::{c_int, c_long};

/// Makes the system call of that number. Sets errno.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub unsafe fn call(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let result: c_long;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller promises that the kernel may act on these arguments; the instruction
    // changes no other register.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller promises that the kernel may act on these arguments; the instruction
    // changes no other register.
    unsafe {
        std::arch::asm!(
            "svc 0",
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f, in("x8") number,
            options(nostack),
        );
    }
    const LAST_ERRNO: c_long = 4095;
    if (-LAST_ERRNO..0).contains(&result) {
        Errno::set(-result as c_int);
        return -1;
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe fn call(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    // SAFETY: the caller promises that the kernel may act on these arguments.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
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
