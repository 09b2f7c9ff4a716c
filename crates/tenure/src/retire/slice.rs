//! How much is unmapped at a time.

use super::settings;
use crate::os::{page_size, HUGE_PAGE};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What unmapping a page costs until it has been measured, in picoseconds: 50 to 180 ns for a base page
/// that was written (Linux 6.18, two cores).
static PER_PAGE_PS: AtomicU64 = AtomicU64::new(180_000);
/// Below this the slices themselves cost more than what is in them.
const LEAST: usize = 1 << 20;
const MOST: usize = 64 << 20;

/// Bytes that are unmapped in half the longest stall if every one of their base pages is resident.
/// Whole huge pages from 2 MiB on, so that none is split.
pub(super) fn bytes() -> usize {
    let bound_ps = settings::longest_stall_ns().saturating_mul(1000) / 2;
    let pages = bound_ps / PER_PAGE_PS.load(Ordering::Relaxed).max(1);
    let bytes = usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(page_size());
    match bytes.clamp(LEAST, MOST) {
        bytes if bytes >= HUGE_PAGE => bytes / HUGE_PAGE * HUGE_PAGE,
        bytes => bytes / page_size() * page_size(),
    }
}

/// Learns from a slice. Only slices that took long teach: quick ones were huge pages or holes, and the
/// next may be dense.
pub(super) fn learn(bytes: usize, took: Duration) {
    let pages = (bytes / page_size()).max(1) as u64;
    let took_ps = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000);
    let seen = took_ps / pages;
    let known = PER_PAGE_PS.load(Ordering::Relaxed);
    // A slice during which the thread lost its processor may look ten times as slow: an eighth of the
    // difference, and the next ones bring it back.
    let next = match seen {
        seen if seen > known => known + (seen - known).min(known) / 8,
        seen if seen > 40_000 => known - (known - seen) / 8,
        _ => known,
    };
    PER_PAGE_PS.store(next, Ordering::Relaxed);
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
        // Holes teach nothing.
        let now = PER_PAGE_PS.load(Ordering::Relaxed);
        learn(1 << 30, Duration::from_micros(1));
        assert_eq!(PER_PAGE_PS.load(Ordering::Relaxed), now);
    }
}
