//! Pages that are there, and that the program takes to be missing: it is about to have a userfaultfd told
//! of each page that is touched for the first time.

#![allow(unsafe_code, reason = "reads and drops pages of a free run")]

use crate::os::mapping_list::Lister;
use crate::os::own_memory::OwnMemory;
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::{advise, errno, page_size};
use crate::pool::lookup;
use crate::pool::run::{flag, state};
use crate::range::PageRange;

/// Between two looks at what is to go, so that the time is short in which another thread may write there.
const MOST_AT_ONCE: usize = 64;

/// Discards the pages that are resident and read as zeros, in the runs in use that the range touches. To the
/// program a run is memory that was never touched, but its pages may be those of a former owner, zeroed. A page
/// that the program itself has filled with zeros goes as well, because nothing tells it from the others. It still
/// reads as zeros, unless a handler of the program serves it from then on.
///
/// Call it before the range is registered (`UFFDIO_REGISTER`). Afterwards discarding is an event, and a read of a
/// missing page waits for the program's handler. What another thread writes to a page of zeros at the same moment
/// may be lost.
///
/// ```
/// use tenure::pool::mapped;
/// let at = mapped::map(1 << 20, 4096).expect("there is room").as_ptr() as usize;
/// mapped::drop_zeros(at, 1 << 20); // before the program's UFFDIO_REGISTER
/// ```
#[doc(alias = "userfaultfd")]
#[doc(alias = "UFFDIO_REGISTER")]
pub fn drop_zeros(addr: usize, len: usize) {
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
            // Perhaps a run that the program has, and has changed since.
            state::LEFT => errno::kept(|| drop_zeros_of_mappings(part)),
            _ => {}
        }
    });
}

/// Of what lies where a run was: of memory that is no file's.
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

/// A run that the program has changed (protected, unmapped in parts, registered before) is read through the
/// kernel, which answers where a load would raise a signal; and only the pages that are there are looked at,
/// for the others may be waited for. Where the kernel does not tell, such a run is left alone.
fn drop_zeros_of_run(range: PageRange, changed: bool) {
    let memory = changed.then(OwnMemory::open);
    let reads_as_zeros = |page: PageRange| match &memory {
        Some(memory) => memory.reads_as_zeros(page),
        None => (page.start..page.end).step_by(size_of::<u64>()).all(|word| {
            // SAFETY: in the whole pages of a run in use, as it was handed out: readable, and words are
            // aligned. Volatile, for the program's other threads may write.
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

/// Drops the zeros among pages that are there.
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
            // Refused where it is locked; then it was to be there.
            // SAFETY: pages that read as zeros: nothing is lost by dropping them.
            let _ = unsafe { advise::drop_pages(PageRange::new(start, at)) };
        }
        if at < end {
            at += page;
        }
    }
}
