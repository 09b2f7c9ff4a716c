//! Finds the run of an address, and the program's part of a run.

use super::given_up;
use super::reservation::{self, Reservation, Spot};
use super::run::state;
use crate::os::page_size;
use crate::range::PageRange;
use std::sync::atomic::Ordering;

/// Returns whether the address is the pool's. Costs two loads and a comparison, and a lookup where
/// addresses were given up.
///
/// ```
/// let (ours, theirs) = (tenure::pool::Buffer::zeroed(1 << 20)?, vec![0_u8; 100]);
/// assert!(tenure::pool::owns(ours.as_ptr()) && !tenure::pool::owns(theirs.as_ptr()));
/// # Ok::<(), tenure::Error>(())
/// ```
#[inline]
pub fn owns(p: *const u8) -> bool {
    reservation::holds(p as usize) && (!given_up::has_holes() || find(p as usize).is_some())
}

/// The pool's run that an address lies in.
pub(super) fn find(at: usize) -> Option<(&'static Reservation, Spot)> {
    let reservation = reservation::known()?;
    let spot = reservation.find(at)?;
    (reservation.run(spot).state() != state::LEFT).then_some((reservation, spot))
}

/// Where the program's part of a run starts.
pub(super) fn start_of(reservation: &Reservation, spot: Spot) -> usize {
    let run = reservation.run(spot);
    reservation.start(spot) + run.offset.load(Ordering::Relaxed) as usize * page_size()
}

/// The program's part of a run in use, in whole pages.
pub(super) fn live(reservation: &Reservation, spot: Spot) -> PageRange {
    let run = reservation.run(spot);
    let start = start_of(reservation, spot);
    PageRange { start, end: start + run.size().next_multiple_of(page_size()) }
}
