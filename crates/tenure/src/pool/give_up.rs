//! Gives up the addresses that no run has: for a program that limits its addresses.
//!
//! The reservation costs no memory, but `RLIMIT_AS` counts it, and so does `mlockall` under a
//! finite `RLIMIT_MEMLOCK`. A program that sets either limit needs the addresses more than the pool
//! does.

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

/// Gives back the addresses that no run has had yet, for good. Runs in use stay as they are, and
/// free runs are used again. If there is no free run, [`alloc`](super::alloc) returns `None` from
/// then on. The call makes one system call for each class of sizes (200 µs in all).
///
/// `false`: there is no reservation; it was given up before; the program has mapped something of
/// its own among the pool's addresses; or the call comes from a signal handler that has interrupted
/// the pool on its thread.
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
    // A second thread waits here until the first has given the addresses back.
    let Some(_held) = Reservation::allowing().lock_signals_blocked_unless_mine() else {
        return false;
    };
    // This is set before another mapping can get an address: from then on a lookup checks whether
    // an address is still the pool's.
    given_up::expect_holes();
    if !given_up::begin() {
        return false;
    }
    reservation.give_up();
    true
}
