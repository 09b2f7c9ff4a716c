//! Backpressure: the bound on what is marked and not offered, kept against programs that are faster than
//! the background thread.
//!
//! Memory leaves the kernel's reach in three ways only: a range becomes known, an offered one is taken back, or
//! pages of an offered one are made again. All make system calls anyway, so all count here, and past the bound the caller waits for the
//! next scan. Without that, four threads that take 160 MiB back and mark it in turn kept all of it from
//! the kernel, and a neighbour was killed with nothing left to reclaim.

use super::settings::settings;
use super::wake::wake;
use crate::runtime::event::Event;
use crate::runtime::lock::assert_none_held;
use crate::runtime::worker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is out of the kernel's reach, and how much may be.
struct Backpressure {
    /// Bytes that may be marked and not offered: what the last scan found, and what came since.
    exposed: AtomicU64,
    bound: AtomicU64,
    /// The least that may be marked and not offered unless set otherwise, and all there may be under
    /// pressure: this process's share of 16 MiB, or of a sixteenth of a small limit.
    least: AtomicU64,
    /// Bytes that were made again in offered ranges since a scan last told the kernel of all of those.
    made_again: AtomicU64,
    /// Scans that have ended.
    scans: AtomicU64,
    /// Rung at the end of each.
    scanned: Event,
}

const MOST_OF_LEAST: u64 = 16 << 20;

/// For the whole process: memory is short for all its threads.
static BACKPRESSURE: Backpressure = Backpressure {
    exposed: AtomicU64::new(0),
    bound: AtomicU64::new(MOST_OF_LEAST),
    least: AtomicU64::new(MOST_OF_LEAST),
    made_again: AtomicU64::new(0),
    scans: AtomicU64::new(0),
    scanned: Event::new(),
};

/// A caller waits no longer than this. On a busy machine the background thread may wait long for a
/// processor, and a caller that went on without it could have a neighbour killed (seen with 50 ms at a load
/// of four per processor).
const PATIENCE: Duration = Duration::from_secs(1);

/// What may be marked and not offered under pressure.
pub(crate) fn least() -> u64 {
    BACKPRESSURE.least.load(Ordering::Relaxed)
}

/// What may be marked and not offered now.
pub(crate) fn bound() -> u64 {
    BACKPRESSURE.bound.load(Ordering::Relaxed)
}

/// Sets [`least`].
pub(super) fn set_least(bytes: u64) {
    BACKPRESSURE.least.store(bytes, Ordering::Relaxed);
}

/// The kernel is short of memory: the bound falls at once, before the background thread gets to run.
pub(super) fn tighten() {
    if settings().unoffered_max.is_none() {
        BACKPRESSURE.bound.fetch_min(least(), Ordering::Relaxed);
    }
}

/// A range of `bytes` became known. Does not wait, since the caller may hold locks: see [`hold_back`].
pub(crate) fn count(bytes: u64) {
    BACKPRESSURE.exposed.fetch_add(bytes, Ordering::Relaxed);
}

/// `bytes` of an offered range, which says so, were made again. Does not wait: see [`hold_back`].
pub(super) fn made_again(bytes: u64) {
    BACKPRESSURE.made_again.fetch_add(bytes, Ordering::Release);
    count(bytes);
}

/// What was made again, for a scan that begins. The ranges say so already.
pub(super) fn made_again_so_far() -> u64 {
    BACKPRESSURE.made_again.load(Ordering::Acquire)
}

/// The kernel has been told of so much of it.
pub(super) fn told_again(bytes: u64) {
    let less = |before: u64| Some(before.saturating_sub(bytes));
    let _ = BACKPRESSURE.made_again.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// `bytes` were taken back from the kernel's reach. The caller holds no lock and no claim.
pub(super) fn exposed(bytes: u64) {
    count(bytes);
    hold_back();
}

/// Waits while more is exposed than may be. Two loads when it is not. The caller holds no lock and no
/// claim.
#[inline]
pub(crate) fn hold_back() {
    if is_over() && !worker::is_worker() && worker::running() {
        wait_for_scans();
    }
}

fn is_over() -> bool {
    BACKPRESSURE.exposed.load(Ordering::Relaxed) > bound()
}

#[cold]
fn wait_for_scans() {
    assert_none_held();
    let until = Instant::now() + PATIENCE;
    while is_over() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let scans = || BACKPRESSURE.scans.load(Ordering::Acquire);
        let seen = scans();
        wake();
        BACKPRESSURE.scanned.wait_until_timeout(|| scans() != seen, left);
    }
}

/// What is exposed as a scan begins; it goes to [`scan_ended`].
pub(super) fn scan_begins() -> u64 {
    BACKPRESSURE.exposed.load(Ordering::Relaxed)
}

/// A scan has ended that left `marked` bytes marked and not offered. What came since it began was perhaps
/// not seen by it and stays counted.
pub(super) fn scan_ended(at_begin: u64, marked: u64, bound: u64) {
    BACKPRESSURE.exposed.fetch_add(marked.wrapping_sub(at_begin), Ordering::Relaxed);
    BACKPRESSURE.bound.store(bound, Ordering::Relaxed);
    BACKPRESSURE.scans.fetch_add(1, Ordering::AcqRel);
    BACKPRESSURE.scanned.ring();
}

/// In a child: its parent's callers do not wait here.
pub(super) fn reset_in_child() {
    BACKPRESSURE.scanned.reset_in_child();
}
