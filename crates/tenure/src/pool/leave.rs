//! Runs that leave the pool, and runs that come back.
//!
//! A program may change its mappings in any way. If it does more than use a mapping and unmap it
//! whole, or if it names addresses that the pool holds free, the run leaves the pool. The pool
//! unmaps the part that the program does not have. From then on the kernel manages the addresses as
//! if there were no pool. When all of them are free the pool may reserve them again: the kernel
//! checks that (`MAP_FIXED_NOREPLACE`).

#![allow(unsafe_code, reason = "unmaps and closes runs")]

use super::counters::{self, Counter};
use super::reservation::{Reservation, Spot};
use super::run::{flag, state};
use super::{central_list, given_up, lookup, queue, split};
use crate::os::mlock::{self, Seen};
use crate::os::signal::Blocked;
use crate::os::{arena, generation};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For each fresh run the pool checks so many runs that have left, one after the other.
const TRIES: usize = 2;
/// How long this thread waits for a run that another thread holds: some nanoseconds, unless that
/// thread lost its processor meanwhile. In a signal handler the interrupted thread itself may hold
/// the run.
const IN_OTHER_HANDS: Duration = Duration::from_secs(1);

struct Leave {
    /// Runs that are on their way out of the pool, with the [process](generation) whose they are in
    /// the upper half: a child does not have the threads that unmap them.
    leaving: AtomicU64,
    /// The number of the fork that is under way: its child would have such a run for ever. 0: none.
    held: AtomicU32,
    /// The number of the last fork.
    forks: AtomicU32,
    /// Runs that were unmapped stay accessible.
    accessible: AtomicBool,
}

/// For the whole process, as the pool is.
static LEAVE: Leave = Leave {
    leaving: AtomicU64::new(0),
    held: AtomicU32::new(0),
    forks: AtomicU32::new(0),
    accessible: AtomicBool::new(false),
};

thread_local! {
    // Constant and without a destructor: it allocates nothing.
    /// Each thread's own: it unmaps many runs in one call. The number of the fork for which it has
    /// waited too long, or that it has begun.
    static TOO_LONG: Cell<u32> = const { Cell::new(0) };
}

/// See [`keep_accessible`](super::mapped::keep_accessible).
pub(super) fn keep_accessible(yes: bool) {
    LEAVE.accessible.store(yes, Ordering::Relaxed);
}

fn unmap(start: usize, end: usize) {
    if start < end {
        // If the kernel refuses (too many mappings), the part stays reserved and has no owner.
        // SAFETY: a part of a run that has left the pool, and the program does not have this part.
        let _ = unsafe { arena::unmap(start, end - start) };
    }
}

/// The longest wait for a thread that unmaps a run. That thread waits only for the kernel, so it is
/// slow only on a slow machine. Only a debugger, or a monitor of its unmaps that waits for this
/// thread, stops it for ever.
const FOR_AN_UNMAP: Duration = Duration::from_secs(10);
/// The longest wait for a fork. The fork waits for the locks of the program's allocator, and a
/// function that this thread has interrupted may hold one.
const FOR_A_FORK: Duration = Duration::from_millis(100);
/// For how long, and for how many, a thread lets forks go first, one after another. A thread that was
/// stopped for that long has waited for few of them.
const FOR_ALL_FORKS: Duration = Duration::from_secs(2);
const MOST_FORKS: u32 = 20;

/// While it lives, a run of the calling thread is on its way out. Signals are blocked, because a
/// handler could wait for this thread.
pub(super) struct Leaving {
    _blocked: Option<Blocked>,
}

impl Leaving {
    pub(super) fn begin() -> Leaving {
        // A filter may forbid that system call. The pool has ended then, so only a handler waits
        // that names the memory that its own thread gives back, and it does not wait for ever.
        let blocked = (!given_up::is_filtered()).then(Blocked::all);
        // This is set before another mapping can get the first address.
        given_up::expect_holes();
        // The clock only if a fork is under way: a filter may forbid that call.
        let (mut since, mut forks) = (None, 0);
        loop {
            count_leaving(|runs| runs + 1);
            let fork = LEAVE.held.load(Ordering::SeqCst);
            if fork == 0 || TOO_LONG.get() == fork {
                return Leaving { _blocked: blocked };
            }
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if forks >= MOST_FORKS && waited >= FOR_ALL_FORKS {
                return Leaving { _blocked: blocked };
            }
            forks += 1;
            count_leaving(|runs| runs.saturating_sub(1));
            // The fork may be waiting for this thread, which unmaps 500 runs: it waits for it once.
            if !wait_while(FOR_A_FORK, || LEAVE.held.load(Ordering::SeqCst) == fork) {
                TOO_LONG.set(fork);
            }
            // A thread that lost its processor may find a later fork under way.
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // A signal handler under a filter may have forked in the meantime: a child counts anew.
        count_leaving(|runs| runs.saturating_sub(1));
    }
}

/// The process, also in a child that no fork handler has told so. Under a filter it is 0 if only
/// `getpid` tells, which the filter may forbid.
fn process() -> u32 {
    match given_up::is_filtered() && !generation::is_told_by_a_page() {
        true => 0,
        false => generation::current() as u32,
    }
}

fn count_leaving(change: impl Fn(u32) -> u32) {
    let process = process();
    let count = |word| Some(u64::from(process) << 32 | u64::from(change(runs_of(process, word))));
    let _ = LEAVE.leaving.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count);
}

