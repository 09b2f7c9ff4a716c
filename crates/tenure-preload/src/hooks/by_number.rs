//! `syscall(2)`: calls that a program makes by their number. Each goes to the kernel. If it names
//! mappings, the pool first lets go of the range. None is served.
//!
//! This library's own calls do not come here ([`crate::kernel`]).

use super::rules::{let_go, let_go_before_advice};
use super::{confine, in_flight, rlimit, state};
use crate::kernel::call;
use crate::last_thread;
use crate::real::known;
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use tenure::pool::mapped::{self, Call};

/// Called before a call by number.
fn before(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) {
    if number == libc::SYS_mmap && e as c_int >= 0 {
        in_flight::mapped_file(e as c_int, d as c_int, f);
    }
    let at = a as *const c_void;
    let len = b as usize;
    match number {
        libc::SYS_mprotect
        | libc::SYS_pkey_mprotect
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munlock
        | libc::SYS_mbind
        | libc::SYS_mseal
        | libc::SYS_set_mempolicy_home_node
        | libc::SYS_remap_file_pages
        | libc::SYS_munmap => let_go(at, len, Call::Changes),
        libc::SYS_msync | libc::SYS_mincore => let_go(at, len, Call::Uses),
        libc::SYS_madvise => let_go_before_advice(at, len, c as c_int),
        libc::SYS_process_madvise => {
            state::let_go_of_each(b as *const libc::iovec, c as usize, d as c_int);
        }
        libc::SYS_mmap if is_fixed(d as c_int) => let_go(at, len, Call::Replaces),
        libc::SYS_mmap if a != 0 => let_go(at, len, Call::Uses),
        libc::SYS_mremap => {
            let_go(at, len, Call::Changes);
            if d as c_int & libc::MREMAP_FIXED != 0 {
                let_go(e as *const c_void, c as usize, Call::Replaces);
            }
        }
        libc::SYS_prctl if a as c_int == libc::PR_SET_VMA => {
            let_go(c as *const c_void, d as usize, Call::Changes);
        }
        _ => {}
    }
}

fn is_fixed(flags: c_int) -> bool {
    let no_replace = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
    flags & libc::MAP_FIXED != 0 && !no_replace
}

/// Called after a call by number that failed.
fn refused(number: c_long, [a, b, c, d, e, _]: [c_long; 6]) {
    match number {
        libc::SYS_mmap if is_fixed(d as c_int) => mapped::was_refused(a as usize, b as usize),
        libc::SYS_mremap if d as c_int & libc::MREMAP_FIXED != 0 => {
            mapped::was_refused(e as usize, c as usize);
        }
        _ => {}
    }
}

fn names_mappings(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_mmap
            | libc::SYS_mprotect
            | libc::SYS_munmap
            | libc::SYS_mremap
            | libc::SYS_msync
            | libc::SYS_mincore
            | libc::SYS_madvise
            | libc::SYS_mlock
            | libc::SYS_mlock2
            | libc::SYS_munlock
            | libc::SYS_mbind
            | libc::SYS_mseal
            | libc::SYS_set_mempolicy_home_node
            | libc::SYS_pkey_mprotect
            | libc::SYS_remap_file_pages
            | libc::SYS_process_madvise
            | libc::SYS_prctl
    )
}

/// Makes the call as its hook does, if the pool has more to do than to let go of a range. `None`: it
/// does not.
///
/// # Safety
/// As for the system call.
unsafe fn as_by_name(number: c_long, [a, b, c, d, _, _]: [c_long; 6]) -> Option<c_long> {
    // SAFETY: the caller promises that the program makes this call itself. So its structures are of the
    // kind that the kernel expects, or the kernel refuses them. (setrlimit's structure is the same on
    // 64 bits.)
    unsafe {
        Some(match number {
            libc::SYS_mlockall => state::mlockall_of_program(a as c_int).into(),
            libc::SYS_shmat => {
                state::shmat_of_program(a as c_int, b as *const c_void, c as c_int) as c_long
            }
            libc::SYS_ioctl if state::is_of_userfaultfd(b as c_ulong) => {
                state::ioctl_of_program(a as c_int, b as c_ulong, c as *mut c_void).into()
            }
            libc::SYS_prlimit64 => {
                rlimit::call(a as c_int, b as c_uint, c as *const _, d as *mut _).into()
            }
            libc::SYS_setrlimit => {
                rlimit::call(0, a as c_uint, b as *const _, std::ptr::null_mut()).into()
            }
            _ => return None,
        })
    }
}

/// C declares variable arguments; the ABI passes them as these six.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let arguments = [a, b, c, d, e, f];
    let becomes_strict = confine::call_comes(number, a, b, c);
    in_flight::call_comes(number, arguments);
    // SAFETY: the program makes this call itself, with these arguments.
    if let Some(result) = unsafe { as_by_name(number, arguments) } {
        return result;
    }
    if number == libc::SYS_exit && !confine::is_strict() {
        last_thread::ends_by_number();
    }
    if !names_mappings(number) {
        let result = match known!(syscall) {
            // SAFETY: the program makes this call itself, and it goes on unchanged to the
            // definition behind this one.
            Some(next) => unsafe { next(number, a, b, c, d, e, f) },
            // The next definition is not known yet, and it cannot be looked up here.
            // SAFETY: the program makes this call itself, and it goes to the kernel with its
            // arguments unchanged.
            None => unsafe { call(number, arguments) },
        };
        if result == 0 && becomes_strict {
            confine::strict_mode_begins();
        }
        return result;
    }
    before(number, arguments);
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    let result = unsafe { call(number, arguments) };
    match result {
        -1 => refused(number, arguments),
        0 if becomes_strict => confine::strict_mode_begins(),
        _ => {}
    }
    result
}
