//! Forks: every lock is held while the child is made, so that the child finds all in order. A child whose
//! handlers did not run (made by a raw `clone`, or before the handlers were registered) is noticed by
//! the first lock or claim that it takes, and what the handlers should have done is done then.

use super::lock::{Lock, Rank};
use super::services;
use crate::os::fork::{marker, register, word};
use crate::os::signal;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// One fork at a time.
static FORK: Lock<()> = Lock::new(Rank::Fork, ());
/// Forks seen by this process and its ancestors since tenure started.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Forks whose handlers have begun, and that are not over.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

thread_local! {
    // Constant and without destructors: no allocation, and usable to a thread's very end.
    static NO_WAIT: Cell<bool> = const { Cell::new(false) };
    /// The signal mask before the fork that this thread has prepared. `None`: it has prepared none.
    static PREPARED: Cell<Option<signal::Mask>> = const { Cell::new(None) };
    static MAKING_UP: Cell<bool> = const { Cell::new(false) };
}

/// Takes tenure's place among the process's fork handlers, whose order is that of their registration. Once.
pub(crate) fn watch() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        register(on_prepare, on_parent, on_child);
    }
}

/// Notices a fork whose handlers did not run, and makes up for it. Before anything of tenure's is locked or
/// claimed. Two loads.
#[inline]
pub(crate) fn look() {
    if word().load(Ordering::Acquire) != marker::SETTLED {
        make_up();
    }
}

/// Whether this process is a child whose handlers did not run, and nobody has made up for it.
#[inline]
pub(crate) fn missed() -> bool {
    word().load(Ordering::Relaxed) != marker::SETTLED
}

#[cold]
fn make_up() {
    if MAKING_UP.get() {
        return;
    }
    let (wiped, busy) = (marker::WIPED, marker::BEING_MADE_UP);
    if word().compare_exchange(wiped, busy, Ordering::AcqRel, Ordering::Acquire).is_err() {
        while word().load(Ordering::Acquire) == busy {
            std::thread::sleep(SHORT_WAIT);
        }
        return;
    }
    MAKING_UP.set(true);
    FORKS.fetch_add(1, Ordering::Relaxed);
    UNDER_WAY.store(0, Ordering::SeqCst);
    FORK.reset_in_child();
    services::recover_all(|_| true);
    services::reset_in_child(true);
    MAKING_UP.set(false);
    word().store(marker::SETTLED, Ordering::Release);
}

extern "C" fn on_prepare() {
    look();
    // A handler that forked too would find the locks half taken.
    PREPARED.set(Some(signal::block_all()));
    UNDER_WAY.fetch_add(1, Ordering::SeqCst);
    FORK.hold();
    services::hold_all();
}

extern "C" fn on_parent() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let Some(mask) = PREPARED.take() else { return }; // it began before the handlers were registered
    services::release_all();
    FORK.release();
    UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
    signal::restore(mask);
}

extern "C" fn on_child() {
    // It began before the handlers were registered: the first lock makes up for it.
    let Some(mask) = PREPARED.take() else { return };
    word().store(marker::SETTLED, Ordering::Release);
    FORKS.fetch_add(1, Ordering::Relaxed);
    // Other threads that were forking are not here.
    UNDER_WAY.store(0, Ordering::SeqCst);
    services::recover_all(services::was_not_held);
    services::reset_in_child(false);
    services::release_all();
    FORK.release();
    signal::restore(mask);
}

/// How many forks were seen.
pub(crate) fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// While it lives the calling thread waits for no lock that a fork may hold: a call that a signal's handler
/// may make, which has interrupted the C library's `malloc`. A fork takes malloc's lock after all handlers
/// have run, so the fork waits for this thread, with all of tenure's locks in its hands.
pub(crate) struct NoWait {
    before: bool,
}

impl NoWait {
    #[inline]
    pub fn here() -> NoWait {
        NoWait { before: NO_WAIT.replace(true) }
    }
}

impl Drop for NoWait {
    #[inline]
    fn drop(&mut self) {
        NO_WAIT.set(self.before);
    }
}

/// Whether the calling thread is to wait for short times only, and to ask [`must_not_wait`] in between.
#[inline]
pub(crate) fn may_not_wait_long() -> bool {
    NO_WAIT.get()
}

/// Whether the calling thread has to give up on a lock that it does not get: a fork is under way.
#[inline]
pub(crate) fn must_not_wait() -> bool {
    NO_WAIT.get() && UNDER_WAY.load(Ordering::SeqCst) > 0
}

/// How long to wait at a time where [`may_not_wait_long`].
pub(crate) const SHORT_WAIT: Duration = Duration::from_millis(1);

/// Locks what belongs to one process alone, so that no fork holds it, unless the thread
/// [must not wait](must_not_wait) for it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if must_not_wait() => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(SHORT_WAIT / 20),
        }
    }
}
