//! The addresses that the pool has given up for good, and whether the pool has ended.

use std::sync::atomic::{AtomicBool, Ordering};

struct GivenUp {
    /// The addresses that no run has had were given up.
    addresses: AtomicBool,
    /// An address in the pool's range may belong to another mapping.
    holes: AtomicBool,
    /// The pool has ended.
    over: AtomicBool,
    /// A filter may end the process for any system call but those of the C library's malloc.
    filtered: AtomicBool,
}

/// For the whole process, as the pool is.
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

/// Gives the addresses up from now on. `false`: they were given up before.
pub(super) fn begin() -> bool {
    !GIVEN_UP.addresses.swap(true, Ordering::SeqCst)
}

/// Whether an address in the pool's range may belong to another mapping.
#[inline]
pub(super) fn has_holes() -> bool {
    GIVEN_UP.holes.load(Ordering::Relaxed)
}

/// Records that a run is about to leave the pool, so an address in its range may belong to another
/// mapping.
pub(super) fn expect_holes() {
    if !has_holes() {
        GIVEN_UP.holes.store(true, Ordering::SeqCst);
    }
}

/// Whether the pool has ended: it allocates no more, and unmaps each run that is given back.
#[inline]
pub(super) fn is_over() -> bool {
    GIVEN_UP.over.load(Ordering::SeqCst)
}

/// Ends the pool.
pub(super) fn end() {
    GIVEN_UP.over.store(true, Ordering::SeqCst);
}

/// Whether a filter may end the process for any system call but those of the C library's malloc.
pub(super) fn is_filtered() -> bool {
    GIVEN_UP.filtered.load(Ordering::Relaxed)
}

/// Records that such a filter may come.
pub(super) fn expect_a_filter() {
    GIVEN_UP.filtered.store(true, Ordering::SeqCst);
}
