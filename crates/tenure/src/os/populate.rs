//! Makes pages resident, by `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (5.14+), or by the touch
//! loop.

use super::reserve::Scratch;
use super::touch::{self, Stop};
use super::{advise, page_size};
use crate::range::PageRange;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU8, Ordering};

/// For the whole process: all threads have one kernel, and a filter applies to all. The entries are
/// for reading and for writing: 0 unknown, 1 works, 2 refused or missing.
static WORKS: [AtomicU8; 2] = [const { AtomicU8::new(0) }; 2];

/// Returns whether the error may come from a kernel that does not know the advice, or from a filter
/// or security module that refuses it.
pub(crate) fn may_be_refused(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::PERM | Errno::ACCESS | Errno::NOSYS)
}

/// Returns whether `madvise` can populate. `EINVAL` alone does not decide: kernels before 5.14 do
/// not know the advice, and later ones return it for memory that cannot be populated. So this tries
/// the call on a page of its own.
pub(crate) fn by_madvise(write: bool) -> bool {
    let known = &WORKS[usize::from(write)];
    match known.load(Ordering::Relaxed) {
        1 => true,
        2 => false,
        _ => {
            // Without a page for the trial the result is not known, and is not remembered.
            let Ok(scratch) = Scratch::new(page_size(), false) else { return true };
            let answer = plain(scratch.range(), write);
            let works = !answer.is_err_and(may_be_refused);
            known.store(if works { 1 } else { 2 }, Ordering::Relaxed);
            works
        }
    }
}

/// Tries again, because a sandbox may have been closed since. The call has an empty range: the
/// kernel returns 0 if it knows the advice (0.1 µs; a trial on a page takes 10).
pub(crate) fn still_by_madvise(write: bool) -> bool {
    let known = &WORKS[usize::from(write)];
    let nothing = PageRange { start: page_size(), end: page_size() };
    if known.load(Ordering::Relaxed) == 1 && plain(nothing, write).is_err() {
        known.store(0, Ordering::Relaxed);
    }
    by_madvise(write)
}

/// Populates the range: afterwards every page of it has been readable (or writable) once. The
/// contents of the pages are unchanged.
///
/// `EINVAL`: special mapping or protection. `EFAULT`: nothing backs a page. `ENOMEM`: not mapped,
/// or no memory. `EHWPOISON`: a page is poisoned. The touch loop returns `EFAULT` in all cases but
/// the lack of memory.
pub(crate) fn populate(range: PageRange, write: bool) -> Result<(), Stop> {
    let known = WORKS[usize::from(write)].load(Ordering::Relaxed);
    if known != 2 {
        match plain(range, write) {
            Ok(()) => return Ok(()),
            Err(errno) if may_be_refused(errno) && known == 0 && !by_madvise(write) => {}
            Err(errno) => return Err(Stop { errno, page: None }),
        }
    }
    if write {
        touch::write_each_page(range)
    } else {
        touch::read_each_page(range)
    }
}

/// Makes every page of the range readable. A page that was never touched becomes the shared zero
/// page, which costs no memory. Uses `MADV_POPULATE_READ`, or [`super::touch`] where that is
/// missing.
pub(crate) fn for_reading(range: PageRange) -> Result<(), Errno> {
    populate(range, false).map_err(|stop| stop.errno)
}

/// Makes every page of the range writable, its bytes unchanged. [`populate`] has the errors.
pub(crate) fn for_writing(range: PageRange) -> Result<(), Errno> {
    populate(range, true).map_err(|stop| stop.errno)
}

/// Returns the first page of a range that `MADV_POPULATE` does not make resident, with the error
/// for that page. `None`: all pages are there. The search halves the range, so it walks over
/// present pages twice.
pub(crate) fn first_refused(range: PageRange, write: bool) -> Option<(usize, Errno)> {
    plain(range, write).err()?;
    let (mut low, mut high) = (range.start, range.end);
    while high - low > page_size() {
        let middle = low + (high - low) / 2 / page_size() * page_size();
        match plain(PageRange::new(low, middle), write) {
            Ok(()) => low = middle,
            Err(_) => high = middle,
        }
    }
    // The page may have come meanwhile.
    plain(PageRange::new(low, high), write).err().map(|found| (low, found))
}

fn plain(range: PageRange, write: bool) -> Result<(), Errno> {
    if write {
        advise::populate_write(range)
    } else {
        advise::populate_read(range)
    }
}
