//! Zeroing a run that has pages: only those that are there, so that the resident set does not grow.

#![allow(unsafe_code, reason = "clears pages of a free run")]

use super::counters::{self, Counter};
use super::reservation::{Reservation, Spot};
use super::run::flag;
use super::settings::{settings, HugePages};
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
pub(super) fn run(reservation: &Reservation, spot: Spot, touched: usize, at: usize, size: usize) {
    let end = (at + size).min(reservation.start(spot) + touched * page_size());
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
        drop_split(reservation, spot, &pagemap, first, end);
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
///
/// So with smaller folios where they were advised: a run that has lost pages since has lost the folios, and would
/// get single pages in their place.
fn drop_split(reservation: &Reservation, spot: Spot, pagemap: &Pagemap, start: usize, end: usize) {
    let advised = reservation.run(spot).is(flag::ADVISED);
    let always = || {
        settings().huge_pages != HugePages::Never
            && end - start >= HUGE_PAGE
            && thp::first_anonymous() == thp::Setting::Always
    };
    if !advised && !always() {
        return;
    }
    let from = start.next_multiple_of(HUGE_PAGE);
    let to = end / HUGE_PAGE * HUGE_PAGE;
    if from >= to {
        let end = end / page_size() * page_size();
        if start >= end {
            return;
        }
        let whole = PageRange::new(start, end);
        let mut is_missing = false;
        let told = pagemap.extents(whole, Pages::Missing, |_| is_missing = true);
        if told.is_ok() && is_missing {
            drop_pages(whole);
        }
        return;
    }
    let mut split = [PageRange { start: 0, end: 0 }; 8];
    let (mut at, mut count) = (from, 0);
    let mut note = |huge_from: usize, huge_to: usize| {
        let end = huge_from / HUGE_PAGE * HUGE_PAGE;
        if at < end && count < split.len() {
            split[count] = PageRange { start: at, end };
            count += 1;
        }
        at = huge_to;
    };
    let told = pagemap.extents(PageRange::new(from, to), Pages::Huge, |huge| {
        note(huge.start, huge.end);
    });
    note(to, to);
    let is_known = told.is_ok() && pagemap::scan_works();
    if count > 0 && is_known && thp::anonymous_now() != thp::Setting::Never {
        split[..count].iter().for_each(|part| drop_pages(*part));
    }
}

/// Refused where they are locked.
fn drop_pages(range: PageRange) {
    // SAFETY: inside a run that this thread has just taken, and whose contents nobody wants.
    let _ = unsafe { advise::drop_pages(range) };
}

fn write(from: usize, to: usize) {
    counters::add(Counter::ZeroedBytes, (to - from) as u64);
    // SAFETY: inside a run that this thread has just taken and nobody else uses.
    unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
}
