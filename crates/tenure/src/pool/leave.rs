//! Runs that leave the pool, and come back.
//!
//! The program may do with a mapping what it likes. Where it does more than to use it and to unmap it whole, or
//! names addresses that the pool holds free, the run leaves the pool: what the program does not have of it is
//! unmapped, and its addresses are the kernel's business from then on, as if there were no pool. When all of
//! them are free the pool may reserve them again: the kernel says so (`MAP_FIXED_NOREPLACE`).

#![allow(unsafe_code, reason = "unmaps and closes runs")]

use super::counters::{self, Counter};
use super::reservation::{Reservation, Spot};
use super::run::{flag, state};
use super::{central_list, given_up, lookup, queue, split};
use crate::os::arena;
use crate::os::mlock::{self, Seen};
use crate::os::signal::Blocked;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Runs that have left are looked at one after the other, so many for each fresh one.
const TRIES: usize = 2;
/// How long a run is waited for that is in another thread's hands: for some nanoseconds, unless that thread lost its
/// processor in the midst of it. In a signal's handler it may be the hands of the thread itself, further up.
const IN_OTHER_HANDS: Duration = Duration::from_secs(1);

struct Leave {
    /// Runs that are on their way out of the pool.
    leaving: AtomicU32,
    /// A fork is under way: its child would have such a run for ever.
    held: AtomicBool,
    /// Runs that were unmapped stay accessible.
    accessible: AtomicBool,
}

/// For the whole process: as the pool.
static LEAVE: Leave = Leave {
    leaving: AtomicU32::new(0),
    held: AtomicBool::new(false),
    accessible: AtomicBool::new(false),
};

/// See [`keep_accessible`](super::mapped::keep_accessible).
pub(super) fn keep_accessible(yes: bool) {
    LEAVE.accessible.store(yes, Ordering::Relaxed);
}

fn unmap(start: usize, end: usize) {
    if start < end {
        // Too many mappings: then it stays reserved, and is nobody's.
        // SAFETY: a part of a run that is the pool's no more, and that the program does not have.
        let _ = unsafe { arena::unmap(start, end - start) };
    }
}

/// Nobody waits longer for a thread that unmaps a run: it waits for nobody but the kernel, so it is slow only where
/// the machine is, and only a debugger, or a monitor of its unmaps that waits for this thread, stops it for ever.
const FOR_AN_UNMAP: Duration = Duration::from_secs(10);
/// Nor for a fork, which waits for the locks of the program's allocator: this thread may have one, further up.
const FOR_A_FORK: Duration = Duration::from_millis(100);

/// While it lives a run of the calling thread's is on its way out. No signal comes: its handler could wait for this
/// thread.
struct Leaving {
    _blocked: Option<Blocked>,
}

impl Leaving {
    fn begin() -> Leaving {
        // Under a filter that call may be forbidden. The pool is over then, so only a handler that names memory which
        // its own thread is giving back waits, and not for ever.
        let blocked = (!given_up::is_filtered()).then(Blocked::all);
        // Before the first address can be another's.
        given_up::expect_holes();
        LEAVE.leaving.fetch_add(1, Ordering::SeqCst);
        if LEAVE.held.load(Ordering::SeqCst) {
            LEAVE.leaving.fetch_sub(1, Ordering::SeqCst);
            wait_while(FOR_A_FORK, || LEAVE.held.load(Ordering::SeqCst));
            LEAVE.leaving.fetch_add(1, Ordering::SeqCst);
        }
        Leaving { _blocked: blocked }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        LEAVE.leaving.fetch_sub(1, Ordering::SeqCst);
    }
}

fn wait_while(longest: Duration, holds: impl Fn() -> bool) {
    if holds() {
        let began = Instant::now();
        while holds() && began.elapsed() < longest {
            std::thread::yield_now();
        }
    }
}

/// Waits until all runs that were on their way out have left: what the pool unmaps of them is unmapped.
pub(super) fn wait() {
    wait_while(FOR_AN_UNMAP, || LEAVE.leaving.load(Ordering::SeqCst) != 0);
}

/// Before a fork.
pub(super) fn hold() {
    LEAVE.held.store(true, Ordering::SeqCst);
    wait();
}

/// After it.
pub(super) fn release_held() {
    LEAVE.held.store(false, Ordering::SeqCst);
}

/// In a child, where no other thread is.
pub(super) fn reset_in_child() {
    LEAVE.held.store(false, Ordering::SeqCst);
    LEAVE.leaving.store(0, Ordering::SeqCst);
}

