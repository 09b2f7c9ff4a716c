//! Backpressure: keeps the memory that is marked and not offered under a bound, against programs
//! that are faster than the background thread.
//!
//! Memory leaves the kernel's reach in three ways only: a range becomes known, an offered range is
//! taken back, or pages of an offered range are made again. All three make system calls anyway, so
//! all count here, and past the bound the caller waits for the next scan. Without that bound, four
//! threads that took 160 MiB back and marked it in turn kept all of it from the kernel, and the
//! kernel killed a neighbour because nothing was left to reclaim.

use super::settings::settings;
use super::wake::{stir_or_start, wake};
use crate::runtime::event::Event;
use crate::runtime::lock::assert_none_held;
use crate::runtime::worker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The bytes that are out of the kernel's reach, and their bound.
struct Backpressure {
    /// Bytes that are marked and not offered: those that the last scan found, and those that came
    /// since.
    exposed: AtomicU64,
    bound: AtomicU64,
    /// The bound under pressure, and the lowest bound at other times unless the program sets
    /// another: this process's share of 16 MiB, or of a sixteenth of a small limit.
    least: AtomicU64,
    /// Bytes that were made again in offered ranges since a scan last offered all such bytes.
    made_again: AtomicU64,
    /// Scans that have ended.
    scans: AtomicU64,
    /// Rung at the end of each scan.
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
/// processor. If a caller continued without it, the kernel could kill a neighbour (seen with 50 ms
/// at a load of four per processor).
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns how many bytes may be marked and not offered under pressure.
pub(crate) fn least() -> u64 {
    BACKPRESSURE.least.load(Ordering::Relaxed)
}

/// Returns how many bytes may be marked and not offered now.
pub(crate) fn bound() -> u64 {
    BACKPRESSURE.bound.load(Ordering::Relaxed)
}

/// Sets [`least`].
pub(super) fn set_least(bytes: u64) {
    BACKPRESSURE.least.store(bytes, Ordering::Relaxed);
}

/// The kernel is short of memory: the bound falls at once, before the background thread gets to
/// run.
pub(super) fn tighten() {
    if settings().unoffered_max.is_none() {
        BACKPRESSURE.bound.fetch_min(least(), Ordering::Relaxed);
    }
}

/// Counts a new range of `bytes`. Does not wait, because the caller may hold locks: see
/// [`hold_back`].
pub(crate) fn count(bytes: u64) {
    BACKPRESSURE.exposed.fetch_add(bytes, Ordering::Relaxed);
}

/// Counts `bytes` that were made again in an offered range; the range's word has the flag. Does not
/// wait: see [`hold_back`].
pub(super) fn made_again(bytes: u64) {
    BACKPRESSURE.made_again.fetch_add(bytes, Ordering::Release);
    count(bytes);
}

/// Returns the bytes made again so far, for a scan that begins. The ranges have the flag already.
pub(super) fn made_again_so_far() -> u64 {
    BACKPRESSURE.made_again.load(Ordering::Acquire)
}

/// Subtracts so many of these bytes, which were offered again.
pub(super) fn told_again(bytes: u64) {
    let less = |before: u64| Some(before.saturating_sub(bytes));
    let _ = BACKPRESSURE.made_again.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Counts `bytes` that were taken back. The caller holds no lock and no claim.
pub(super) fn exposed(bytes: u64) {
    count(bytes);
    hold_back();
}

/// Waits while more than the bound is exposed. Two loads when it is not. The caller holds no lock
/// and no claim.
#[inline]
pub(crate) fn hold_back() {
    if is_over() && !worker::is_worker() {
        wait_for_scans();
    }
}

/// Returns whether `bytes` more may be taken back without a wait. Two loads.
pub(crate) fn has_room(bytes: u64) -> bool {
    BACKPRESSURE.exposed.load(Ordering::Relaxed).saturating_add(bytes) <= bound()
}

fn is_over() -> bool {
    BACKPRESSURE.exposed.load(Ordering::Relaxed) > bound()
}

#[cold]
fn wait_for_scans() {
    assert_none_held();
    stir_or_start();
    let until = Instant::now() + PATIENCE;
    while is_over() && worker::running() {
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

/// Returns the exposed bytes at the beginning of a scan; the caller passes them to [`scan_ended`].
pub(super) fn scan_begins() -> u64 {
    BACKPRESSURE.exposed.load(Ordering::Relaxed)
}

/// Notes that a scan has ended and left `marked` bytes marked and not offered. The scan may have
/// missed bytes that came after it began, so they stay counted.
pub(super) fn scan_ended(at_begin: u64, marked: u64, bound: u64) {
    BACKPRESSURE.exposed.fetch_add(marked.wrapping_sub(at_begin), Ordering::Relaxed);
    BACKPRESSURE.bound.store(bound, Ordering::Relaxed);
    BACKPRESSURE.scans.fetch_add(1, Ordering::AcqRel);
    BACKPRESSURE.scanned.ring();
}

/// In a child, in which its parent's callers do not wait.
pub(super) fn reset_in_child() {
    BACKPRESSURE.scanned.reset_in_child();
}
