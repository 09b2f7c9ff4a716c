//! Work of other promises that the keeper does between its rounds: a part at a time, so that nobody
//! waits long for an offer, and none at all while there is nothing to do.
//!
//! A chore is registered once. It is visited when it asked to be, when the kernel reports pressure,
//! and when [`stirred`] says that there is something new.

use super::inbox;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// One visit: a few milliseconds of work at most. Runs on the keeper's thread. It may be registered in
/// more than one process of a family: a fork's child has the parent's chores.
pub(crate) type Chore = fn(&Visit) -> Next;

/// What a chore is told.
pub(crate) struct Visit {
    pub now: Instant,
    /// The kernel has said since the last visit that memory is short.
    pub pressure: bool,
}

/// When a chore wants its next visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Next {
    /// There is more to do: after the others, and after what the keeper owes to ranges.
    AtOnce,
    After(Duration),
    /// When [`stirred`] is called, or at the next pressure.
    WhenStirred,
}

const MOST: usize = 8;
/// An array: registering and visiting must not allocate, since an allocator may be among the chores.
static CHORES: RwLock<[Option<Chore>; MOST]> = RwLock::new([None; MOST]);
/// No chore wants a visit before it is stirred.
static ASLEEP: AtomicBool = AtomicBool::new(true);

fn chores() -> RwLockReadGuard<'static, [Option<Chore>; MOST]> {
    CHORES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a chore unless it is there.
pub(crate) fn register(chore: Chore) {
    let mut chores = CHORES.write().unwrap_or_else(PoisonError::into_inner);
    if chores.contains(&Some(chore)) {
        return;
    }
    let free = chores.iter_mut().find(|place| place.is_none());
    *free.expect("a promise has one chore") = Some(chore);
}

/// There is something new to do. One load unless all chores are asleep; then it wakes the keeper, under
/// the inbox's lock.
///
/// What is new must have been published by an atomic read-modify-write or under a lock: either the
/// keeper sees it, or this sees that the keeper sleeps.
#[inline]
pub(crate) fn stirred() {
    // The fence pairs with the one in `sleep`.
    std::sync::atomic::fence(Ordering::SeqCst);
    if ASLEEP.load(Ordering::Relaxed) {
        wake();
    }
}

#[cold]
fn wake() {
    if ASLEEP.swap(false, Ordering::SeqCst) {
        // A signal handler that unmaps or frees must not wait for the lock of the code it interrupted.
        let _blocked = crate::os::signal::Blocked::all();
        inbox::stir_chores();
    }
}

/// When the chores are next to be visited, as the keeper knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    At(Instant),
    /// All sleep.
    Never,
}

impl Due {
    /// How long to wait at most.
    pub fn left(self, now: Instant) -> Option<Duration> {
        match self {
            Due::At(at) => Some(at.saturating_duration_since(now)),
            Due::Never => None,
        }
    }
}

/// Visits all chores once. On the keeper's thread.
pub(crate) fn visit(pressure: bool) -> Due {
    let mut soonest = visit_all(pressure);
    if soonest == Next::WhenStirred {
        // Whoever publishes after this finds ASLEEP and wakes; what came before is seen now.
        ASLEEP.store(true, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        soonest = visit_all(false);
        if soonest != Next::WhenStirred {
            ASLEEP.store(false, Ordering::SeqCst);
        }
    }
    match soonest {
        Next::AtOnce => Due::At(Instant::now()),
        Next::After(pause) => Due::At(Instant::now() + pause),
        Next::WhenStirred => Due::Never,
    }
}

fn visit_all(pressure: bool) -> Next {
    let visit = Visit { now: Instant::now(), pressure };
    let all = *chores();
    all.iter().flatten().map(|chore| chore(&visit)).min().unwrap_or(Next::WhenStirred)
}

/// The lock, for a fork: chores are read by threads that a child does not have.
pub(crate) fn lock() -> Box<dyn std::any::Any> {
    Box::new(CHORES.write().unwrap_or_else(PoisonError::into_inner))
}

/// In a child, whose keeper has yet to start: it visits all of them first.
pub(crate) fn reset_in_child() {
    ASLEEP.store(true, Ordering::SeqCst);
}
