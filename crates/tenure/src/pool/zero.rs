//! Zeroing a run that has pages: only those that are there, so that the resident set does not grow.

use super::counters::{self, Counter};
use super::run::flag;
use super::settings::{settings, HugePages};
use super::territory::{Spot, Territory};
use crate::os::pagemap::{self, Pagemap, Pages};
use crate::os::{advise, errno, page_size, thp, HUGE_PAGE};
use crate::range::PageRange;

/// Up to here all is written: asking the kernel which pages are there takes 1.5 µs, zeroing 128 KiB
/// 2 µs.
const ASK_FROM: usize = 128 << 10;

/// Zeroes `[at, at + size)` of a run that was just taken; its first `touched` pages may hold
/// something.
///
/// The kernel may take offered pages meanwhile. A page that is gone reads as zeros from then on, and
/// one that was found and goes before it is written is zeros as well; a page found missing cannot come
/// back: `MADV_FREE` dropped what was in swap, and what is lazily free is never put there.
pub(super) fn run(territory: &Territory, spot: Spot, touched: usize, at: usize, size: usize) {
    let end = (at + size).min(territory.start(spot) + touched * page_size());
    if end <= at {
        return;
    }
    // After a reallocation the start is inside a page that is in use, so it is there.
    let first = at.next_multiple_of(page_size()).min(end);
    if end - at < ASK_FROM || first == end {
        write(at, end);
        return;
    }
    write(at, first);
    let whole = PageRange::new(first, end.next_multiple_of(page_size()));
    // Not only what is in memory: a page in swap has contents, and one that is being migrated looks as
    // if it were there.
    let mut written = first;
    let asked = errno::kept(|| {
        let pagemap = Pagemap::open()?;
        drop_split(territory, spot, &pagemap, PageRange::new(first, end.max(first)));
        pagemap.extents(whole, Pages::Data, |part| {
            write(part.start, part.end.min(end));
            written = part.end;
        })
    });
    if asked.is_err() && written < end {
        write(written, end);
    }
}

/// Drops what the former user's huge pages were split into, where the next one is to have huge pages again: else
/// the run would have base pages for as long as it is used. A huge page takes the kernel as long to zero as its base
/// pages take here.
fn drop_split(territory: &Territory, spot: Spot, pagemap: &Pagemap, range: PageRange) {
    let advised = territory.run(spot).is(flag::ADVISED);
    let from = range.start.next_multiple_of(HUGE_PAGE);
    let to = range.end / HUGE_PAGE * HUGE_PAGE;
    let wanted = match thp::anonymous_setting() {
        thp::Setting::Never => false,
        thp::Setting::Advised => advised,
        thp::Setting::Always => settings().huge_pages != HugePages::Never,
    };
    if from >= to || !wanted {
        return;
    }
    let mut at = from;
    let mut drop_to = |next: usize, resume: usize| {
        let end = next / HUGE_PAGE * HUGE_PAGE;
        if at < end {
            // Refused where it is locked.
            // SAFETY: inside a run that this thread has just taken, and whose contents nobody wants.
            let _ = unsafe { advise::drop_pages(PageRange::new(at, end)) };
        }
        at = resume;
    };
    let whole = PageRange::new(from, to);
    let told = pagemap.extents(whole, Pages::Huge, |huge| drop_to(huge.start, huge.end));
    if told.is_ok() && pagemap::scan_works() {
        drop_to(to, to);
    }
}

fn write(from: usize, to: usize) {
    counters::add(Counter::ZeroedBytes, (to - from) as u64);
    // SAFETY: inside a run that this thread has just taken and nobody else uses.
    unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
}
