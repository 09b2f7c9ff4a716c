//! Making pages resident: `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (5.14+), or the touch loop.

use super::reserve::Scratch;
use super::touch::{self, Stop};
use super::{advise, page_size};
use crate::range::PageRange;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU8, Ordering};

/// For the whole process: the kernel and its filters are one. For reading and for writing: 0 unknown, 1 works, 2 refused
/// or missing.
static WORKS: [AtomicU8; 2] = [const { AtomicU8::new(0) }; 2];

/// Whether the error may be that of a kernel that does not know the advice, or of what refuses it: a filter, a security
/// module.
pub(crate) fn may_be_refused(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::PERM | Errno::ACCESS | Errno::NOSYS)
}

/// Whether `madvise` can populate. `EINVAL` alone does not tell: kernels before 5.14 know no such
/// advice, later ones answer so for memory that cannot be populated. A page of our own decides.
pub(crate) fn by_madvise(write: bool) -> bool {
    let known = &WORKS[usize::from(write)];
    match known.load(Ordering::Relaxed) {
        1 => true,
        2 => false,
        _ => {
            // Without a page to try it on nothing is known, and nothing is remembered.
            let Ok(scratch) = Scratch::new(page_size(), false) else { return true };
            let answer = plain(scratch.range(), write);
            let works = !answer.is_err_and(may_be_refused);
            known.store(if works { 1 } else { 2 }, Ordering::Relaxed);
            works
        }
    }
}

/// Asks anew, because a sandbox may have been closed since. It asks for no page at all: the kernel returns
/// 0 where it knows the advice (0.1 µs; a page to try it on takes 10).
pub(crate) fn still_by_madvise(write: bool) -> bool {
    let known = &WORKS[usize::from(write)];
    let nothing = PageRange { start: page_size(), end: page_size() };
    if known.load(Ordering::Relaxed) == 1 && plain(nothing, write).is_err() {
        known.store(0, Ordering::Relaxed);
    }
    by_madvise(write)
}

/// Populates the range: afterwards every page of it has been readable (or writable) once. What the
/// pages hold is unchanged.
///
/// `EINVAL`: special mapping or protection. `EFAULT`: nothing backs a page. `ENOMEM`: not mapped, or
/// no memory. `EHWPOISON`. The touch loop answers `EFAULT` for all but the lack of memory.
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

/// Makes every page of the range readable: a page never touched becomes the shared zero page, which
/// costs no memory. `MADV_POPULATE_READ`, or [`super::touch`] where that is missing.
pub(crate) fn for_reading(range: PageRange) -> Result<(), Errno> {
    populate(range, false).map_err(|stop| stop.errno)
}

/// The first page of a range that `MADV_POPULATE` does not make resident, and what it answers for that
/// page; `None`: all are there. Found by halving, so that what is there is walked over twice.
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
    // It may have come meanwhile.
    plain(PageRange::new(low, high), write).err().map(|found| (low, found))
}

fn plain(range: PageRange, write: bool) -> Result<(), Errno> {
    if write {
        advise::populate_write(range)
    } else {
        advise::populate_read(range)
    }
}
