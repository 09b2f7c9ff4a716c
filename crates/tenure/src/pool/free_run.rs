//! Freeing a run.

#![allow(unsafe_code, reason = "takes a block back by its address")]

use super::counters::{self, Counter};
use super::reservation::{Reservation, Spot};
use super::run::{flag, state, Run};
use super::{
    central_list, decay, given_up, leave, locked, lookup, misuse, queue, settings, thread_cache,
};
use std::sync::atomic::Ordering;

/// See [`free`](super::free).
///
/// # Safety
/// The promise of [`free`](super::free).
pub(super) unsafe fn free(at: usize) {
    let Some((reservation, spot)) = lookup::find(at) else {
        misuse::not_an_allocation("free", at, None);
    };
    let run = reservation.run(spot);
    claim("free", at, reservation, spot, run);
    put(reservation, spot);
}

/// Takes the run at `at` from the program and sets its state to `MOVING`. Ends the process if the
/// run is not the program's, or does not start at `at`.
pub(super) fn claim(call: &str, at: usize, reservation: &Reservation, spot: Spot, run: &Run) {
    if run.claim(state::IN_USE, state::MOVING).is_err() {
        misuse::freed_before(call, at, reservation, spot);
    }
    if lookup::start_of(reservation, spot) != at {
        misuse::not_an_allocation(call, at, Some((reservation, spot)));
    }
}

/// Puts a run among the free ones. Its state is `MOVING`, and the program has given it back.
pub(super) fn put(reservation: &Reservation, spot: Spot) {
    let run = reservation.run(spot);
    counters::add(Counter::Frees, 1);
    counters::add(Counter::FreedBytes, run.size() as u64);
    if given_up::is_over() {
        leave::whole(reservation, spot);
        return;
    }
    if run.is(flag::MAPPED) {
        run.clear(flag::MAPPED);
        // An access to unmapped memory must raise SIGSEGV.
        if !settings::reuses() || !leave::close(reservation, spot) {
            leave::whole(reservation, spot);
            return;
        }
    } else if run.is(flag::TAINTED) || !settings::reuses() {
        leave::map_anew(reservation, spot);
        return;
    }
    locked::forget(reservation, spot);
    if run.touched() == 0 {
        // Its pages have moved to another run.
        central_list::put(reservation, spot, state::RETURNED);
        return;
    }
    run.freed_at.store(queue::clock(), Ordering::Relaxed);
    let mut surplus = thread_cache::put(reservation, spot);
    while let Some(other) = surplus {
        central_list::put(reservation, other, state::WARM);
        surplus = thread_cache::overflow(reservation);
    }
    decay::freed();
}
