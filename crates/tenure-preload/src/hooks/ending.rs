//! Ends the pool, for a program that the pool would disturb.

use crate::errno::Errno;
use crate::serving::{ALLOCATIONS, MAPPINGS};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tenure::{pool, retire};

/// The longest wait for memory that was unmapped. It takes so long only if the kernel refuses to
/// unmap it.
const LONGEST_TEARDOWN: Duration = Duration::from_secs(60);

/// Ends the pool around a call of the program that counts or locks the pool's memory. If the kernel
/// will allow the call, the pool ends before it, because the call must find the process without the
/// pool. Otherwise the pool ends after the call if it succeeds all the same.
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

/// Ends the pool: only the program's blocks stay, and from now on requests go to the next
/// allocator. Memory that waits to be torn down is torn down, too.
pub fn end_the_pool() {
    let _errno = Errno::keep();
    ALLOCATIONS.serve_no_more();
    MAPPINGS.serve_no_more();
    pool::end();
    retire::drain(Some(LONGEST_TEARDOWN));
}

/// For the whole process, as the pool is: it has ended before a filter.
static ENDED_BEFORE_FILTER: AtomicBool = AtomicBool::new(false);

/// Whether the process, or one of its ancestors, has called [`end_before_filter`]. The filter may
/// end it for a call that asks for more.
pub fn has_ended_before_filter() -> bool {
    ENDED_BEFORE_FILTER.load(Ordering::Acquire)
}

/// Ends the pool before a filter that may end the process for any call that the program itself does
/// not make. The pool needs madvise, mprotect and files of /proc, and so does every call that
/// tenure serves in another way.
pub fn end_before_filter() {
    let _errno = Errno::keep();
    ALLOCATIONS.serve_no_more();
    // It maps memory when the program frees a block.
    ALLOCATIONS.teach_glibc(false);
    MAPPINGS.leave_all();
    pool::end_before_filter();
    retire::drain(Some(LONGEST_TEARDOWN));
    ENDED_BEFORE_FILTER.store(true, Ordering::Release);
}
