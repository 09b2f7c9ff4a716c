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
use std::time::Duration;

/// Bytes that may be marked and not offered: what the last round found, and what came since.
static EXPOSED: AtomicU64 = AtomicU64::new(0);
static BOUND: AtomicU64 = AtomicU64::new(u64::MAX);
static ROUNDS: Mutex<u64> = Mutex::new(0);
static BELL: Condvar = Condvar::new();

/// No longer than this: the keeper may be busy with a long offer, or everything may be pinned.
const PATIENCE: Duration = Duration::from_millis(50);

/// The lock, for a fork.
pub(crate) fn lock() -> MutexGuard<'static, u64> {
    ROUNDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A range of `bytes` became known. Does not wait: the caller may hold locks; the next revival will.
pub(crate) fn count(bytes: u64) {
    EXPOSED.fetch_add(bytes, Ordering::Relaxed);
}

/// `bytes` were taken back from the kernel's reach. The caller holds no lock of the keeper's.
pub(crate) fn exposed(bytes: u64) {
    let now = EXPOSED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    if now > BOUND.load(Ordering::Relaxed) && !thread::is_keeper() && thread::running() {
        wait_for_round();
    }
}

#[cold]
fn wait_for_round() {
    let rounds = lock();
    let seen = *rounds;
    inbox::wake();
    let _ = BELL.wait_timeout_while(rounds, PATIENCE, |rounds| *rounds == seen);
}

/// A round has ended that left `marked` bytes marked and not offered.
pub(crate) fn round_ended(marked: u64, bound: u64) {
    EXPOSED.store(marked, Ordering::Relaxed);
    BOUND.store(bound, Ordering::Relaxed);
    *lock() += 1;
    BELL.notify_all();
}
