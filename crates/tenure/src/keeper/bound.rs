//! The bound on what is marked and not offered, kept against programs that are faster than the
//! keeper.
//!
//! Memory leaves the kernel's reach in two ways only: a range becomes known, or an offered one is
//! taken back. Both make system calls anyway, so both count here, and past the bound they wait for
//! the keeper's next round. Without that, four threads that revive and mark 160 MiB in turn kept all
//! of it from the kernel, and a neighbour was killed with nothing left to reclaim.

use super::{inbox, thread};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may be marked and not offered: what the last round found, and what came since.
static EXPOSED: AtomicU64 = AtomicU64::new(0);
static BOUND: AtomicU64 = AtomicU64::new(MOST_OF_LEAST);
static ROUNDS: Mutex<u64> = Mutex::new(0);
static BELL: Condvar = Condvar::new();

/// No longer than this. On a busy machine the keeper may wait long for a processor, and whoever went
/// on without it could have a neighbour killed (seen with 50 ms at a load of four per processor).
const PATIENCE: Duration = Duration::from_secs(1);

/// The least that may be marked and not offered unless set otherwise; all there may be under
/// pressure: 16 MiB, or a sixteenth of a small limit.
static LEAST: AtomicU64 = AtomicU64::new(MOST_OF_LEAST);
const MOST_OF_LEAST: u64 = 16 << 20;

/// See [`LEAST`].
pub(crate) fn least() -> u64 {
    LEAST.load(Ordering::Relaxed)
}

/// Sets and answers [`least`] for a memory limit.
pub(crate) fn set_least(limit: u64) -> u64 {
    let least = (limit / 16).clamp(4 << 20, MOST_OF_LEAST);
    LEAST.store(least, Ordering::Relaxed);
    least
}

/// The kernel is short of memory: the bound falls at once, before the keeper gets to run.
pub(crate) fn tighten() {
    if super::settings::settings().unoffered_max.is_none() {
        BOUND.fetch_min(least(), Ordering::Relaxed);
    }
}

/// The lock, for a fork.
pub(crate) fn lock() -> MutexGuard<'static, u64> {
    ROUNDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A range of `bytes` became known. Does not wait, since the caller may hold locks: see [`hold_back`].
pub(crate) fn count(bytes: u64) {
    EXPOSED.fetch_add(bytes, Ordering::Relaxed);
}

/// `bytes` were taken back from the kernel's reach. The caller holds no lock of the keeper's.
pub(crate) fn exposed(bytes: u64) {
    EXPOSED.fetch_add(bytes, Ordering::Relaxed);
    hold_back();
}

/// Waits while more is exposed than may be. Two loads when it is not. The caller holds no lock of the
/// keeper's.
#[inline]
pub(crate) fn hold_back() {
    if over() && !thread::is_keeper() && thread::running() {
        wait_for_rounds();
    }
}

fn over() -> bool {
    EXPOSED.load(Ordering::Relaxed) > BOUND.load(Ordering::Relaxed)
}

#[cold]
fn wait_for_rounds() {
    let until = Instant::now() + PATIENCE;
    let mut rounds = lock();
    while over() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let seen = *rounds;
        inbox::wake();
        (rounds, _) = BELL
            .wait_timeout_while(rounds, left, |rounds| *rounds == seen)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// What is exposed as a round begins; it goes to [`round_ended`].
pub(crate) fn round_begins() -> u64 {
    EXPOSED.load(Ordering::Relaxed)
}

/// A round has ended that left `marked` bytes marked and not offered. What came since it began was
/// perhaps not seen by it and stays counted.
pub(crate) fn round_ended(at_begin: u64, marked: u64, bound: u64) {
    EXPOSED.fetch_add(marked.wrapping_sub(at_begin), Ordering::Relaxed);
    BOUND.store(bound, Ordering::Relaxed);
    *lock() += 1;
    BELL.notify_all();
}
