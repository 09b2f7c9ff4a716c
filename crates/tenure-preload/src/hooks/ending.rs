//! The end of the pool, for a program with which it would interfere.

use crate::errno::Errno;
use crate::serving::{ALLOCATIONS, MAPPINGS};
use std::ffi::c_int;
use std::time::Duration;
use tenure::{pool, retire};

/// How long what was unmapped is waited for. It takes as long only where the kernel refuses to unmap it.
const LONGEST_TEARDOWN: Duration = Duration::from_secs(60);

/// Ends the pool around a call of the program's that counts or locks what the pool has: before the call where it will
/// be allowed, for the call is to find the process without it; else after it, should it succeed nevertheless.
pub fn around(is_allowed: bool, call: impl FnOnce() -> c_int) -> c_int {
    if is_allowed {
        end_the_pool();
        return call();
    }
    let done = call();
    if done == 0 {
        end_the_pool();
    }
    done
}

/// Nothing of the pool's stays but what the program has, and from here on requests go to the next allocator. What
/// waits to be torn down goes first, too.
pub fn end_the_pool() {
    let _errno = Errno::keep();
    ALLOCATIONS.serve_no_more();
    MAPPINGS.serve_no_more();
    pool::end();
    retire::drain(Some(LONGEST_TEARDOWN));
}

/// The same, before a filter that may end the process for any call which the program itself does not make: the pool
/// needs madvise, mprotect and files of /proc, and so does every call that is served in another way.
pub fn end_before_filter() {
    let _errno = Errno::keep();
    ALLOCATIONS.serve_no_more();
    MAPPINGS.leave_all();
    pool::end_before_filter();
    retire::drain(Some(LONGEST_TEARDOWN));
}
