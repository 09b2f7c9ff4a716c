//! `mlock2`, `munlock` and the whole-process calls, and a cheap question: is it locked?

use crate::range::PageRange;
use rustix::io::Errno;
use rustix::mm::{
    mlock_with, mlockall, msync, munlock, munlockall, MlockAllFlags, MlockFlags, MsyncFlags,
};
use std::ffi::c_void;

/// Locks a range, now or page by page as it is touched.
///
/// A lock on fault laid over a full one weakens it, and a full one over one on fault strengthens it;
/// neither leaves a moment in which the pages are not locked. On a failure the leading part may be
/// locked and charged.
pub(crate) fn lock(range: PageRange, on_fault: bool) -> Result<(), Errno> {
    let flags = if on_fault { MlockFlags::ONFAULT } else { MlockFlags::empty() };
    // SAFETY: locking changes where pages may go, never what they hold; the kernel checks the range.
    unsafe { mlock_with(range.start as *mut c_void, range.len(), flags) }
}

/// Unlocks a range, up to its first hole.
pub(crate) fn unlock(range: PageRange) -> Result<(), Errno> {
    // SAFETY: unlocking changes where pages may go, never what they hold; the kernel checks the
    // range.
    unsafe { munlock(range.start as *mut c_void, range.len()) }
}

/// What `msync` tells about locks in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Mapped throughout, and no part of it is locked.
    Unlocked,
    /// At least one mapping in it is locked, of either kind; there may be holes behind that one.
    Locked,
    /// Not mapped throughout; what is mapped is not locked.
    Hole,
}

/// Asks whether anything in the range is locked. 130 ns for a range in one mapping, and a lookup for
/// each further mapping; nothing is written or dropped.
pub(crate) fn seen(range: PageRange) -> Result<Seen, Errno> {
    // Not by way of the C library, whose msync is a cancellation point.
    // SAFETY: MS_ASYNC|MS_INVALIDATE does nothing but refuse locked mappings and holes.
    let done = unsafe {
        msync(range.start as *mut c_void, range.len(), MsyncFlags::ASYNC | MsyncFlags::INVALIDATE)
    };
    match done {
        Ok(()) => Ok(Seen::Unlocked),
        Err(Errno::BUSY) => Ok(Seen::Locked),
        Err(Errno::NOMEM) => Ok(Seen::Hole),
        Err(errno) => Err(errno),
    }
}

/// `mlockall`. Without `future` it ends an earlier one; with `on_fault` it weakens what is locked in
/// full. It fails before it has changed anything.
pub(crate) fn lock_all(current: bool, future: bool, on_fault: bool) -> Result<(), Errno> {
    let mut flags = MlockAllFlags::empty();
    flags.set(MlockAllFlags::CURRENT, current);
    flags.set(MlockAllFlags::FUTURE, future);
    flags.set(MlockAllFlags::ONFAULT, on_fault);
    mlockall(flags)
}

/// `munlockall`: everything, and what is mapped later.
pub(crate) fn unlock_all() -> Result<(), Errno> {
    munlockall()
}
