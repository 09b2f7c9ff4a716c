//! `mlock2` and `munlock`.

use crate::range::PageRange;
use rustix::io::Errno;
use rustix::mm::{mlock_with, munlock, MlockFlags};
use std::ffi::c_void;

/// Locks a range, now or page by page as it is touched.
pub(crate) fn lock(range: PageRange, on_fault: bool) -> Result<(), Errno> {
    let flags = if on_fault { MlockFlags::ONFAULT } else { MlockFlags::empty() };
    // SAFETY: locking changes where pages may go, never what they hold; the kernel checks the range.
    unsafe { mlock_with(range.start as *mut c_void, range.len(), flags) }
}

/// Unlocks a range.
pub(crate) fn unlock(range: PageRange) -> Result<(), Errno> {
    // SAFETY: as above.
    unsafe { munlock(range.start as *mut c_void, range.len()) }
}
