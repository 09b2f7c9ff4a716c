//! The addresses given up that no run has: for a program that limits its own.
//!
//! The reservation costs no memory, but `RLIMIT_AS` counts it, and so does `mlockall` under a finite
//! `RLIMIT_MEMLOCK`. Once a program asks for either it needs the addresses more than the pool does.

use super::reservation::{self, Reservation};
use super::{given_up, mapped};

/// Returns how many bytes of addresses [`give_up_addresses`] would give back.
///
/// ```
/// println!("{} GiB of addresses can be given up", tenure::pool::spare_address_bytes() >> 30);
/// ```
pub fn spare_address_bytes() -> u64 {
    reservation::known().map_or(0, |reservation| match given_up::is_done() {
        true => 0,
        false => reservation.spare_bytes(),
    })
}

/// Gives back the addresses that no run has had yet, for good. Runs in use stay as they are, and free runs are
/// used again; where there is none, [`alloc`](super::alloc) returns `None` from then on. Takes one system call for
/// each class of sizes (200 µs in all).
///
/// `false`: there is no reservation; it was given up before; the program has mapped something of its own among the
/// pool's addresses; or the call comes from a signal's handler that has interrupted the pool on its thread.
///
/// ```
/// use tenure::pool;
/// let buffer = pool::Buffer::zeroed(1 << 20)?;
/// if pool::give_up_addresses() {
///     assert_eq!(pool::spare_address_bytes(), 0); // RLIMIT_AS may be set now
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[doc(alias = "RLIMIT_AS")]
pub fn give_up_addresses() -> bool {
    let Some(reservation) = reservation::known() else { return false };
    if mapped::holds_foreign() {
        return false;
    }
    // A thread that finds that another has begun comes here when the addresses are gone.
    let Some(_held) = Reservation::allowing().lock_signals_blocked_unless_mine() else {
        return false;
    };
    // Before the first address can be anybody's: who looks one up must not take it for the pool's.
    given_up::expect_holes();
    if !given_up::begin() {
        return false;
    }
    reservation.give_up();
    true
}
