//! What every lock has to know of forks: whether one was missed, whether one is under way, and whether the
//! calling thread may wait for it.

use super::services::{self, Service, ServiceId};
use crate::os::brief;
use crate::os::fork::{marker, word};
use crate::os::signal::Blocked;
use rustix::time::{clock_gettime, ClockId};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// The count of forks.
pub(super) struct Forks {
    /// Seen by this process and its ancestors since tenure started.
    pub so_far: AtomicU32,
    /// Those whose handlers have begun, and that are not over.
    pub under_way: AtomicU32,
    /// Since when one holds all that it holds: nanoseconds of the monotonic clock. 0: none does.
    held_since: AtomicU64,
}

/// For the whole process: every lock asks it.
pub(super) static FORKS: Forks = Forks {
    so_far: AtomicU32::new(0),
    under_way: AtomicU32::new(0),
    held_since: AtomicU64::new(0),
};

thread_local! {
    // Constant and without destructors: no allocation, and usable to a thread's very end.
    /// Each thread's own: see [`NoWait`].
    static WAITS: Cell<Waits> = const { Cell::new(Waits::Long) };
    /// Each thread's own: since when its call waits for locks, if that is not to take long. `None`: it has not waited.
    static WAITS_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Each thread's own: until when it waits for what it is to hold for a fork. `None`: as long as it takes.
    static HOLDS_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Each thread's own: it has waited for as long, and holds no more.
    static GAVE_UP: Cell<bool> = const { Cell::new(false) };
    /// Each thread's own: it makes up for a fork that was missed: the locks that it takes meanwhile do not begin again.
    static MAKING_UP: Cell<bool> = const { Cell::new(false) };
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

/// Registers a service unless it is there, and returns its number. A few loads.
#[inline]
pub(crate) fn register(service: &'static Service) -> ServiceId {
    look();
    services::register(service)
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
    // A handler would go on in the midst of it, with what is its parent's still.
    let _no_handler = Blocked::all();
    MAKING_UP.set(true);
    FORKS.so_far.fetch_add(1, Ordering::Relaxed);
    FORKS.under_way.store(0, Ordering::SeqCst);
    FORKS.holds(false);
    brief::forget_others();
    services::recover_all(|_| true);
    services::reset_in_child(true);
    MAKING_UP.set(false);
    word().store(marker::SETTLED, Ordering::Release);
}

impl Forks {
    /// One holds all that it holds from now on; or none does.
    pub fn holds(&self, holds: bool) {
        self.held_since.store(if holds { now() } else { 0 }, Ordering::Relaxed);
    }

    /// Whether one has held it for as long as anybody waits.
    fn holds_long(&self) -> bool {
        let since = self.held_since.load(Ordering::Relaxed);
        since != 0 && now().saturating_sub(since) >= LONGEST_FOR_FORK.as_nanos() as u64
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Has `hold` hold what a fork holds. `false`: that took longer than `patience`, and what is held by then is to be
/// released.
pub(super) fn hold_within(patience: Duration, hold: impl FnOnce()) -> bool {
    HOLDS_UNTIL.set(Some(Instant::now() + patience));
    hold();
    HOLDS_UNTIL.set(None);
    !GAVE_UP.replace(false)
}

/// Whether the calling thread waits no longer for what it is to hold for a fork.
pub(crate) fn gives_up() -> bool {
    let is_over = HOLDS_UNTIL.get().is_some_and(|until| gave_up() || Instant::now() >= until);
    GAVE_UP.set(is_over);
    is_over
}

/// Whether it has waited for as long as it may.
pub(crate) fn gave_up() -> bool {
    GAVE_UP.get()
}

/// How many forks were seen.
pub(crate) fn count() -> u32 {
    FORKS.so_far.load(Ordering::Relaxed)
}

/// How long a thread waits for locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// As long as it takes.
    Long,
    /// Long for a thread, not so for a fork.
    NotForFork,
    /// Not for a fork at all, and not long for a thread.
    Short,
    /// The same, and no signal comes while it has a list of the pool's.
    ShortAndQuiet,
}

/// How long a call waits that may not wait long. The owner may be stopped by a signal's handler that waits for this
/// very thread: collectors of garbage stop a program's threads so, and map memory meanwhile.
const LONGEST_SHORT_WAIT: Duration = Duration::from_millis(20);
/// How long a fork is waited for by calls that are not to wait for it for ever. Forks mostly take less, and then the
/// calls are served as without one.
const LONGEST_FOR_FORK: Duration = Duration::from_millis(50);

/// While it lives the calling thread waits for no lock that a fork may hold: a call that a signal's handler
/// may make, which has interrupted the C library's `malloc`. A fork takes malloc's lock after all handlers
/// have run, so the fork waits for this thread, with all of tenure's locks in its hands.
pub(crate) struct NoWait {
    before: Waits,
}

impl NoWait {
    #[inline]
    pub fn here() -> NoWait {
        NoWait { before: WAITS.replace(Waits::Short) }
    }

    /// Also for a call that a program may leave by siglongjmp, or in which a signal's handler may stop it for as long
    /// as it likes: it has no lock then.
    #[inline]
    pub fn quietly() -> NoWait {
        NoWait { before: WAITS.replace(Waits::ShortAndQuiet) }
    }

    /// For a call that waits [some time](LONGEST_FOR_FORK) for a fork, but not for ever. The caller may have a lock for which
    /// the fork waits: that of a stream, or one that a handler of the program's takes which runs after tenure's.
    #[inline]
    pub fn long_for_fork() -> NoWait {
        NoWait { before: WAITS.replace(Waits::NotForFork) }
    }
}

impl Drop for NoWait {
    #[inline]
    fn drop(&mut self) {
        WAITS.set(self.before);
        if self.before == Waits::Long {
            WAITS_SINCE.set(None);
        }
    }
}

/// Whether the calling thread is to wait for short times only, and to ask [`must_not_wait`] in between.
#[inline]
pub(crate) fn may_not_wait_long() -> bool {
    WAITS.get() != Waits::Long
}

/// Whether no signal is to come while the calling thread has a list of the pool's.
#[inline]
pub(crate) fn is_to_be_quiet() -> bool {
    WAITS.get() == Waits::ShortAndQuiet
}

/// Whether the calling thread has to give up on a lock that it does not get: a fork is under way, for which it has
/// waited long enough.
pub(crate) fn must_not_wait() -> bool {
    match WAITS.get() {
        Waits::Long => false,
        Waits::NotForFork => FORKS.holds_long(),
        Waits::Short | Waits::ShortAndQuiet => FORKS.under_way.load(Ordering::SeqCst) > 0,
    }
}

/// Whether the calling thread's call has waited for locks for as long as it may.
pub(crate) fn has_waited_long() -> bool {
    matches!(WAITS.get(), Waits::Short | Waits::ShortAndQuiet)
        && WAITS_SINCE.get().is_some_and(|since| since.elapsed() >= LONGEST_SHORT_WAIT)
}

/// The calling thread, which [may not wait long](may_not_wait_long), waits for a lock from now on, if it has not before.
pub(crate) fn waits_now() {
    WAITS_SINCE.set(WAITS_SINCE.get().or_else(|| Some(Instant::now())));
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
