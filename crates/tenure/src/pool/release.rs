//! The addresses given up that no run has: for a program that limits its own.
//!
//! The reservation costs no memory, but `RLIMIT_AS` counts it, and so does `mlockall` under a finite
//! `RLIMIT_MEMLOCK`. Once a program asks for either it needs the addresses more than the pool does.

use super::territory;
use std::sync::atomic::{AtomicBool, Ordering};

static GIVEN_UP: AtomicBool = AtomicBool::new(false);
static HOLES: AtomicBool = AtomicBool::new(false);

/// Whether the addresses that no run has had were given up.
#[inline]
pub(super) fn is_done() -> bool {
    GIVEN_UP.load(Ordering::Relaxed)
}

/// Whether an address in the pool's range may be another's.
#[inline]
pub(super) fn has_holes() -> bool {
    HOLES.load(Ordering::Relaxed)
}

/// From now on it may be: a run is about to leave the pool.
pub(super) fn expect_holes() {
    if !has_holes() {
        HOLES.store(true, Ordering::SeqCst);
    }
}

/// How many bytes of addresses [`give_up_addresses`] would give back.
pub fn spare_address_bytes() -> u64 {
    territory::known().map_or(0, |territory| match is_done() {
        true => 0,
        false => territory.spare_bytes(),
    })
}

/// Gives back the addresses that no run has had yet. Runs in use stay as they are, and what is free is used
/// again; where that does not do, [`alloc`](super::alloc) answers `None` from then on. For good: a
/// reservation is made once. Takes one system call for each class of sizes (200 µs in all).
///
/// `false`: there is no reservation; it was given up before; or the program has mapped something of its
/// own among the pool's addresses.
pub fn give_up_addresses() -> bool {
    let Some(territory) = territory::known() else { return false };
    if super::mapped::holds_foreign() {
        return false;
    }
    // Before the first address can be anybody's: who looks one up must not take it for the pool's.
    expect_holes();
    if GIVEN_UP.swap(true, Ordering::SeqCst) {
        return false;
    }
    territory.give_up();
    true
}
