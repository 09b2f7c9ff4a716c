//! A program that limits its own addresses gets those of the pool's reservation.

use super::by_number::kernel;
use super::{program_memory, Errno};
use std::ffi::{c_int, c_uint};
use tenure::pool;

/// With limits beyond that (four reservations) nothing of ours can be in the way.
const FAR: u64 = 64 << 40;

#[cold]
fn give_way(limit: &libc::rlimit64) {
    let _errno = Errno::keep();
    if limit.rlim_cur < FAR {
        pool::give_up_addresses();
    }
}

unsafe fn call(
    pid: c_int,
    resource: c_uint,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    if resource == libc::RLIMIT_AS && (pid == 0 || pid as u32 == std::process::id()) {
        // Before the call: with the limit in force another thread's mmap would fail.
        // SAFETY: the caller's structure, or null, or what the kernel is about to refuse.
        if let Some(limit) = unsafe { program_memory::read(new) } {
            give_way(&limit);
        }
    }
    // SAFETY: the program's call; it sets errno.
    unsafe { kernel!(libc::SYS_prlimit64, pid, resource, new, old) as c_int }
}

#[no_mangle]
pub unsafe extern "C" fn setrlimit64(resource: c_uint, new: *const libc::rlimit64) -> c_int {
    // SAFETY: the program's call.
    unsafe { call(0, resource, new, std::ptr::null_mut()) }
}

#[no_mangle]
pub unsafe extern "C" fn prlimit64(
    pid: c_int,
    resource: c_uint,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: the program's call.
    unsafe { call(pid, resource, new, old) }
}

/// On 64 bits the same structure.
#[no_mangle]
pub unsafe extern "C" fn setrlimit(resource: c_uint, new: *const libc::rlimit) -> c_int {
    const { assert!(size_of::<libc::rlimit>() == size_of::<libc::rlimit64>()) };
    // SAFETY: the program's call.
    unsafe { call(0, resource, new.cast(), std::ptr::null_mut()) }
}

#[no_mangle]
pub unsafe extern "C" fn prlimit(
    pid: c_int,
    resource: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the program's call.
    unsafe { call(pid, resource, new.cast(), old.cast()) }
}
