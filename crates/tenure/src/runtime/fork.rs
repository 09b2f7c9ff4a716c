//! Forks: every lock is held while the child is made, so that the child finds all in order. A child whose
//! handlers did not run (made by a raw `clone`, or before the first use) is noticed by
//! the first lock or claim that it takes, and what the handlers should have done is done then.

#![allow(unsafe_code, reason = "registers itself in the section of initial functions")]

use super::fork_state::{begin_preparing, end_preparing, FORKS};
use super::lock::{Lock, Rank};
use super::services::{self, Service};
use super::{turn, worker};
use crate::os::fork::{self, marker, word};
use crate::os::{brief, kept, signal};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use super::fork_state::{count, lock, look, missed, register, NoWait};

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
    /// Each thread's own: how many forks its handlers make while it prepares one.
    static INNER: Cell<u32> = const { Cell::new(0) };
}

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
    if !begin_preparing() {
        // A handler's, in the midst of this thread's own: what that one holds stays held.
        INNER.set(INNER.get() + 1);
        return;
    }
    FORKS.under_way.fetch_add(1, Ordering::SeqCst);
    WATCH.turn.hold();
    services::hold_all();
    brief::hold();
}

/// Whether the fork that is over was a handler's, while its thread was preparing one.
fn was_inner() -> bool {
    let inner = INNER.get();
    INNER.set(inner.saturating_sub(1));
    inner > 0
}

extern "C" fn on_parent() {
    FORKS.so_far.fetch_add(1, Ordering::Relaxed);
    if was_inner() {
        return;
    }
    let Some(mask) = end_preparing() else { return }; // it began before the first use
    brief::release();
    services::release_all();
    WATCH.turn.release();
    FORKS.under_way.fetch_sub(1, Ordering::SeqCst);
    signal::restore(mask);
}

extern "C" fn on_child() {
    if was_inner() {
        // The thread goes on here as in the parent, with its own fork, and the first lock makes up for what other threads
        // had. That forgets what is held.
        services::release_all();
        kept::reset_in_child();
        return;
    }
    let Some(mask) = end_preparing() else {
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
    services::recover_all(services::was_not_held);
    services::reset_in_child(false);
    services::release_all();
    WATCH.turn.release();
    signal::restore(mask);
}
