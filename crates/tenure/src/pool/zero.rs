//! Zeroes a run that has pages. It writes only to resident pages, so that the resident set does not
//! grow.

#![allow(unsafe_code, reason = "clears pages of a free run")]

use super::counters::{self, Counter};
use super::reservation::{Reservation, Spot};
use super::run::flag;
use super::settings::{settings, HugePages};
use crate::os::pagemap::{self, Pagemap, Pages};
use crate::os::{advise, errno, page_size, thp, HUGE_PAGE};
use crate::range::PageRange;

/// Up to this size all pages are written. Finding the resident pages takes 1.5 µs, and zeroing 128
/// KiB takes 2 µs.
const ASK_FROM: usize = 128 << 10;

/// Zeroes `[at, at + size)` of a run that was just taken. Only its first `touched` pages may hold
/// other bytes than zero.
///
/// The kernel may take offered pages meanwhile. A page that is gone reads as zeros from then on. A
/// page that was found and goes before it is written reads as zeros as well. A page that was found
/// missing cannot come back: `MADV_FREE` dropped its copy in swap, and the kernel does not put
/// lazily freed pages there.
pub(super) fn run(reservation: &Reservation, spot: Spot, touched: usize, at: usize, size: usize) {
    let end = (at + size).min(reservation.start(spot) + touched * page_size());
    if end <= at {
        return;
    }
    // After a reallocation the start lies inside a page that is in use, so that page is resident.
    let first = at.next_multiple_of(page_size()).min(end);
    if end - at < ASK_FROM || first == end {
        write(at, end);
        return;
    }
    write(at, first);
    let whole = PageRange::new(first, end.next_multiple_of(page_size()));
    // Pages in swap count, too, because they have contents. A page that the kernel migrates looks
    // like one in swap.
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

/// Drops the small pages that the former user's huge pages were split into, if the run is to have
/// huge pages. Otherwise the run would have base pages for as long as it is used. The kernel takes
/// as long to zero a huge page as this thread takes for its base pages.
///
/// The function does so, too, for smaller folios if the run was advised: a run that has lost pages
/// has lost its folios, and would get single pages in their place.
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

/// Drops pages. The kernel refuses if they are locked.
fn drop_pages(range: PageRange) {
    // SAFETY: inside a run that this thread has just taken, and no owner needs its contents.
    let _ = unsafe { advise::drop_pages(range) };
}

fn write(from: usize, to: usize) {
    counters::add(Counter::ZeroedBytes, (to - from) as u64);
    // SAFETY: inside a run that this thread has just taken, so no other thread uses it.
    unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
}
