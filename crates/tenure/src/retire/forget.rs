//! What tenure itself knows of a range that goes.

use crate::lock;
use crate::os::signal::Blocked;
use crate::range::PageRange;
use crate::runtime::services;

/// Whether anything is marked volatile. One load.
pub(super) fn any_marks() -> bool {
    crate::tracking::raw::any()
}

/// Forgets marks and locks: what is mapped there next is another mapping. Where nothing was marked or
/// locked through tenure, two loads, two system calls and no allocation. `true`: tenure itself watches part
/// of it.
///
/// Signals are blocked meanwhile: a handler may unmap too, and would wait for the code that it interrupted.
pub(super) fn forget(range: PageRange) -> bool {
    let _blocked = Blocked::all();
    lock::forget_unmapped(range);
    services::forget(range)
}
