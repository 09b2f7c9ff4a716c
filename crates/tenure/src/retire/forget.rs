//! Forgets tenure's own records of a range that is about to go.

use crate::lock::{self, Unmapping};
use crate::os::detach::SplitOff;
use crate::os::signal::Blocked;
use crate::range::PageRange;
use crate::tracking::raw;
use rustix::io::Errno;
use std::cell::Cell;

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
/// nothing. `None`: the kernel will refuse to unmap the range (`ENOMEM`), so nothing is forgotten.
///
/// The kernel is asked last of all, and while the worker leaves the marked memory as it is: it
/// watches it piece by piece, and the kernel joins watched neighbours, so that what was the end of a
/// mapping may become its middle.
///
/// Signals are blocked meanwhile: a handler may unmap too, and would wait for the code that it
/// interrupted.
pub(super) fn forget(range: PageRange) -> Option<Forgotten> {
    let _blocked = Blocked::all();
    let split = Cell::new(None);
    // Asked anew at each try, because the worker may have joined mappings since.
    let may_go = || match SplitOff::from_middle(range) {
        Ok(found) => {
            split.set(found.or(split.take()));
            true
        }
        Err(error) => error.may_be_unmapped,
    };
    if may_be_locked(range) && !may_go() {
        return None;
    }
    let marks = raw::forget_unmapped(range, may_go)?;
    let locks = lock::forget_unmapped(range);
    Some(Forgotten { marks, locks, split: split.into_inner() })
}

/// Forgets the marks and locks of a range that is unmapped already.
pub(super) fn forget_unmapped(range: PageRange) {
    let _blocked = Blocked::all();
    let _ = raw::forget_unmapped(range, || true);
    let _ = lock::forget_unmapped(range);
}

/// Forgets the marks and locks of a range in which a new mapping lies already. The worker may have
/// watched that one.
pub(super) fn forget_under_new_mapping(range: PageRange) {
    let _blocked = Blocked::all();
    if raw::forget_unmapped(range, || true).is_some_and(|marks| marks.watched) {
        raw::end_watch(range);
    }
    let _ = lock::forget_unmapped(range);
}

/// What [`forget`] has forgotten.
#[must_use = "the kernel may not unmap the range"]
pub(super) struct Forgotten {
    marks: crate::tracking::forgotten::Forgotten,
    locks: Unmapping,
    split: Option<SplitOff>,
}

impl Forgotten {
    /// Whether tenure's own userfaultfd watches part of the range.
    pub fn is_watched(&self) -> bool {
        self.marks.watched
    }

    /// The kernel has not unmapped these parts, which are in order. What was marked in them counts as
    /// lost from here on. Their locks are as before.
    #[cold]
    #[inline(never)]
    pub fn stays(&self, parts: &[PageRange]) {
        let _blocked = Blocked::all();
        for part in parts {
            self.split.iter().for_each(|split| split.undo(*part));
            raw::stays(self.marks, *part);
        }
        lock::stays(self.locks, parts);
    }
}
