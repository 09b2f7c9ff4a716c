//! After these calls the kernel may still read or write memory that the program has unmapped or
//! freed: vmsplice, MSG_ZEROCOPY, io_uring, AIO. The kernel keeps such pages for itself, so munmap
//! is safe. To use a page again is not: it would have another owner's bytes. From the first such
//! call on, the pool uses no page again.
//!
//! Calls that a program makes without the C library do not come here. Calls by `syscall` do.

use crate::errno::{missing, Errno};
use crate::{real, symbol};
use std::ffi::{c_int, c_long, c_uint, c_void, CStr};
use std::sync::atomic::{AtomicBool, Ordering};
use tenure::pool;

/// For the whole process: such a call was made, so the pool uses no page again.
static SEEN: AtomicBool = AtomicBool::new(false);

fn end_reuse() {
    if !SEEN.swap(true, Ordering::Relaxed) {
        let _errno = Errno::keep();
        pool::configure(pool::settings().with_reuse(false));
    }
}

/// Called in the constructor. The libraries for io_uring and AIO make their system calls directly,
/// so their presence in the process counts as a call.
pub fn regard_libraries() {
    if real::has_queues() || is_loaded_since() {
        end_reuse();
    }
}

/// Whether one of them is loaded now: since the lookup, a library's constructor may have loaded it. By
/// the files' names, because a lookup that fails leaves its message to the program.
fn is_loaded_since() -> bool {
    let mut found = false;
    symbol::each_object(&mut |about| {
        if !about.dlpi_name.is_null() {
            // SAFETY: the loader's terminated string, for the length of the call.
            let path = unsafe { CStr::from_ptr(about.dlpi_name) }.to_bytes();
            let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
            found |= file.starts_with(b"liburing") || file.starts_with(b"libaio");
        }
        !found
    });
    found
}

/// Called at a mapping of a file: it may be a queue of an io_uring, if it has one of these offsets.
pub fn mapped_file(flags: c_int, offset: i64) {
    const QUEUES: [i64; 2] = [0x0800_0000, 0x1000_0000];
    if flags & libc::MAP_SHARED != 0 && QUEUES.contains(&offset) {
        end_reuse();
    }
}

/// Called before `syscall`.
#[inline]
pub fn call_comes(number: c_long, level: c_long, name: c_long) {
    match number {
        libc::SYS_vmsplice | libc::SYS_io_uring_setup | libc::SYS_io_setup => end_reuse(),
        libc::SYS_setsockopt => option_comes(level as c_int, name as c_int),
        _ => {}
    }
}

fn option_comes(level: c_int, name: c_int) {
    if level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY {
        end_reuse();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(
    fd: c_int,
    vector: *const libc::iovec,
    count: usize,
    flags: c_uint,
) -> isize {
    end_reuse();
    match real::vmsplice() {
        // SAFETY: `next` is the C library's function of that name, and it gets the program's own
        // arguments unchanged.
        Some(next) => unsafe { next(fd, vector, count, flags) },
        None => missing() as isize,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    option_comes(level, name);
    match real::setsockopt() {
        // SAFETY: `next` is the C library's function of that name, and it gets the program's own
        // arguments unchanged.
        Some(next) => unsafe { next(fd, level, name, value, len) },
        None => missing(),
    }
}
