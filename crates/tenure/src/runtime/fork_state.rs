//! The facts about forks that every lock needs: whether the process missed one, whether one is
//! under way, and whether the calling thread may wait for it.

use super::services::{self, Service, ServiceId};
use crate::os::clock;
use crate::os::fork::{marker, word};
use crate::os::fork_notes;
use crate::os::generation;
use crate::os::signal::Blocked;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The count of forks.
pub(super) struct Forks {
    /// Forks that this process and its ancestors have seen since tenure started.
    pub so_far: AtomicU32,
    /// Forks whose handlers have begun and not ended.
    pub under_way: AtomicU32,
    /// Since when a fork holds all its locks: nanoseconds of the monotonic clock. 0: none does.
    held_since: AtomicU64,
}

/// For the whole process: every lock reads it.
pub(super) static FORKS: Forks = Forks {
    so_far: AtomicU32::new(0),
    under_way: AtomicU32::new(0),
    held_since: AtomicU64::new(0),
};

thread_local! {
    // Constant and without destructors, so the first use allocates nothing, and a thread can use it
    // until its very end.
    /// Each thread's own: every lock asks how long its caller may wait. See [`NoWait`].
    static WAITS: Cell<Waits> = const { Cell::new(Waits::Long) };
    /// Each thread's own, as [`WAITS`] is: since when its call waits for locks, if the call must
    /// not wait long. `None`: it has not waited.
    static WAITS_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Each thread's own: [`Service::hold`] is given no argument. Until when the thread waits for
    /// the locks of a fork. `None`: without a bound.
    static HOLDS_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Each thread's own, as [`HOLDS_UNTIL`] is: it has waited for so long, and holds no more
    /// locks.
    static GAVE_UP: Cell<bool> = const { Cell::new(false) };
    /// Each thread's own: the thread that does the work of handlers that did not run must not wait
    /// for itself, as other threads do. The locks that it takes meanwhile do not begin that work
    /// again.
    static MAKING_UP: Cell<bool> = const { Cell::new(false) };
}

/// Notices a fork whose handlers did not run, and does their work. It runs before anything of
/// tenure's is locked or claimed. Two loads.
#[inline]
pub(crate) fn look() {
    if word().load(Ordering::Acquire) != marker::SETTLED {
        make_up();
    }
}

/// Returns whether this process is a child whose handlers did not run, and no thread has done their
/// work.
#[inline]
pub(crate) fn missed() -> bool {
    word().load(Ordering::Relaxed) != marker::SETTLED
}

/// Registers a service unless it is registered, and returns its number. A few loads.
#[inline]
pub(crate) fn register(service: &'static Service) -> ServiceId {
    look();
    services::register(service)
}

/// Returns the number of the process, also in a child that no fork handler has told so: a raw
/// clone's, or `_Fork`'s. The caller blocks signals, so that the process stays the same until it has
/// used the number.
pub(crate) fn this_process() -> u64 {
    look();
    generation::current()
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
    // Without signals: a handler would continue in the middle of this, with state that is still the
    // parent's.
    let _no_handler = Blocked::all();
    MAKING_UP.set(true);
    FORKS.so_far.fetch_add(1, Ordering::Relaxed);
    FORKS.under_way.store(0, Ordering::SeqCst);
    FORKS.holds(false);
    fork_notes::forget_others();
    services::recover_all(|_| true);
    services::reset_in_child(true);
    MAKING_UP.set(false);
    word().store(marker::SETTLED, Ordering::Release);
}

impl Forks {
    /// Notes that a fork holds all its locks from now on, or that none does.
    pub fn holds(&self, holds: bool) {
        self.held_since.store(if holds { now() } else { 0 }, Ordering::Relaxed);
    }

    /// Returns whether a fork has held the locks for longer than any thread waits.
    fn holds_long(&self) -> bool {
        let since = self.held_since.load(Ordering::Relaxed);
        since != 0 && now().saturating_sub(since) >= LONGEST_FOR_FORK.as_nanos() as u64
    }
}

fn now() -> u64 {
    clock::monotonic().as_nanos() as u64
}

/// Runs `hold`, which takes the locks of a fork. `false`: that took longer than `patience`, and the
/// caller releases the locks held so far.
pub(super) fn hold_within(patience: Duration, hold: impl FnOnce()) -> bool {
    HOLDS_UNTIL.set(Some(Instant::now() + patience));
    hold();
    HOLDS_UNTIL.set(None);
    !GAVE_UP.replace(false)
}

/// Returns whether the calling thread no longer waits for the locks of a fork.
pub(crate) fn gives_up() -> bool {
    let is_over = HOLDS_UNTIL.get().is_some_and(|until| gave_up() || Instant::now() >= until);
    GAVE_UP.set(is_over);
    is_over
}

/// Returns whether the calling thread has stopped waiting for the locks of a fork.
pub(crate) fn gave_up() -> bool {
    GAVE_UP.get()
}

