//! Fork handlers hold every lock while the child is made, so that the child finds all state
//! consistent. A child whose handlers did not run (made by a raw `clone`, or before the first use)
//! is noticed at the first lock or claim that it takes, which then does the work of the handlers.

#![allow(unsafe_code, reason = "registers itself in the section of initial functions")]

use super::fork_state::{gave_up, hold_within, FORKS};
use super::lock::{Lock, Rank};
use super::services::{self, Service};
use super::{refills, turn, worker};
use crate::os::fork::{self, marker, word};
use crate::os::{brief, clock, fork_notes, kept, signal};
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use super::fork_state::{count, gives_up, look, missed, register, NoWait};

/// The state of tenure's fork handlers.
struct Watch {
    /// Held by the thread that forks: one fork at a time.
    turn: Lock<()>,
    /// The program uses tenure, so forks concern it.
    watched: AtomicBool,
    /// tenure's handlers are registered with the C library.
    registered: AtomicBool,
}

/// For the whole process: fork handlers are given no argument.
static WATCH: Watch = Watch {
    turn: Lock::new(Rank::Fork, ()),
    watched: AtomicBool::new(false),
    registered: AtomicBool::new(false),
};

/// The runtime's own part of a fork, before the promises' services.
/// For the whole process: the register's entry of the runtime.
static SERVICE: Service = Service {
    recover: || _ = WATCH.turn.reset_in_child(),
    reset_in_child: |_| {
        worker::reset_in_child();
        refills::reset_in_child();
        turn::reset_in_child();
    },
    ..Service::named("runtime", &[Rank::Fork])
};

thread_local! {
    // Constant and without a destructor, so the first use allocates nothing, and a thread can use
    // it until its very end.
    /// Each thread's own, as a signal mask is; fork handlers are given no argument. The mask before
    /// the fork that this thread has prepared. `None`: it has prepared none.
    static PREPARED: Cell<Option<signal::Mask>> = const { Cell::new(None) };
}

/// How long a fork waits for all its locks, with signals blocked: at first, and at most.
const PATIENCE: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(1);

/// From now on forks hold tenure's locks.
pub(crate) fn watch() {
    register(&SERVICE);
    register_handlers();
    WATCH.watched.store(true, Ordering::Release);
}

/// Registers tenure's fork handlers, once. The C library calls handlers in the order of their
/// registration, or its reverse.
extern "C" fn register_handlers() {
    if !WATCH.registered.swap(true, Ordering::AcqRel) {
        fork::register(on_prepare, on_parent, on_child);
    }
}

/// Runs when the program or the library is loaded. So handlers that the program registers later run
/// while tenure holds nothing, and may use it. If a linker has dropped this entry, the first use
/// registers the handlers. For the whole process: the loader calls it once.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    register_handlers();
    // At its first question for the time, rustix looks up a symbol, which takes the loader's lock. A
    // fork asks with all of tenure's locks held, while another thread may load a library.
    clock::monotonic();
}

extern "C" fn on_prepare() {
    if !WATCH.watched.load(Ordering::Acquire) {
        return;
    }
    look();
    // A signal handler may have stopped the owner of a lock until this thread is stopped, too:
    // garbage collectors stop a program's threads so. Then the fork releases all locks, the signal
    // comes, and the fork begins again.
    let mut patience = *PATIENCE.start();
    while !prepare(patience) {
        release();
        patience = (patience * 2).min(*PATIENCE.end());
    }
    fork_notes::hold();
    FORKS.holds(true);
}

/// Holds all locks of a fork. `false`: it holds only some, because the others were not free in
/// time.
fn prepare(patience: Duration) -> bool {
    // A handler that forked too would find some locks held and some not.
    PREPARED.set(Some(signal::block_all()));
    FORKS.under_way.fetch_add(1, Ordering::SeqCst);
    hold_within(patience, || {
        WATCH.turn.hold();
        // Otherwise another thread's fork is under way.
        if WATCH.turn.is_mine() {
            services::hold_all(gave_up);
        }
    })
}

/// Releases the locks, in the process that has prepared the fork, and lets signals come again.
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
        fork_notes::release();
    }
    release();
}

extern "C" fn on_child() {
    let Some(mask) = PREPARED.take() else {
        // The fork began before the first use. The first lock does the rest of the handlers' work.
        kept::reset_in_child();
        return;
    };
    word().store(marker::SETTLED, Ordering::Release);
    FORKS.so_far.fetch_add(1, Ordering::Relaxed);
    brief::close_others();
    kept::reset_in_child();
    // This process does not have the other threads that were forking.
    FORKS.under_way.store(0, Ordering::SeqCst);
    FORKS.holds(false);
    services::recover_all(services::was_not_held);
    services::reset_in_child(false);
    services::release_all();
    WATCH.turn.release();
    signal::restore(mask);
}
