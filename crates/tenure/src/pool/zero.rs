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
    let mut split = Between::from(from);
    let told = pagemap.extents(PageRange::new(from, to), Pages::Huge, |huge| {
        split.pass(huge.start, huge.end);
    });
    split.pass(to, to);
    let is_known = told.is_ok() && pagemap::scan_works();
    if !split.parts().is_empty() && is_known && thp::anonymous_now() != thp::Setting::Never {
        split.parts().iter().for_each(|part| drop_pages(*part));
    }
}

/// What lies between huge pages, in whole huge pages: the first eight parts.
struct Between {
    /// The end of the last huge page.
    at: usize,
    parts: [PageRange; 8],
    count: usize,
}

impl Between {
    fn from(at: usize) -> Between {
        Between { at, parts: [PageRange { start: 0, end: 0 }; 8], count: 0 }
    }

    /// The next huge pages lie in this range.
    fn pass(&mut self, huge_from: usize, huge_to: usize) {
        let end = huge_from / HUGE_PAGE * HUGE_PAGE;
        if self.at < end && self.count < self.parts.len() {
            self.parts[self.count] = PageRange { start: self.at, end };
            self.count += 1;
        }
        self.at = huge_to;
    }

    fn parts(&self) -> &[PageRange] {
        &self.parts[..self.count]
    }
}

/// Drops pages. The kernel refuses if they are locked.
pub(super) fn drop_pages(range: PageRange) {
    // SAFETY: inside a run that this thread has just taken, and no owner needs its contents.
    let _ = unsafe { advise::drop_pages(range) };
}

fn write(from: usize, to: usize) {
    counters::add(Counter::ZeroedBytes, (to - from) as u64);
    // SAFETY: inside a run that this thread has just taken, so no other thread uses it.
    unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
}

#[cfg(test)]
mod tests {
    use super::super::{lookup, mapped};
    use super::*;
    use tenure_testkit::{in_child, skip, this_test};

    #[test]
    fn what_lies_between_huge_pages_is_dropped_in_at_most_eight_parts() {
        let parts = |huge: &[(usize, usize)], end: usize| {
            let mut between = Between::from(0);
            for (from, to) in huge.iter().chain([&(end, end)]) {
                between.pass(from * HUGE_PAGE, to * HUGE_PAGE);
            }
            let parts = between.parts().iter();
            let parts = parts.map(|part| (part.start / HUGE_PAGE, part.end / HUGE_PAGE));
            parts.collect::<Vec<_>>()
        };
        assert_eq!(parts(&[(0, 1), (1, 4), (6, 8)], 8), [(4, 6)]);
        assert_eq!(parts(&[], 3), [(0, 3)]);
        let every_second: Vec<_> = (0..20).map(|n| (2 * n, 2 * n + 1)).collect();
        let first: Vec<_> = (0..8).map(|n| (2 * n + 1, 2 * n + 2)).collect();
        assert_eq!(parts(&every_second, 40), first);
    }

    /// A run of less than a huge page, for which the program has asked for large folios.
    #[test]
    fn an_advised_run_that_has_lost_pages_gives_up_the_rest() {
        const LEN: usize = 256 << 10;
        in_child(this_test!(), &[], || {
            let Ok(pagemap) = Pagemap::open() else { skip!("there is no page map") };
            for (written, stays) in [(LEN, true), (LEN / 2, false)] {
                let run = mapped::map(LEN, page_size()).expect("there is room").as_ptr();
                let at = run as usize;
                let (reservation, spot) = lookup::find(at).expect("a run's address");
                reservation.run(spot).set(flag::ADVISED);
                // SAFETY: the run has these bytes.
                unsafe { run.write_bytes(7, written) };
                drop_split(reservation, spot, &pagemap, at, at + LEN);
                // SAFETY: as above.
                let there = unsafe { run.read_volatile() } == 7;
                assert_eq!(there, stays, "{written} bytes written");
            }
        });
    }
}