fn runs_of(process: u32, leaving: u64) -> u32 {
    if (leaving >> 32) as u32 == process {
        leaving as u32
    } else {
        0
    }
}

/// Returns whether it holds no more.
fn wait_while(longest: Duration, holds: impl Fn() -> bool) -> bool {
    if holds() {
        let began = Instant::now();
        while holds() {
            if began.elapsed() >= longest {
                return false;
            }
            crate::os::futex::yield_now();
        }
    }
    true
}

/// Waits until all runs that were on their way out have left. Their unmapping is then done.
pub(super) fn wait() {
    let process = process();
    let any = || runs_of(process, LEAVE.leaving.load(Ordering::SeqCst)) != 0;
    let _ = wait_while(FOR_AN_UNMAP, any);
}

/// Called before a fork.
pub(super) fn hold() {
    let fork = LEAVE.forks.fetch_add(1, Ordering::SeqCst).wrapping_add(1).max(1);
    // The fork handlers of others, also in the child, may unmap before this fork's hold ends.
    TOO_LONG.set(fork);
    LEAVE.held.store(fork, Ordering::SeqCst);
    wait();
}

/// Called after the fork, in both processes.
pub(super) fn release_held() {
    LEAVE.held.store(0, Ordering::SeqCst);
}

/// Lets a mapping's run leave the pool; the program keeps its part. `false`: it is an allocation,
/// or it is not in use.
fn in_use(reservation: &Reservation, spot: Spot) -> bool {
    let run = reservation.run(spot);
    if run.claim(state::IN_USE, state::MOVING).is_err() {
        return false;
    }
    // Another thread may have taken the run since the last look.
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

/// Lets a run of state `MOVING`, which has no user any more, leave the pool.
pub(super) fn whole(reservation: &Reservation, spot: Spot) {
    let _leaving = Leaving::begin();
    let (all, run) = (reservation.area(spot.class).range_of(spot.index), reservation.run(spot));
    split::forget_state(run);
    unmap(all.start, all.end);
    run.set_state(state::LEFT);
    central_list::put_left(reservation, spot);
}

/// Lets a run leave the pool: a mapping in use, or a free run. When this returns the kernel manages
/// its addresses. An allocation in use stays.
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
            // A thread that finds the run in this state waits until it is unmapped.
            state::WARM | state::OFFERED | state::RETURNED | state::QUEUED
                if run.claim(from, state::LEFT).is_ok() =>
            {
                if from == state::QUEUED {
                    // Otherwise the worker would offer the program's next pages at this address in
                    // place of the run's.
                    queue::wait_for_slice(spot);
                }
                // The thread that next finds it in its list, or in the queue, records it.
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
        crate::os::futex::yield_now();
    }
}

/// Takes back a run of the class that had left the pool and whose addresses are free again. Its
/// state is `MOVING`.
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

/// Removes access to a run of state `MOVING`, if the settings ask for that. `false`: the kernel
/// refused.
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

/// Whether the program's part of a run in use is still as the pool gave it out, as far as a cheap
/// check can tell. A program may lock or seal it, or unmap parts of it, by its own system calls.
pub(super) fn is_as_it_was(reservation: &Reservation, spot: Spot) -> bool {
    LEAVE.accessible.load(Ordering::Relaxed)
        || mlock::asked(lookup::live(reservation, spot)) == Ok(Seen::Unlocked)
}

/// Makes a run of state `MOVING` accessible again. `false`: the kernel refused, and the run has
/// left the pool.
pub(super) fn open(reservation: &Reservation, spot: Spot) -> bool {
    let run = reservation.run(spot);
    // SAFETY: the caller has set the state `MOVING`, which gives the run to its thread alone.
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
    // SAFETY: the run is this thread's, and the program does not use it any more.
    if !unsafe { area.map_anew(spot.index) } {
        // Too many mappings. The pool cannot know which pages are mapped there now.
        whole(reservation, spot);
        return;
    }
    split::forget_state(run);
    run.set_touched(0);
    central_list::put(reservation, spot, state::RETURNED);
}