/// A mapping's run leaves the pool: the program keeps its part. `false`: it is an allocation, or not in use.
fn in_use(reservation: &Reservation, spot: Spot) -> bool {
    let run = reservation.run(spot);
    if run.claim(state::IN_USE, state::MOVING).is_err() {
        return false;
    }
    // Since the last look it may have come into other hands.
    if !run.is(flag::MAPPED) {
        run.set_state(state::IN_USE);
        return false;
    }
    let (all, live) =
        (reservation.area(spot.class).range_of(spot.index), lookup::live(reservation, spot));
    counters::add(Counter::Frees, 1);
    counters::add(Counter::FreedBytes, run.size() as u64);
    split::forget_state(run);
    unmap(all.start, live.start);
    unmap(live.end, all.end);
    run.set_state(state::LEFT);
    central_list::put_left(reservation, spot);
    true
}

/// A run of state `MOVING`, which nobody uses any more, leaves the pool.
pub(super) fn whole(reservation: &Reservation, spot: Spot) {
    let _leaving = Leaving::begin();
    let (all, run) = (reservation.area(spot.class).range_of(spot.index), reservation.run(spot));
    split::forget_state(run);
    unmap(all.start, all.end);
    run.set_state(state::LEFT);
    central_list::put_left(reservation, spot);
}

/// A run leaves the pool: a mapping in use, or a free run. On return its addresses are the kernel's business. An
/// allocation in use stays.
pub(super) fn any(reservation: &Reservation, spot: Spot) {
    let run = reservation.run(spot);
    let mut since = None;
    loop {
        let leaving = Leaving::begin();
        let from = run.state();
        match from {
            state::LEFT => {
                drop(leaving);
                return wait();
            }
            state::IN_USE if !run.is(flag::MAPPED) => return,
            state::IN_USE if in_use(reservation, spot) => return,
            // Who comes upon it waits until it is unmapped.
            state::WARM | state::OFFERED | state::RETURNED | state::QUEUED
                if run.claim(from, state::LEFT).is_ok() =>
            {
                if from == state::QUEUED {
                    // Or the program's next pages there would be offered in the place of the run's.
                    queue::wait_for_slice(spot);
                }
                // It is noted when its list, or the queue, comes upon it.
                split::forget_state(run);
                let all = reservation.area(spot.class).range_of(spot.index);
                unmap(all.start, all.end);
                return;
            }
            _ => {}
        }
        drop(leaving);
        if since.get_or_insert_with(Instant::now).elapsed() >= IN_OTHER_HANDS {
            return;
        }
        std::thread::yield_now();
    }
}

/// A run of the class that had left the pool, and whose addresses are free again; its state is `MOVING`.
pub(super) fn take_back(reservation: &Reservation, class: usize) -> Option<Spot> {
    for _ in 0..TRIES {
        let spot = central_list::take_left(reservation, class)?;
        let run = reservation.run(spot);
        if reservation.area(class).take_back(spot.index) {
            counters::add(Counter::Remapped, 1);
            run.set_touched(0);
            run.set_state(state::MOVING);
            return Some(spot);
        }
        central_list::put_left(reservation, spot);
    }
    None
}

/// Takes access to a run of state `MOVING` away, if that is wanted. `false`: it was refused.
pub(super) fn close(reservation: &Reservation, spot: Spot) -> bool {
    let run = reservation.run(spot);
    if LEAVE.accessible.load(Ordering::Relaxed) || run.is(flag::CLOSED) {
        return true;
    }
    // SAFETY: the run is this thread's, and the program has given it up.
    let closed = unsafe { arena::close(reservation.area(spot.class).range_of(spot.index)) }.is_ok();
    if closed {
        run.set(flag::CLOSED);
    }
    closed
}

/// Whether the program's part of a run in use is as it was handed out, as far as that can be told cheaply: a
/// program may lock or seal it, or unmap parts of it, by system calls of its own.
pub(super) fn is_as_it_was(reservation: &Reservation, spot: Spot) -> bool {
    LEAVE.accessible.load(Ordering::Relaxed)
        || mlock::asked(lookup::live(reservation, spot)) == Ok(Seen::Unlocked)
}

/// Makes a run of state `MOVING` accessible again. `false`: that was refused, and it has left the pool.
pub(super) fn open(reservation: &Reservation, spot: Spot) -> bool {
    let run = reservation.run(spot);
    // SAFETY: a run of state `MOVING` is the thread's that has set the state; the caller has.
    let opened = unsafe { arena::open(reservation.area(spot.class).range_of(spot.index)) }.is_ok();
    match opened {
        true => run.clear(flag::CLOSED),
        false => whole(reservation, spot),
    }
    opened
}

/// Maps a run of state `MOVING` anew, and puts it among the returned ones.
pub(super) fn map_anew(reservation: &Reservation, spot: Spot) {
    let (area, run) = (reservation.area(spot.class), reservation.run(spot));
    counters::add(Counter::Remapped, 1);
    // SAFETY: the run is this thread's, and the program is done with it.
    if !unsafe { area.map_anew(spot.index) } {
        // Too many mappings. What is there now cannot be told.
        whole(reservation, spot);
        return;
    }
    split::forget_state(run);
    run.set_touched(0);
    central_list::put(reservation, spot, state::RETURNED);
}
