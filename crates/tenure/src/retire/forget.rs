//! Forgets tenure's own records of a range that is about to go.

use crate::lock;
use crate::os::signal::Blocked;
use crate::range::PageRange;
use crate::runtime::services;
use rustix::io::Errno;

/// Whether any range is marked volatile. Costs one load.
pub(super) fn any_marks() -> bool {
    crate::tracking::raw::any()
}

/// Whether tenure may know of a lock in the range. One load if nothing was locked through tenure.
pub(super) fn may_be_locked(range: PageRange) -> bool {
    lock::may_be_locked(range)
}

/// `EDEADLK`: a signal handler unmaps memory in the middle of a call of its thread, for which
/// [`forget`] would wait.
pub(super) fn may_forget(range: PageRange) -> Result<(), Errno> {
    match crate::tracking::raw::is_inside(range) {
        true => Err(Errno::DEADLK),
        false => Ok(()),
    }
}

/// Forgets marks and locks, because the next mapping at these addresses is another one. If nothing
/// was marked or locked through tenure, this takes two loads and two system calls, and allocates
/// nothing. `true`: tenure's own userfaultfd watches part of the range.
///
/// Signals are blocked meanwhile: a handler may unmap too, and would wait for the code that it
/// interrupted.
pub(super) fn forget(range: PageRange) -> bool {
    let _blocked = Blocked::all();
    lock::forget_unmapped(range);
    services::forget(range)
}
