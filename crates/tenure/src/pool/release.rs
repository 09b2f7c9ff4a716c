//! What the pool has given up for good: addresses that were its own, or its end.

use std::sync::atomic::{AtomicBool, Ordering};

struct Released {
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
static RELEASED: Released = Released {
    addresses: AtomicBool::new(false),
    holes: AtomicBool::new(false),
    over: AtomicBool::new(false),
    filtered: AtomicBool::new(false),
};

/// Whether the addresses that no run has had were given up.
#[inline]
pub(super) fn is_done() -> bool {
    RELEASED.addresses.load(Ordering::Relaxed)
}

/// They are given up from now on. `false`: they were before.
pub(super) fn begin() -> bool {
    !RELEASED.addresses.swap(true, Ordering::SeqCst)
}

/// Whether an address in the pool's range may be another's.
#[inline]
pub(super) fn has_holes() -> bool {
    RELEASED.holes.load(Ordering::Relaxed)
}

/// From now on it may be: a run is about to leave the pool.
pub(super) fn expect_holes() {
    if !has_holes() {
        RELEASED.holes.store(true, Ordering::SeqCst);
    }
}

/// Whether nothing is handed out any more, and what is given back leaves the pool.
#[inline]
pub(super) fn is_over() -> bool {
    RELEASED.over.load(Ordering::SeqCst)
}

/// The pool ends.
pub(super) fn end() {
    RELEASED.over.store(true, Ordering::SeqCst);
}

/// Whether the process may be ended for any system call but those of the C library's malloc.
pub(super) fn is_filtered() -> bool {
    RELEASED.filtered.load(Ordering::Relaxed)
}

/// From now on it may be.
pub(super) fn expect_a_filter() {
    RELEASED.filtered.store(true, Ordering::SeqCst);
}
