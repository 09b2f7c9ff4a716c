//! Calls by which a thread gives up rights, or leaves namespaces: for itself alone, or only where the process has no
//! other thread. Tenure's threads end before them: none is left outside of the program's sandbox, with the
//! program's memory in its hands. From then on the program's own calls do their work, until one may
//! start a thread again, which has that caller's rights; after a filter none is started any more, for
//! the filter may end the process for it.
//!
//! | call | who is next | what is looked at |
//! | --- | --- | --- |
//! | `prctl` | the kernel | `PR_SET_SECCOMP`, `PR_SET_NO_NEW_PRIVS`, `PR_CAPBSET_DROP`, `PR_SET_SECUREBITS` |
//! | `syscall` | the kernel | seccomp, prctl, capset, Landlock, unshare, setns, and the user's and group's numbers |
//! | `capset`, `unshare`, `setns` | the C library | every call |
//!
//! Everything goes on as it came. A program that makes these calls by itself, past the C library, is not seen.

use crate::keeper::{self, Threads};
use crate::symbol::OfTheLibrary;
use std::ffi::{c_int, c_long, c_ulong, c_void};

/// Called before `prctl`.
pub fn prctl_comes(option: c_int) {
    match option {
        libc::PR_SET_SECCOMP => keeper::end(Threads::Never),
        libc::PR_SET_NO_NEW_PRIVS | libc::PR_CAPBSET_DROP | libc::PR_SET_SECUREBITS => {
            keeper::end(Threads::Later);
        }
        _ => {}
    }
}

fn call_comes(number: c_long, first: c_ulong) {
    match number {
        libc::SYS_seccomp => keeper::end(Threads::Never),
        libc::SYS_prctl => prctl_comes(first as c_int),
        // The C library's functions for users and groups go to all threads; these calls do not.
        libc::SYS_capset
        | libc::SYS_landlock_restrict_self
        | libc::SYS_unshare
        | libc::SYS_setns
        | libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups => keeper::end(Threads::Later),
        _ => {}
    }
}

/// C declares variable arguments; six is what the kernel takes.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[no_mangle]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
    e: c_ulong,
    f: c_ulong,
) -> c_long {
    call_comes(number, a);
    // SAFETY: the program's call, or this library's.
    let answer = unsafe { kernel(number, [a, b, c, d, e, f]) };
    if (-4095..0).contains(&answer) {
        super::Errno::set(-answer as c_int);
        return -1;
    }
    answer
}

/// # Safety
/// As the call itself.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn kernel(number: c_long, arguments: [c_ulong; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    let answer;
    // SAFETY: the kernel's convention: it changes rcx, r11 and the answer; memory as the call has it.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// # Safety
/// As the call itself.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn kernel(number: c_long, arguments: [c_ulong; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    let answer;
    // SAFETY: the kernel's convention: it changes the answer's register; memory as the call has it.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    answer
}

/// Defines a function of the C library's that goes to its next definition after the threads have ended.
macro_rules! alone {
    ($name:ident ( $($argument:ident : $kind:ty),* )) => {
        #[no_mangle]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            keeper::end(Threads::Later);
            static NEXT: OfTheLibrary = OfTheLibrary::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without zeros"),
                },
            );
            match NEXT.get() {
                next if next.is_null() => super::missing(),
                // SAFETY: the C library's function of that name; the program's call.
                next => unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> c_int>(next)(
                        $($argument),*
                    )
                },
            }
        }
    };
}

alone!(capset(header: *mut c_void, data: *const c_void));
alone!(unshare(flags: c_int));
alone!(setns(fd: c_int, kind: c_int));
