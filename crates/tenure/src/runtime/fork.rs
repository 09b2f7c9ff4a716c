//! Forks: every lock is held while the child is made, so that the child finds all in order. A child whose
//! handlers did not run (made by a raw `clone`, or before the first use) is noticed by
//! the first lock or claim that it takes, and what the handlers should have done is done then.

#![allow(unsafe_code, reason = "registers itself in the section of initial functions")]

use super::fork_state::{gave_up, hold_within, FORKS};
use super::lock::{Lock, Rank};
use super::services::{self, Service};
use super::{turn, worker};
use crate::os::fork::{self, marker, word};
use crate::os::{brief, kept, signal};
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use super::fork_state::{count, gives_up, lock, look, missed, register, NoWait};

/// How forks come here.
struct Watch {
    /// One at a time.
    turn: Lock<()>,
    /// Tenure is in use, so forks concern it.
    watched: AtomicBool,
    /// Tenure has its place among the process's fork handlers.
    registered: AtomicBool,
}

/// For the whole process: fork handlers are given no argument.
static WATCH: Watch = Watch {
    turn: Lock::new(Rank::Fork, ()),
    watched: AtomicBool::new(false),
    registered: AtomicBool::new(false),
};

/// What forks do to the runtime itself, before the promises' services.
/// For the whole process: the register's entry of the runtime.
static SERVICE: Service = Service {
    recover: || _ = WATCH.turn.reset_in_child(),
    reset_in_child: |_| {
        worker::reset_in_child();
        turn::reset_in_child();
    },
    ..Service::named("runtime", &[Rank::Fork])
};

thread_local! {
    // Constant and without a destructor: no allocation, and usable to a thread's very end.
    /// Each thread's own: the signal mask before the fork that this thread has prepared. `None`: it has prepared none.
    static PREPARED: Cell<Option<signal::Mask>> = const { Cell::new(None) };
}

/// How long a fork waits at first for all that it holds, with signals blocked, and at most.
const PATIENCE: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(1);

/// Has forks hold what tenure locks, from now on.
pub(crate) fn watch() {
    register(&SERVICE);
    register_handlers();
    WATCH.watched.store(true, Ordering::Release);
}

/// Takes tenure's place among the process's fork handlers, whose order is that of their registration. Once.
extern "C" fn register_handlers() {
    if !WATCH.registered.swap(true, Ordering::AcqRel) {
        fork::register(on_prepare, on_parent, on_child);
    }
}

/// When the program or the library is loaded: handlers that the program registers later then run while tenure
/// holds nothing, and may use it. Where a linker has dropped this the first use registers them.
/// For the whole process: the loader calls it once.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register_handlers;

extern "C" fn on_prepare() {
    if !WATCH.watched.load(Ordering::Acquire) {
        return;
    }
    look();
    // The owner of a lock may be stopped by a signal's handler until this thread is stopped, too: collectors of garbage
    // stop a program's threads so. Then all is released, the signal comes, and the fork begins again.
    let mut patience = *PATIENCE.start();
    while !prepare(patience) {
        release();
        patience = (patience * 2).min(*PATIENCE.end());
    }
    brief::hold();
    FORKS.holds(true);
}

/// Holds what a fork holds. `false`: a part of it; the rest was not to be had in time.
fn prepare(patience: Duration) -> bool {
    // A handler that forked too would find the locks half taken.
    PREPARED.set(Some(signal::block_all()));
    FORKS.under_way.fetch_add(1, Ordering::SeqCst);
    hold_within(patience, || {
        WATCH.turn.hold();
        // Or another thread's fork is under way.
        if WATCH.turn.is_mine() {
            services::hold_all(gave_up);
        }
    })
}

/// Releases it, in the process that has prepared the fork. Signals come again.
fn release() {
    let Some(mask) = PREPARED.take() else { return }; // the fork began before the first use
    if WATCH.turn.is_mine() {
        FORKS.holds(false);
        services::release_all();
        WATCH.turn.release();
    }
    FORKS.under_way.fetch_sub(1, Ordering::SeqCst);
    signal::restore(mask);
}

extern "C" fn on_parent() {
    FORKS.so_far.fetch_add(1, Ordering::Relaxed);
    if PREPARED.get().is_some() {
        brief::release();
    }
    release();
}

extern "C" fn on_child() {
    let Some(mask) = PREPARED.take() else {
        // It began before the first use: the first lock makes up for the rest.
        kept::reset_in_child();
        return;
    };
    word().store(marker::SETTLED, Ordering::Release);
    FORKS.so_far.fetch_add(1, Ordering::Relaxed);
    brief::close_others();
    kept::reset_in_child();
    // Other threads that were forking are not here.
    FORKS.under_way.store(0, Ordering::SeqCst);
    FORKS.holds(false);
    services::recover_all(services::was_not_held);
    services::reset_in_child(false);
    services::release_all();
    WATCH.turn.release();
    signal::restore(mask);
}
