//! Taking a run back.

use super::counters::{self, Counter};
use super::run::{flag, state, Run};
use super::territory::{self, Spot, Territory};
use super::{cache, depot, end, fault, keep, leave, resize, settings, take};
use crate::os::page_size;
use std::sync::atomic::Ordering;

/// See [`free`](super::free).
///
/// # Safety
/// As there.
pub(super) unsafe fn free(at: usize) {
    let Some((territory, spot)) = find(at) else {
        fault::not_an_allocation("free", at, None);
    };
    let run = territory.run(spot);
    claim("free", at, territory, spot, run);
    give(territory, spot);
}

/// The pool's run that an address lies in.
pub(super) fn find(at: usize) -> Option<(&'static Territory, Spot)> {
    let territory = territory::known()?;
    let spot = territory.find(at)?;
    (territory.run(spot).state() != state::LEFT).then_some((territory, spot))
}

/// Where the program's part of a run starts.
pub(super) fn start_of(territory: &Territory, spot: Spot, run: &Run) -> usize {
    territory.start(spot) + run.offset.load(Ordering::Relaxed) as usize * page_size()
}

/// Takes the run at `at` from the program: its state is then `MOVING`. Ends the process if it is not the
/// program's, or does not start there.
pub(super) fn claim(call: &str, at: usize, territory: &Territory, spot: Spot, run: &Run) {
    if run.claim(state::IN_USE, state::MOVING).is_err() {
        fault::freed_before(call, at, territory, spot);
    }
    if start_of(territory, spot, run) != at {
        fault::not_an_allocation(call, at, Some((territory, spot)));
    }
}

/// Puts a run whose state is `MOVING`, and which is the program's no more, among the free ones.
pub(super) fn give(territory: &Territory, spot: Spot) {
    let run = territory.run(spot);
    counters::add(Counter::Frees, 1);
    counters::add(Counter::FreedBytes, run.size() as u64);
    if end::is_over() {
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
        map_anew(territory, spot);
        return;
    }
    if run.touched() == 0 {
        // Its pages have moved to another run.
        depot::put(territory, spot, state::RETURNED);
        return;
    }
    run.freed_at.store(keep::clock(), Ordering::Relaxed);
    let mut surplus = cache::put(territory, spot);
    while let Some(other) = surplus {
        depot::put(territory, other, state::WARM);
        surplus = cache::overflow(territory);
    }
    keep::freed();
}

/// Its mapping is fresh, or not the pool's any more.
pub(super) fn forget_state(run: &Run) {
    if run.is(flag::ADVISED) {
        take::count_out_parted();
    }
    if run.is(flag::MOVED) {
        resize::forget_moved(run);
    }
    run.clear(flag::TAINTED | flag::MOVED | flag::ADVISED | flag::CLOSED | flag::MAPPED);
}

/// Maps a run of state `MOVING` anew, and puts it among the returned ones.
pub(super) fn map_anew(territory: &Territory, spot: Spot) {
    let (area, run) = (territory.area(spot.class), territory.run(spot));
    counters::add(Counter::Remapped, 1);
    // SAFETY: the run is this thread's, and the program is done with it.
    if !unsafe { area.map_anew(spot.index) } {
        // Too many mappings. What is there now cannot be told.
        leave::whole(territory, spot);
        return;
    }
    forget_state(run);
    run.set_touched(0);
    depot::put(territory, spot, state::RETURNED);
}
