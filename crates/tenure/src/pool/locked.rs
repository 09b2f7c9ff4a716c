//! Blocks that the program has locked.
//!
//! Once the kernel has moved a locked mapping's page tables with `MREMAP_DONTUNMAP`, it charges
//! that mapping twice, until the process ends. So a locked block is copied. A free run has no lock:
//! it would be charged against `RLIMIT_MEMLOCK`, and the kernel could not take its pages.

use super::given_up;
use super::reservation::{Reservation, Spot};
use super::run::Run;
use crate::os::mlock::{self, Seen};
use crate::os::page_size;
use crate::range::PageRange;
use crate::runtime::worker;

/// Whether a part of the range is locked, by one call of some 0.2 µs. Where a filter refuses that call,
/// or may end the process for it: whether tenure has ever locked memory of the pool.
pub(super) fn is_locked(range: PageRange) -> bool {
    let is_confined = given_up::is_filtered() || worker::may_be_confined();
    let asked = (!is_confined).then(|| mlock::asked(range));
    match asked {
        Some(Ok(seen)) => seen == Seen::Locked,
        _ => mlock::was_used_in_watched(),
    }
}

/// Unlocks a part of a run that its owner has given up. Returns whether it was locked and is not
/// any more.
pub(super) fn unlock(run: &Run, part: PageRange) -> bool {
    // If the pool's records are locked, too, all memory is (`mlockall`), and stays so.
    let record = std::ptr::from_ref(run) as usize / page_size() * page_size();
    let record = PageRange::new(record, record + page_size());
    is_locked(part) && !is_locked(record) && mlock::unlock(part).is_ok()
}

/// Unlocks a run that the program gives back, if tenure has ever locked memory of the pool. Where
/// the program made such a lock by its own system call, the worker finds it when it offers the run.
#[inline]
pub(super) fn forget(reservation: &Reservation, spot: Spot) {
    if mlock::was_used_in_watched() {
        let all = reservation.area(spot.class).range_of(spot.index);
        unlock(reservation.run(spot), all);
    }
}
