//! What the pool has given up for good: addresses that were its own, or its end.

use std::sync::atomic::{AtomicBool, Ordering};

struct GivenUp {
    /// The addresses that no run has had were given up.
    addresses: AtomicBool,
    /// An address in the pool's range may be another's.
    holes: AtomicBool,
    /// The pool has ended.
    over: AtomicBool,
    /// And the process may be ended for any system call but those of the C library's malloc.
    filtered: AtomicBool,
}

/// For the whole process: as the pool.
static GIVEN_UP: GivenUp = GivenUp {
    addresses: AtomicBool::new(false),
    holes: AtomicBool::new(false),
    over: AtomicBool::new(false),
    filtered: AtomicBool::new(false),
};

/// Whether the addresses that no run has had were given up.
#[inline]
pub(super) fn is_done() -> bool {
    GIVEN_UP.addresses.load(Ordering::Relaxed)
}

/// They are given up from now on. `false`: they were before.
pub(super) fn begin() -> bool {
    !GIVEN_UP.addresses.swap(true, Ordering::SeqCst)
}

/// Whether an address in the pool's range may be another's.
#[inline]
pub(super) fn has_holes() -> bool {
    GIVEN_UP.holes.load(Ordering::Relaxed)
}

/// From now on it may be: a run is about to leave the pool.
pub(super) fn expect_holes() {
    if !has_holes() {
        GIVEN_UP.holes.store(true, Ordering::SeqCst);
    }
}

/// Whether nothing is handed out any more, and what is given back leaves the pool.
#[inline]
pub(super) fn is_over() -> bool {
    GIVEN_UP.over.load(Ordering::SeqCst)
}

/// The pool ends.
pub(super) fn end() {
    GIVEN_UP.over.store(true, Ordering::SeqCst);
}

/// Whether the process may be ended for any system call but those of the C library's malloc.
pub(super) fn is_filtered() -> bool {
    GIVEN_UP.filtered.load(Ordering::Relaxed)
}

/// From now on it may be.
pub(super) fn expect_a_filter() {
    GIVEN_UP.filtered.store(true, Ordering::SeqCst);
}
