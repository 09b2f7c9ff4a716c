//! System calls that reach the kernel in every program.
//!
//! The launcher defines the C library's functions on mappings, `syscall` too, and lets the pool
//! give up its memory before such a call of the program's. It must not do so for a question of
//! tenure's own about that memory, which may come while the memory is being offered. (rustix makes
//! most system calls itself, too.) Also, a program may have functions of its own of these names,
//! with a lock under which it frees. So tenure's calls go to the kernel directly.
//!
//! A call that leaves a lasting change on memory that the program has mapped is [shown](shown_call)
//! to the launcher: unmapped by a call that it does not see, the memory would stay the pool's, with
//! whatever the program maps there next.

#![allow(unsafe_code, reason = "makes system calls")]

use rustix::io::Errno;
use std::ffi::c_long;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes the system call of that number. Leaves `errno` alone.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The kernel may act on these arguments.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub unsafe fn call(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Result<c_long, Errno> {
    const LAST_ERRNO: c_long = 4095;
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
    if (-LAST_ERRNO..0).contains(&result) {
        return Err(Errno::from_raw_os_error(-result as i32));
    }
    Ok(result)
}

/// As above, by the C library: the launcher does not run on other machines.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The kernel may act on these arguments.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe fn call(number: c_long, arguments: [c_long; 6]) -> Result<c_long, Errno> {
    // SAFETY: the caller promises that the kernel may act on these arguments.
    unsafe { call_by_library(number, arguments) }
}

/// For the whole process: whether this copy of tenure is the launcher's. Set before the program
/// runs.
static IS_LAUNCHERS: AtomicBool = AtomicBool::new(false);

/// This copy of tenure is the launcher's. It tells its pool itself of what it changes.
pub fn is_launchers_copy() {
    IS_LAUNCHERS.store(true, Ordering::Relaxed);
}

pub(crate) fn is_launchers() -> bool {
    IS_LAUNCHERS.load(Ordering::Relaxed)
}

/// Makes a system call that changes a program's mapping, or asks what is mapped, by the C library:
/// the launcher may have to see it. Leaves `errno` alone.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The kernel may act on these arguments.
pub(crate) unsafe fn shown_call(number: c_long, arguments: [c_long; 6]) -> Result<c_long, Errno> {
    match is_launchers() {
        // SAFETY: the caller promises that the kernel may act on these arguments.
        true => unsafe { call(number, arguments) },
        // SAFETY: as above.
        false => unsafe { call_by_library(number, arguments) },
    }
}

unsafe fn call_by_library(
    number: c_long,
    [a, b, c, d, e, f]: [c_long; 6],
) -> Result<c_long, Errno> {
    let _kept = super::errno::Kept::now();
    // SAFETY: the caller promises that the kernel may act on these arguments.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(super::errno::last_errno()),
        result => Ok(result),
    }
}

/// Asks a file by ioctl(2), with a structure that the request is for.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The structure is the request's, and the kernel may act on it.
pub(crate) unsafe fn ioctl<T>(file: i32, request: u64, about: *mut T) -> Result<c_long, Errno> {
    let arguments = [file.into(), request as c_long, about.addr() as c_long, 0, 0, 0];
    // SAFETY: the caller promises that the kernel may act on the structure.
    unsafe { call(libc::SYS_ioctl, arguments) }
}
