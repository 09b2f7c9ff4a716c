//! How many bytes a slice has, and how long it takes.

use super::settings;
use crate::os::pagemap::Pagemap;
use crate::os::{page_size, HUGE_PAGE};
use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The cost of unmapping a page until it has been measured, in picoseconds: 50 to 180 ns for a base
/// page that was written (Linux 6.18, two cores).
/// For the whole process: measured on this machine.
static PER_PAGE_PS: AtomicU64 = AtomicU64::new(180_000);
/// Smaller slices cost more than the pages in them.
const LEAST: usize = 1 << 20;
const MOST: usize = 64 << 20;

/// The number of bytes that are unmapped in half the longest stall if every one of their base pages
/// is resident. It is whole huge pages from 2 MiB on, so that none is split.
pub(super) fn bytes() -> usize {
    let bound_ps = settings::longest_stall_ns().saturating_mul(1000) / 2;
    let pages = bound_ps / PER_PAGE_PS.load(Ordering::Relaxed).max(1);
    let bytes = usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(page_size());
    match bytes.clamp(LEAST, MOST) {
        bytes if bytes >= HUGE_PAGE => bytes / HUGE_PAGE * HUGE_PAGE,
        bytes => bytes / page_size() * page_size(),
    }
}

/// Updates the cost from a slice. Only slices that took long count: quick ones were huge pages or
/// holes, and the next slice may be dense.
fn learn(bytes: usize, took: Duration) {
    let pages = (bytes / page_size()).max(1) as u64;
    let took_ps = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
    let seen = took_ps / pages;
    let known = PER_PAGE_PS.load(Ordering::Relaxed);
    // A slice during which the thread lost its processor may look ten times as slow. So only an
    // eighth of the difference counts, and the next slices correct it.
    let next = match seen {
        seen if seen > known => known + (seen - known).min(known) / 8,
        seen if seen > 40_000 => known - (known - seen) / 8,
        _ => known,
    };
    PER_PAGE_PS.store(next, Ordering::Relaxed);
}

/// Records that a slice of so many bytes took so long.
pub(super) fn took(bytes: usize, time: Duration) {
    learn(bytes, time);
    note_longest(time);
}

pub(super) fn note_longest(time: Duration) {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    COUNTERS.retire_longest_slice_ns.fetch_max(ns, Ordering::Relaxed);
}

pub(super) fn longest() -> Duration {
    Duration::from_nanos(COUNTERS.retire_longest_slice_ns.load(Ordering::Relaxed))
}

/// Calls `work` for the range, slice by slice from its start. A hole goes with the slice behind it.
/// A slice may fail where the whole range would not: its end cuts a huge page of 1 GiB (`EINVAL`),
/// or it splits a mapping that the whole range would not split, and there are `vm.max_map_count`
/// mappings (`ENOMEM`). Then the rest goes in one call.
///
/// # Errors
/// That of `work`, and the part of the range for which it has not succeeded.
pub(super) fn each(
    range: PageRange,
    mut work: impl FnMut(PageRange) -> Result<(), Errno>,
) -> Result<(), (Errno, PageRange)> {
    let pagemap = Pagemap::open().ok();
    let mut at = range.start;
    while at < range.end {
        let rest = PageRange::new(at, range.end);
        let there = pagemap.as_ref().map_or(at, |pagemap| pagemap.first_there(rest));
        let step = bytes();
        let slice = PageRange::new(at, (there / step * step).saturating_add(step).min(range.end));
        let began = Instant::now();
        match work(slice) {
            Ok(()) => {
                took(slice.end - there.max(at).min(slice.end - 1), began.elapsed());
                add(&COUNTERS.retired_in_slices_bytes, slice.len() as u64);
                at = slice.end;
            }
            Err(Errno::INVAL | Errno::NOMEM) if slice.end < range.end => {
                work(rest).map_err(|errno| (errno, rest))?;
                add(&COUNTERS.retired_in_slices_bytes, rest.len() as u64);
                return Ok(());
            }
            Err(errno) => return Err((errno, rest)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_shrink_when_pages_are_slow_and_recover() {
        let before = bytes();
        assert!((LEAST..=MOST).contains(&before));
        for _ in 0..100 {
            learn(1 << 20, Duration::from_millis(1)); // 4 µs a page
        }
        let slow = bytes();
        assert!(slow < before && slow >= LEAST);
        for _ in 0..100 {
            learn(1 << 20, Duration::from_nanos(100 * 256));
        }
        assert!(bytes() > slow);
        // Holes change nothing.
        let now = PER_PAGE_PS.load(Ordering::Relaxed);
        learn(1 << 30, Duration::from_micros(1));
        assert_eq!(PER_PAGE_PS.load(Ordering::Relaxed), now);
    }
}
