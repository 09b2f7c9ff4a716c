//! The pool's end: for a program that locks all its memory. Every mapping counts then, and all
//! accessible memory becomes resident. So the pool keeps nothing mapped but the program's blocks.

#![allow(unsafe_code, reason = "closes what is left of runs")]

use super::reservation::{self, Reservation, Spot};
use super::run::{flag, state};
use super::{give_up, given_up, leave, lookup};
use crate::os::arena;
use crate::os::kept;
use crate::range::PageRange;

/// Returns whether [`end`] was called. Costs one load.
///
/// ```
/// assert!(!tenure::pool::has_ended());
/// ```
pub fn has_ended() -> bool {
    given_up::is_over()
}

/// Ends the pool, for good. It unmaps free runs and the addresses that no run has had. In a run in
/// use it removes access to the part beyond the program's block, so that no `mlockall` makes it
/// resident. From now on [`alloc`](super::alloc) returns `None`, [`realloc`](super::realloc) serves
/// only a size that takes no more pages than before, and a run that is given back is unmapped.
///
/// A run that another thread takes or gives back at this moment may stay as it is. The call takes 2
/// µs for each run.
///
/// ```
/// use tenure::pool;
/// pool::end(); // a launcher does so before the program's own mlockall
/// assert!(pool::has_ended() && pool::alloc(1 << 20, 16, false).is_none());
/// ```
#[doc(alias = "mlockall")]
pub fn end() {
    let Some(reservation) = reservation::known() else {
        given_up::end();
        return;
    };
    given_up::expect_holes();
    given_up::end();
    // `false`: the program has mapped something among these addresses, or they were given up
    // before.
    give_up::give_up_addresses();
    for class in 0..reservation.classes {
        reservation.take_all_fresh(class);
        for index in 0..reservation.used(class) {
            let spot = Spot { class, index };
            let run = reservation.run(spot);
            match run.state() {
                state::IN_USE if !run.is(flag::MAPPED) => trim(reservation, spot),
                state::FRESH | state::MOVING | state::LEFT => {}
                _ => leave::any(reservation, spot),
            }
        }
    }
}

/// As [`end`], for a process that is about to install a filter of system calls. From now on the
/// pool makes no system call but `munmap`, when a run is given back.
///
/// ```
/// use tenure::pool;
/// pool::end_before_filter(); // a launcher does so before the program's own seccomp
/// assert!(pool::has_ended());
/// ```
#[doc(alias = "seccomp")]
pub fn end_before_filter() {
    end();
    given_up::expect_a_filter();
    kept::expect_a_filter();
}

/// Returns how many bytes of addresses [`end`] would unmap, at least.
///
/// ```
/// println!("{} GiB of addresses are not used", tenure::pool::unused_address_bytes() >> 30);
/// ```
pub fn unused_address_bytes() -> u64 {
    let Some(reservation) = reservation::known() else { return 0 };
    let free = |spot: Spot| {
        let free = [state::WARM, state::OFFERED, state::RETURNED, state::QUEUED];
        free.contains(&reservation.run(spot).state())
    };
    let runs = (0..reservation.classes).map(|class| {
        let free = (0..reservation.used(class)).filter(|index| free(Spot { class, index: *index }));
        let fresh = reservation.fresh_bytes(class);
        free.count() as u64 * reservation.area(class).stride as u64 + fresh
    });
    runs.sum::<u64>() + give_up::spare_address_bytes()
}

/// Removes access to the part of an allocation's run that the program does not have. In the state
/// `TRIMMED` no other thread can give the run back, so the kernel cannot give its addresses to
/// another mapping.
fn trim(reservation: &Reservation, spot: Spot) {
    let run = reservation.run(spot);
    // A fork waits for this lock: its child would have the run in this state for ever.
    let Some(_held) = Reservation::allowing().lock_signals_blocked_unless_mine() else { return };
    if run.claim(state::IN_USE, state::TRIMMED).is_err() {
        return;
    }
    let (all, live) =
        (reservation.area(spot.class).range_of(spot.index), lookup::live(reservation, spot));
    for (start, end) in [(all.start, live.start), (live.end, all.end)] {
        if start < end {
            // If the kernel refuses (too many mappings), the part stays accessible.
            // SAFETY: a part of a run in use beyond the program's block. Its state keeps the run
            // where it is.
            let _ = unsafe { arena::close(PageRange::new(start, end)) };
        }
    }
    run.set_state(state::IN_USE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_testkit::{in_child, this_test};

    #[test]
    fn the_addresses_of_a_free_run_are_unused() {
        in_child(this_test!(), &[], || {
            let block = super::super::alloc(1 << 20, 16, false).expect("there is room");
            let before = unused_address_bytes();
            // SAFETY: allocated above, and not used again.
            unsafe { super::super::free(block) };
            assert_eq!(unused_address_bytes() - before, 1 << 20);
        });
    }
}
