//! A number that differs between a process and its forked children.

use super::{advise, page_size, reserve};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The source of the process's number.
struct Numbers {
    /// The count of numbers handed out so far; a child continues its parent's count.
    handed_out: AtomicU64,
    /// The address of a page that the kernel wipes for a child. 0: not made yet; 1: the kernel
    /// wipes none.
    place: AtomicUsize,
}

/// For the whole process: a process has one number.
static NUMBERS: Numbers = Numbers { handed_out: AtomicU64::new(0), place: AtomicUsize::new(0) };
/// The first bytes of the page, so many, are the number.
pub(super) const USED: usize = size_of::<AtomicU64>();

/// Returns a number that differs between a process and its forked children, with or without fork
/// handlers. Costs two memory reads. Takes no lock, which a child could find held.
pub(crate) fn current() -> u64 {
    let at = match NUMBERS.place.load(Ordering::Acquire) {
        0 => make_place(),
        at => at,
    };
    if at == 1 {
        // MADV_WIPEONFORK is refused: process ids distinguish processes, until the kernel reuses
        // them.
        return u64::from(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs());
    }
    // SAFETY: the page was mapped by `make_place`, zeroed, is never unmapped, and its first bytes
    // are used as this atomic only.
    let number = unsafe { &*(at as *const AtomicU64) };
    match number.load(Ordering::Acquire) {
        // The process has no number yet, or the kernel has wiped the page for a child.
        0 => {
            let new = NUMBERS.handed_out.fetch_add(1, Ordering::Relaxed) + 1;
            match number.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => new,
                Err(other) => other,
            }
        }
        number => number,
    }
}

/// Whether [`current`] makes no system call: the page is there.
pub(crate) fn is_told_by_a_page() -> bool {
    NUMBERS.place.load(Ordering::Acquire) > 1
}

/// Returns the address of the page, whose first bytes are [used](USED). `None`: the kernel wipes
/// none.
pub(super) fn wiped_page() -> Option<usize> {
    let at = match NUMBERS.place.load(Ordering::Acquire) {
        0 => make_place(),
        at => at,
    };
    (at != 1).then_some(at)
}

#[cold]
fn make_place() -> usize {
    let page = page_size();
    let mapped = reserve::map_own(page, page).ok();
    let wiped = mapped.filter(|page| advise::wipe_on_fork(*page).is_ok());
    let new = wiped.map_or(1, |page| page.start);
    let won = NUMBERS.place.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if let Some(page) = mapped.filter(|_| !won || wiped.is_none()) {
        // SAFETY: mapped above; its address was not published.
        let _ = unsafe { reserve::unmap(page) };
    }
    NUMBERS.place.load(Ordering::Acquire)
}
