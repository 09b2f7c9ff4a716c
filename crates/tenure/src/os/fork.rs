//! What a fork does to us: atfork handlers, and a page that tells a child that missed them.

use super::advise;
use super::reserve;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// Address of a page that reads 1 in the process that set it up and 0 in a child that was not told
/// (a child made by a raw `clone`, whose atfork handlers did not run).
static MARKER: AtomicUsize = AtomicUsize::new(0);
/// Forks seen by this process and its ancestors since tenure started.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called around fork, in the order of `pthread_atfork`.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    /// In the parent, before: wait until no page is half way between two states.
    pub prepare: fn(),
    /// In the parent, after.
    pub parent: fn(),
    /// In the child, before `fork` returns: system calls only, no allocation.
    pub child: fn(),
    /// In the parent, after that: no call is turned away any more, see [`NoWait`].
    pub settled: fn(),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

extern "C" fn on_prepare() {
    UNDER_WAY.fetch_add(1, Ordering::SeqCst);
    if let Some(hooks) = HOOKS.get() {
        (hooks.prepare)();
    }
}

extern "C" fn on_parent() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(hooks) = HOOKS.get() {
        (hooks.parent)();
    }
    // One that began before the handlers were registered was not counted.
    let less = |count: u32| count.checked_sub(1);
    let _ = UNDER_WAY.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    if let Some(hooks) = HOOKS.get() {
        (hooks.settled)();
    }
}

extern "C" fn on_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    // Whoever else was forking is not here.
    UNDER_WAY.store(0, Ordering::SeqCst);
    if let Some(hooks) = HOOKS.get() {
        (hooks.child)();
    }
    set_marker();
}

fn set_marker() {
    let at = MARKER.load(Ordering::Relaxed);
    if at != 0 {
        // SAFETY: the marker page was mapped by `watch` and is never unmapped.
        unsafe { (*(at as *const AtomicU32)).store(1, Ordering::Relaxed) };
    }
}

/// Takes a place among the process's fork handlers, whose order is that of their registration, for the
/// hooks that [`watch`] gives. Once.
pub(crate) fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the three functions are `extern "C"`, live forever and do not unwind.
        unsafe { libc::pthread_atfork(Some(on_prepare), Some(on_parent), Some(on_child)) };
    }
}

/// Starts calling `hooks` around every fork of this process. Once.
pub(crate) fn watch(hooks: Hooks) {
    register();
    HOOKS.get_or_init(|| {
        let page = super::page_size();
        // Without a marker page (no address space, or MADV_WIPEONFORK refused, before 4.14) only the
        // children of raw clone() go unnoticed.
        if let Ok(range) = reserve::map_anonymous(page, page) {
            if advise::wipe_on_fork(range).is_ok() {
                MARKER.store(range.start, Ordering::Relaxed);
                set_marker();
            }
        }
        hooks
    });
}

/// Whether this process is a child whose atfork handlers did not run.
#[inline]
pub(crate) fn missed() -> bool {
    let at = MARKER.load(Ordering::Relaxed);
    // SAFETY: as in `set_marker`.
    at != 0 && unsafe { (*(at as *const AtomicU32)).load(Ordering::Relaxed) } == 0
}

/// Runs what the child's handlers should have done.
pub(crate) fn make_up() {
    on_child();
}

/// Forks whose handlers have begun, and that are not over.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

thread_local! {
    // Constant and without a destructor: no allocation, and usable to a thread's very end.
    static NO_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// While it lives the calling thread waits for no lock that a fork may hold: a call that a signal's handler
/// may make, which has interrupted the C library's `malloc`. Its lock is taken by a fork after all handlers
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

/// Whether the calling thread may not wait for forks: it is to wait for short times only, and to ask
/// [`must_not_wait`] in between.
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

/// Locks, unless the thread [must not wait](must_not_wait) for it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    if !may_not_wait_long() {
        return Some(mutex.lock().unwrap_or_else(PoisonError::into_inner));
    }
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if must_not_wait() => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(SHORT_WAIT / 20),
        }
    }
}

/// How many forks were seen.
pub(crate) fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
