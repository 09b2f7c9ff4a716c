//! A limit on the process's own memory (`RLIMIT_AS`, `RLIMIT_DATA`) counts reserved memory, the
//! pool's free memory, and memory that waits to be torn down. With the pool the kernel could refuse
//! a program memory that it would get without. So under such a limit there is no pool.

use super::{ending, program_memory};
use crate::keeper;
use crate::kernel::kernel;
use crate::limits::{self, FAR};
use std::ffi::{c_int, c_uint};

/// Whether the kernel will allow the limit: only a privileged process may raise the hard limit.
fn is_allowed(resource: c_uint, limit: &libc::rlimit64) -> bool {
    let before = limits::of(resource);
    limit.rlim_cur <= limit.rlim_max
        && before.is_some_and(|before| limit.rlim_max <= before.rlim_max)
}

/// Makes the program's `prlimit64`.
///
/// # Safety
/// As for the system call.
pub unsafe fn call(
    pid: c_int,
    resource: c_uint,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: the caller promises that the structures are of the kind that the kernel expects, or
    // the kernel refuses them.
    let call = || unsafe { kernel!(libc::SYS_prlimit64, pid, resource, new, old) as c_int };
    let counts = [libc::RLIMIT_AS, libc::RLIMIT_DATA].contains(&resource);
    // A filter may allow no other call, and the pool has ended before it.
    if !counts || ending::has_ended_before_filter() {
        return call();
    }
    // A child of vfork shares this memory, but limits only itself.
    if !(pid == 0 || pid == keeper::pid()) || !tenure::launcher::owns_its_memory() {
        return call();
    }
    // SAFETY: two whole words, and any bytes are valid for them. The read reports memory that
    // cannot be read, and the program does not unmap it during its own call.
    let limit = unsafe { program_memory::read(new) };
    let Some(limit) = limit.filter(|limit| limit.rlim_cur < FAR) else { return call() };
    // The pool ends first: with the limit in force another thread's mmap would fail.
    ending::around(is_allowed(resource, &limit), call)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_uint, new: *const libc::rlimit64) -> c_int {
    // SAFETY: the program makes this call itself, so its structure is of the kind that the kernel
    // expects, or the kernel refuses it.
    unsafe { call(0, resource, new, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: c_int,
    resource: c_uint,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: the program makes this call itself, so its structures are of the kind that the kernel
    // expects, or the kernel refuses them.
    unsafe { call(pid, resource, new, old) }
}

/// The structure is the same on 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_uint, new: *const libc::rlimit) -> c_int {
    const { assert!(size_of::<libc::rlimit>() == size_of::<libc::rlimit64>()) };
    // SAFETY: the program makes this call itself, and the two structures are the same on 64 bits.
    unsafe { call(0, resource, new.cast(), std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: c_int,
    resource: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the program makes this call itself, and the two structures are the same on 64 bits.
    unsafe { call(pid, resource, new.cast(), old.cast()) }
}
