//! After these calls the kernel may still read or write memory that the program has unmapped or
//! freed: vmsplice, MSG_ZEROCOPY, io_uring, AIO. The kernel keeps such pages for itself, so munmap
//! is safe. To use a page again is not: it would have another owner's bytes. From the first such
//! call on, the pool uses no page again.
//!
//! Calls that a program makes without the C library do not come here. Calls by `syscall` do.

use super::{confine, ending};
use crate::errno::{missing, Errno};
use crate::{real, reuse};
use rustix::fs::FileType;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::os::fd::BorrowedFd;

/// Called in the constructor. The libraries for io_uring and AIO make their system calls directly,
/// so their presence in the process counts as a call.
pub fn regard_libraries() {
    match real::has_queues() {
        true => reuse::end(),
        // Since the lookup a library's constructor may have loaded one.
        false => reuse::watch_libraries(),
    }
}

/// The kernel may go on reading for a library that is gone, and then nothing tells of it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dlclose(library: *mut c_void) -> c_int {
    if !confine::is_strict() {
        reuse::regard_before_unload();
    }
    match real::dlclose() {
        // SAFETY: `next` is the C library's function of that name, and it gets the program's own
        // argument unchanged.
        Some(next) => unsafe { next(library) },
        None => missing(),
    }
}

/// Called at a mapping of a file: it may be a queue of an io_uring, if it has one of these offsets.
pub fn mapped_file(fd: c_int, flags: c_int, offset: i64) {
    const QUEUES: [i64; 2] = [0x0800_0000, 0x1000_0000];
    if flags & libc::MAP_SHARED != 0 && QUEUES.contains(&offset) {
        // A filter may allow no other call, and the pool has ended before it.
        if ending::has_ended_before_filter() || may_be_queues(fd) {
            reuse::end();
        }
    }
}

/// Whether a descriptor may be an io_uring's. The kernel shows a file without a type and without
/// bytes for it; another file may have data at these offsets.
#[cold]
fn may_be_queues(fd: c_int) -> bool {
    let _errno = Errno::keep();
    // SAFETY: it is not -1, and nothing here closes it. Only the kernel sees the number. If another
    // thread closes it, the kernel refuses the call, or tells of the file that got the number.
    let about = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
    match about.map(|about| (FileType::from_raw_mode(about.st_mode), about.st_size)) {
        Ok((FileType::RegularFile, bytes)) => bytes == 0,
        Ok((kind, _)) => kind == FileType::Unknown,
        Err(_) => true,
    }
}

/// Called before `syscall`.
#[inline]
pub fn call_comes(number: c_long, [_, b, c, d, _, _]: [c_long; 6]) {
    match number {
        libc::SYS_vmsplice
        | libc::SYS_io_setup
        | libc::SYS_io_uring_setup
        | libc::SYS_io_uring_enter
        | libc::SYS_io_uring_register => reuse::end(),
        libc::SYS_setsockopt => option_comes(b as c_int, c as c_int),
        libc::SYS_sendmsg => message_goes(c as c_int),
        libc::SYS_sendto | libc::SYS_sendmmsg => message_goes(d as c_int),
        _ => {}
    }
}

fn option_comes(level: c_int, name: c_int) {
    if level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY {
        reuse::end();
    }
}

/// The socket's option may be older than the program, or another process's.
#[inline]
fn message_goes(flags: c_int) {
    if flags & libc::MSG_ZEROCOPY != 0 {
        reuse::end();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(
    fd: c_int,
    vector: *const libc::iovec,
    count: usize,
    flags: c_uint,
) -> isize {
    reuse::end();
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

/// Defines functions that send a message. They are cancellation points: a thread's end may unwind
/// through them.
macro_rules! sends {
    ($($name:ident by $flags:ident ($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
                message_goes($flags);
                match real::$name() {
                    // SAFETY: `next` is the C library's function of that name, and it gets the
                    // program's own arguments unchanged.
                    Some(next) => unsafe { next($($argument),*) },
                    None => missing() as $result,
                }
            }
        )*
    };
}

sends! {
    send by flags (fd: c_int, from: *const c_void, len: usize, flags: c_int) -> isize;
    sendto by flags (
        fd: c_int, from: *const c_void, len: usize, flags: c_int, to: *const libc::sockaddr,
        to_len: libc::socklen_t
    ) -> isize;
    sendmsg by flags (fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize;
    sendmmsg by flags (
        fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int
    ) -> c_int;
}
