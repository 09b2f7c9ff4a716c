//! Resident pages that the program takes to be missing. It is about to register a userfaultfd,
//! which reports each first touch of a missing page.

#![allow(unsafe_code, reason = "reads and drops pages of a free run")]

use crate::os::mapping_list::Lister;
use crate::os::own_memory::OwnMemory;
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::{advise, errno, page_size};
use crate::pool::lookup;
use crate::pool::run::{flag, state};
use crate::range::PageRange;

/// The most pages that are checked before they are dropped. A small number makes the time short in
/// which another thread may write to one of them.
const MOST_AT_ONCE: usize = 64;

/// Discards the pages that are resident and read as zeros, in the runs in use that the range
/// touches. To the program a run is memory that was never touched, but its pages may be those of a
/// former owner, zeroed. The call also discards a page that the program itself has filled with
/// zeros, because nothing distinguishes it from the others. The page still reads as zeros, unless a
/// handler of the program fills it from then on.
///
/// Call it before the range is registered (`UFFDIO_REGISTER`). Afterwards discarding raises an
/// event, and a read of a missing page waits for the program's handler.
///
/// ```
/// use tenure::pool::mapped;
/// let at = mapped::map(1 << 20, 4096).expect("there is room").as_ptr() as usize;
/// // SAFETY: no other thread uses the new memory.
/// unsafe { mapped::drop_zeros(at, 1 << 20) }; // before the program's UFFDIO_REGISTER
/// ```
///
/// # Safety
/// The caller owns the memory in the range. If another thread writes to a page of zeros at the same
/// moment, its write may be lost.
#[doc(alias = "userfaultfd")]
#[doc(alias = "UFFDIO_REGISTER")]
pub unsafe fn drop_zeros(addr: usize, len: usize) {
    let Some((reservation, range)) = super::inside(addr, len) else { return };
    reservation.over(range, |spot, part| {
        let run = reservation.run(spot);
        match run.state() {
            state::IN_USE => {
                let live = lookup::live(reservation, spot);
                let (from, to) = (part.start.max(live.start), part.end.min(live.end));
                if from < to {
                    let range = PageRange::new(from, to);
                    errno::kept(|| drop_zeros_of_run(range, run.is(flag::TAINTED)));
                }
            }
            // It may be a run that the program has in use, and has changed since.
            state::LEFT => errno::kept(|| drop_zeros_of_mappings(part)),
            _ => {}
        }
    });
}

/// Drops the zeros of private memory without a file, at the addresses of a former run.
fn drop_zeros_of_mappings(range: PageRange) {
    let mut lister = Lister::new();
    let mut at = range.start;
    while at < range.end {
        let Ok(Some(listed)) = lister.at_or_after(at) else { return };
        let (from, to) = (listed.mapping.start.max(at), listed.mapping.end.min(range.end));
        if from >= to {
            return;
        }
        if listed.mapping.inode == 0 && !listed.mapping.shared {
            drop_zeros_of_run(PageRange::new(from, to), true);
        }
        at = to;
    }
}

/// The program may have changed a run: protected it, unmapped it in parts, or registered it before.
/// The kernel reads such a run for this thread, and returns an error where a load would raise a
/// signal. Only resident pages are read, because a read of a missing page may wait for the
/// program's handler. If the kernel does not tell which pages are resident, such a run stays as it
/// is.
fn drop_zeros_of_run(range: PageRange, changed: bool) {
    let memory = changed.then(OwnMemory::open);
    let reads_as_zeros = |page: PageRange| match &memory {
        Some(memory) => memory.reads_as_zeros(page),
        None => (page.start..page.end).step_by(size_of::<u64>()).all(|word| {
            // SAFETY: the words lie in the whole pages of a run in use that the program has not
            // changed, so they are readable and aligned. The read is volatile, because other
            // threads may write.
            unsafe { (word as *const u64).read_volatile() == 0 }
        }),
    };
    let mut at = range.start;
    let listed = Pagemap::open().and_then(|pagemap| {
        pagemap.extents(range, Pages::Missing, |missing| {
            drop_zeros_there(at, missing.start, reads_as_zeros);
            at = missing.end;
        })
    });
    if listed.is_ok() || !changed {
        drop_zeros_there(at, range.end, reads_as_zeros);
    }
}

/// Drops the pages that read as zeros among resident pages.
fn drop_zeros_there(from: usize, to: usize, reads_as_zeros: impl Fn(PageRange) -> bool) {
    let page = page_size();
    let mut at = from;
    while at < to {
        let start = at;
        let end = to.min(start + MOST_AT_ONCE * page);
        while at < end && reads_as_zeros(PageRange::new(at, at + page)) {
            at += page;
        }
        if start < at {
            // The kernel refuses if the pages are locked: the program then wants them resident.
            // SAFETY: the pages read as zeros, so dropping them loses nothing.
            let _ = unsafe { advise::drop_pages(PageRange::new(start, at)) };
        }
        if at < end {
            at += page;
        }
    }
}
