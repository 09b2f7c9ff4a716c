//! Functions of the C library that this library calls in hooks, defined here as bare system calls: they
//! are no cancellation points, and they are not the program's own functions of these names.
//!
//! `malloc`, `free` and `munmap` are no cancellation points. But this library closes files and
//! sleeps in them, and so do the standard library's destructors. A thread with a pending
//! cancellation would end inside the hook, with a lock of tenure's held, or the process would abort
//! because signals are blocked there. And a program's own `fcntl`, say, may need a lock under which the
//! program frees. The functions here are hidden from all other libraries.

#![allow(unsafe_code, reason = "defines functions that the standard library calls")]

use crate::errno::Errno;
use crate::kernel::kernel;
use rustix::time::{clock_gettime, ClockId};
use std::ffi::{c_char, c_int, c_long, c_void};

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

/// The command's argument is in the register in which a caller passes one of any number.
#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller passes what the command needs.
    unsafe { kernel!(libc::SYS_fcntl, fd, command, argument) as c_int }
}

/// By the kernel's shared page for the clocks that the standard library reads.
#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_clock_gettime(
    clock: libc::clockid_t,
    time: *mut libc::timespec,
) -> c_int {
    let now = match clock {
        libc::CLOCK_MONOTONIC => clock_gettime(ClockId::Monotonic),
        libc::CLOCK_REALTIME => clock_gettime(ClockId::Realtime),
        // SAFETY: the caller promises room for a time.
        _ => return unsafe { kernel!(libc::SYS_clock_gettime, clock, time) as c_int },
    };
    // SAFETY: as above.
    unsafe { time.write(libc::timespec { tv_sec: now.tv_sec, tv_nsec: now.tv_nsec }) };
    0
}

/// Returns the error number, and leaves `errno` alone. As the C library does, it blocks none of the
/// two signals that the library itself sends (for cancellations and `setuid`).
#[unsafe(no_mangle)]
unsafe extern "C" fn tenure_pthread_sigmask(
    how: c_int,
    set: *const u64,
    before: *mut u64,
) -> c_int {
    const OF_LIBRARY: u64 = 1 << (32 - 1) | 1 << (33 - 1);
    let _errno = Errno::keep();
    // SAFETY: the caller passes null or a set. The kernel's has 64 bits, at its start.
    let set = unsafe { set.as_ref() }.map(|set| match how {
        libc::SIG_UNBLOCK => *set,
        _ => set & !OF_LIBRARY,
    });
    let set = set.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the set is null or a local one; the caller passes null or room for the mask before.
    match unsafe { kernel!(libc::SYS_rt_sigprocmask, how, set, before, size_of::<u64>()) } {
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

hidden!("close" "open64" "read" "write" "writev" "clock_nanosleep" "fcntl" "clock_gettime" "pthread_sigmask");
