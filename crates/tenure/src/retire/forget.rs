//! Forgets tenure's own records of a range that is about to go.

use crate::lock;
use crate::os::signal::Blocked;
use crate::range::PageRange;
use crate::tracking::raw;
use rustix::io::Errno;

/// Whether any range is marked volatile. Costs one load.
pub(super) fn any_marks() -> bool {
    raw::any()
}

/// Whether tenure may know of a lock in the range. One load if nothing was locked through tenure.
pub(super) fn may_be_locked(range: PageRange) -> bool {
    lock::may_be_locked(range)
}

/// `EDEADLK`: a signal handler unmaps memory in the middle of a call of its thread, for which
/// [`forget`] would wait.
pub(super) fn may_forget(range: PageRange) -> Result<(), Errno> {
    match raw::is_inside(range) {
        true => Err(Errno::DEADLK),
        false => Ok(()),
    }
}

/// Forgets marks and locks, because the next mapping at these addresses is another one. If nothing
/// was marked or locked through tenure, this takes two loads and two system calls, and allocates
/// nothing.
///
/// Signals are blocked meanwhile: a handler may unmap too, and would wait for the code that it
/// interrupted.
pub(super) fn forget(range: PageRange) -> Forgotten {
    let _blocked = Blocked::all();
    lock::forget_unmapped(range);
    Forgotten(raw::forget_unmapped(range))
}

/// What [`forget`] has forgotten.
#[must_use = "it marks again what the kernel does not unmap"]
pub(super) struct Forgotten(crate::tracking::forgotten::Forgotten);

impl Forgotten {
    /// Whether tenure's own userfaultfd watches part of the range.
    pub fn is_watched(&self) -> bool {
        self.0.watched
    }

    /// The kernel has not unmapped this part: its marks are there again.
    #[cold]
    #[inline(never)]
    pub fn stays(&self, part: PageRange) {
        let _blocked = Blocked::all();
        raw::stays(&self.0, part);
    }
}
