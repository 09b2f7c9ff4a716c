//! From an address to its run, and from a run to the program's part of it.

use super::release;
use super::run::state;
use super::territory::{self, Spot, Territory};
use crate::os::page_size;
use crate::range::PageRange;
use std::sync::atomic::Ordering;

/// Returns whether the address is the pool's. Costs two loads and a comparison, and a look-up where
/// addresses were given up.
///
/// ```
/// let (ours, theirs) = (tenure::pool::Buffer::zeroed(1 << 20)?, vec![0_u8; 100]);
/// assert!(tenure::pool::owns(ours.as_ptr()) && !tenure::pool::owns(theirs.as_ptr()));
/// # Ok::<(), tenure::Error>(())
/// ```
#[inline]
pub fn owns(p: *const u8) -> bool {
    territory::holds(p as usize) && (!release::has_holes() || find(p as usize).is_some())
}

/// The pool's run that an address lies in.
pub(super) fn find(at: usize) -> Option<(&'static Territory, Spot)> {
    let territory = territory::known()?;
    let spot = territory.find(at)?;
    (territory.run(spot).state() != state::LEFT).then_some((territory, spot))
}

/// Where the program's part of a run starts.
pub(super) fn start_of(territory: &Territory, spot: Spot) -> usize {
    let run = territory.run(spot);
    territory.start(spot) + run.offset.load(Ordering::Relaxed) as usize * page_size()
}

/// The program's part of a run in use, in whole pages.
pub(super) fn live(territory: &Territory, spot: Spot) -> PageRange {
    let run = territory.run(spot);
    let start = start_of(territory, spot);
    PageRange { start, end: start + run.size().next_multiple_of(page_size()) }
}
