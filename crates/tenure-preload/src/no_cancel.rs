//! Cancellation points of the C library that this library calls, defined here without the
//! cancellation.
//!
//! `malloc`, `free` and `munmap` are no cancellation points. But this library closes files and
//! sleeps in them, and so do the standard library's destructors. A thread with a pending
//! cancellation would end inside the hook, with a lock of tenure's held, or the process would abort
//! because signals are blocked there. So this library defines these functions, too, as bare system
//! calls. They are hidden from all other libraries.

#![allow(unsafe_code, reason = "defines functions that the standard library calls")]

use crate::errno::Errno;
use crate::kernel::kernel;
use std::ffi::{c_char, c_int, c_void};

#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_close(fd: c_int) -> c_int {
    // SAFETY: the caller gives the descriptor up.
    unsafe { kernel!(libc::SYS_close, fd) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_open64(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: the caller passes a terminated string, which the kernel reads.
    unsafe { kernel!(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_read(fd: c_int, to: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller promises that so many bytes may be written there.
    unsafe { kernel!(libc::SYS_read, fd, to, len) as isize }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_write(fd: c_int, from: *const c_void, len: usize) -> isize {
    // SAFETY: the caller promises that so many bytes may be read there.
    unsafe { kernel!(libc::SYS_write, fd, from, len) as isize }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_writev(fd: c_int, from: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: the caller promises that the parts, and the bytes that they name, may be read.
    unsafe { kernel!(libc::SYS_writev, fd, from, count) as isize }
}

/// Returns the error number, and leaves `errno` alone.
#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_clock_nanosleep(
    clock: libc::clockid_t,
    flags: c_int,
    time: *const libc::timespec,
    left: *mut libc::timespec,
) -> c_int {
    let _errno = Errno::keep();
    // SAFETY: the caller passes a time, and null or room for the remaining time.
    match unsafe { kernel!(libc::SYS_clock_nanosleep, clock, flags, time, left) } {
        0 => 0,
        // SAFETY: the C library gives the address of the calling thread's own errno.
        _ => unsafe { *libc::__errno_location() },
    }
}

/// Defines a hidden symbol for each name. This library's own references find it first.
macro_rules! hidden {
    ($($name:literal)*) => {
        std::arch::global_asm!($(
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".hidden tenure_", $name),
            concat!(".set ", $name, ", tenure_", $name),
        )*);
    };
}

hidden!("close" "open64" "read" "write" "writev" "clock_nanosleep");