/// Returns how many forks were seen.
pub(crate) fn count() -> u32 {
    FORKS.so_far.load(Ordering::Relaxed)
}

/// How long a thread waits for locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Without a bound.
    Long,
    /// Without a bound for a thread, but not without one for a fork.
    NotForFork,
    /// Not at all for a fork, and not long for a thread.
    Short,
    /// As `Short`, and no signal comes while the thread has a list of the pool's.
    ShortAndQuiet,
}

/// The longest wait of a call that must not wait long. A signal handler that waits for this very
/// thread may have stopped the owner: garbage collectors stop a program's threads so, and map
/// memory meanwhile.
const LONGEST_SHORT_WAIT: Duration = Duration::from_millis(20);
/// The longest wait for a fork by calls that must not wait for it for ever. Most forks take less,
/// and then the calls are served as if there were none.
const LONGEST_FOR_FORK: Duration = Duration::from_millis(50);

/// While it lives, the calling thread waits for no lock that a fork may hold. For a call from a
/// signal handler that may have interrupted the C library's `malloc`. A fork takes malloc's lock
/// after all handlers have run, so the fork waits for this thread while it holds all of tenure's
/// locks.
pub(crate) struct NoWait {
    before: Waits,
}

impl NoWait {
    #[inline]
    pub fn here() -> NoWait {
        NoWait { before: WAITS.replace(Waits::Short) }
    }

    /// Also for a call that a program may leave by siglongjmp, or in which a signal handler may
    /// stop the thread for any time. The thread has no lock then.
    #[inline]
    pub fn quietly() -> NoWait {
        NoWait { before: WAITS.replace(Waits::ShortAndQuiet) }
    }

    /// For a call that waits for a fork for [a bounded time](LONGEST_FOR_FORK). The caller may have
    /// a lock for which the fork waits: that of a stream, or one that a handler of the program's
    /// takes which runs after tenure's.
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

/// Returns whether the calling thread must wait for short times only, and call [`must_not_wait`] in
/// between.
#[inline]
pub(crate) fn may_not_wait_long() -> bool {
    WAITS.get() != Waits::Long
}

/// Returns whether no signal may come while the calling thread has a list of the pool's.
#[inline]
pub(crate) fn is_to_be_quiet() -> bool {
    WAITS.get() == Waits::ShortAndQuiet
}

/// Returns whether the calling thread must give up on a lock that it does not get: a fork is under
/// way, and the thread has waited long enough for it.
pub(crate) fn must_not_wait() -> bool {
    match WAITS.get() {
        Waits::Long => false,
        Waits::NotForFork => FORKS.holds_long(),
        Waits::Short | Waits::ShortAndQuiet => FORKS.under_way.load(Ordering::SeqCst) > 0,
    }
}

/// Returns whether the calling thread's call has waited for locks for as long as it may.
pub(crate) fn has_waited_long() -> bool {
    matches!(WAITS.get(), Waits::Short | Waits::ShortAndQuiet)
        && WAITS_SINCE.get().is_some_and(|since| since.elapsed() >= LONGEST_SHORT_WAIT)
}

/// Notes that the calling thread, which [may not wait long](may_not_wait_long), waits for a lock
/// from now on, unless it is noted already.
pub(crate) fn waits_now() {
    WAITS_SINCE.set(WAITS_SINCE.get().or_else(|| Some(Instant::now())));
}

/// The length of one wait where [`may_not_wait_long`].
pub(crate) const SHORT_WAIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::super::lock::{Lock, Rank};
    use super::super::{budget, heap};
    use super::*;
    use std::sync::atomic::AtomicBool;
    use tenure_testkit::{in_child, this_test};

    /// The thread that has the lock may wait for the signal that the fork keeps away, and meanwhile
    /// for another lock that the fork would take.
    #[test]
    fn a_fork_that_has_given_up_takes_no_more_locks() {
        in_child(this_test!(), &[], || {
            static BUSY: Lock<()> = Lock::new(Rank::Budget, ());
            static FREE: Lock<()> = Lock::new(Rank::Heap, ());
            // Locks of these ranks may be taken from here on.
            heap::prepare();
            let _ = budget::share(Instant::now());
            let taken = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let over = scope.spawn(|| {
                    let _busy = BUSY.lock();
                    taken.store(true, Ordering::Release);
                    while taken.load(Ordering::Acquire) {
                        crate::os::futex::yield_now();
                    }
                });
                while !taken.load(Ordering::Acquire) {
                    assert!(!over.is_finished());
                    crate::os::futex::yield_now();
                }
                let has_all = hold_within(SHORT_WAIT, || {
                    BUSY.hold();
                    FREE.hold();
                });
                let has_one = FREE.is_mine();
                FREE.release();
                taken.store(false, Ordering::Release);
                assert!(!has_all && !has_one, "{has_all} {has_one}");
            });
        });
    }
}
