//! Calls by which a thread gives up rights, or leaves namespaces. They hold for the thread alone,
//! or need a process without other threads. So tenure's threads end before such a call: otherwise a
//! thread with access to the program's memory would stay outside of the program's sandbox. From
//! then on the program's own calls do the worker's work, until one may start a thread again. That
//! thread has the caller's rights. Before a filter the pool ends, too, and no thread is started any
//! more, because the filter may end the process for a call that the program itself does not make.
//!
//! | call | next definition | cases |
//! | --- | --- | --- |
//! | `prctl` | the kernel | `PR_SET_SECCOMP`, `PR_SET_NO_NEW_PRIVS`, `PR_CAPBSET_DROP`, `PR_SET_SECUREBITS` |
//! | `syscall` | the C library | seccomp, prctl, capset, Landlock, unshare, setns, and the user's and group's numbers |
//! | `capset`, `unshare`, `setns` | the C library | every call |
//!
//! Every call goes on with its arguments unchanged. Calls that a program makes without the C
//! library do not come here.

use super::ending;
use crate::errno::missing;
use crate::keeper::{self, Threads};
use crate::real;
use std::cell::Cell;
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use tenure::launcher;

thread_local! {
    /// Each thread's own, as the mode is: the thread is in seccomp's strict mode.
    static IS_STRICT: Cell<bool> = const { Cell::new(false) };
}

/// A child of a raw `clone`, or of `_Fork`, has a pool to end, too, but no handler has told the
/// library about it.
fn filter_comes() {
    if ending::has_ended_before_filter() {
        return;
    }
    keeper::end(Threads::Never);
    if launcher::owns_its_memory() {
        ending::end_before_filter();
    }
}

/// Whether a call of the thread other than `read`, `write` and `exit` ends the process. A block of the
/// pool that the thread frees then stays mapped.
pub fn is_strict() -> bool {
    IS_STRICT.get()
}

/// Called after the thread has entered the strict mode.
pub fn strict_mode_begins() {
    IS_STRICT.set(true);
}

/// The strict mode comes. Returns whether the thread has its own variables: a child of `vfork` has
/// its parent's, which goes on without that mode.
fn strict_mode_comes() -> bool {
    filter_comes();
    launcher::owns_its_memory()
}

/// Called before `prctl`. Returns whether the thread is in the strict mode if the call succeeds.
pub fn prctl_comes(option: c_int, mode: c_ulong, filter: c_ulong) -> bool {
    match option {
        libc::PR_SET_SECCOMP if mode as u32 == libc::SECCOMP_MODE_STRICT => {
            return strict_mode_comes();
        }
        // Without a filter the program only probes whether the kernel supports filters.
        libc::PR_SET_SECCOMP if filter != 0 => filter_comes(),
        libc::PR_SET_NO_NEW_PRIVS | libc::PR_CAPBSET_DROP | libc::PR_SET_SECUREBITS => {
            keeper::end(Threads::Later);
        }
        _ => {}
    }
    false
}

/// Called before `syscall`. Returns as [`prctl_comes`] does.
#[inline]
pub fn call_comes(number: c_long, first: c_long, second: c_long, third: c_long) -> bool {
    match number {
        libc::SYS_seccomp => match first as c_uint {
            // With flags the kernel refuses the strict mode: libseccomp asks so whether it knows the call.
            libc::SECCOMP_SET_MODE_STRICT if second == 0 => return strict_mode_comes(),
            libc::SECCOMP_SET_MODE_FILTER if third != 0 => filter_comes(),
            _ => {}
        },
        libc::SYS_prctl => {
            return prctl_comes(first as c_int, second as c_ulong, third as c_ulong);
        }
        // The C library's functions for users and groups change all threads; these calls do not.
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
    false
}

/// Defines a function of the C library that ends tenure's threads and then calls its next
/// definition.
macro_rules! alone {
    ($name:ident ( $($argument:ident : $kind:ty),* )) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            keeper::end(Threads::Later);
            match real::$name() {
                // SAFETY: `next` is the C library's function of that name, and it gets the program's
                // own arguments unchanged.
                Some(next) => unsafe { next($($argument),*) },
                None => missing(),
            }
        }
    };
}

alone!(capset(header: *mut c_void, data: *const c_void));
alone!(unshare(flags: c_int));
alone!(setns(fd: c_int, kind: c_int));
