//! Taking a run back.

#![allow(unsafe_code, reason = "takes a block back by its address")]

use super::counters::{self, Counter};
use super::run::{flag, state, Run};
use super::territory::{Spot, Territory};
use super::{cache, depot, fault, keep, leave, lookup, queue, release, settings};
use std::sync::atomic::Ordering;

/// See [`free`](super::free).
///
/// # Safety
/// As there.
pub(super) unsafe fn free(at: usize) {
    let Some((territory, spot)) = lookup::find(at) else {
        fault::not_an_allocation("free", at, None);
    };
    let run = territory.run(spot);
    claim("free", at, territory, spot, run);
    give(territory, spot);
}

/// Takes the run at `at` from the program: its state is then `MOVING`. Ends the process if it is not the
/// program's, or does not start there.
pub(super) fn claim(call: &str, at: usize, territory: &Territory, spot: Spot, run: &Run) {
    if run.claim(state::IN_USE, state::MOVING).is_err() {
        fault::freed_before(call, at, territory, spot);
    }
    if lookup::start_of(territory, spot) != at {
        fault::not_an_allocation(call, at, Some((territory, spot)));
    }
}

/// Puts a run whose state is `MOVING`, and which is the program's no more, among the free ones.
pub(super) fn give(territory: &Territory, spot: Spot) {
    let run = territory.run(spot);
    counters::add(Counter::Frees, 1);
    counters::add(Counter::FreedBytes, run.size() as u64);
    if release::is_over() {
        leave::whole(territory, spot);
        return;
    }
    if run.is(flag::MAPPED) {
        run.clear(flag::MAPPED);
        // What is unmapped raises SIGSEGV.
        if !settings::reuses() || !leave::close(territory, spot) {
            leave::whole(territory, spot);
            return;
        }
    } else if run.is(flag::TAINTED) || !settings::reuses() {
        leave::map_anew(territory, spot);
        return;
    }
    if run.touched() == 0 {
        // Its pages have moved to another run.
        depot::put(territory, spot, state::RETURNED);
        return;
    }
    run.freed_at.store(queue::clock(), Ordering::Relaxed);
    let mut surplus = cache::put(territory, spot);
    while let Some(other) = surplus {
        depot::put(territory, other, state::WARM);
        surplus = cache::overflow(territory);
    }
    keep::freed();
}
