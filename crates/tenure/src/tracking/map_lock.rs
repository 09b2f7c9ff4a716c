//! The interval map's lock. A signal handler may make a child while the thread that it interrupts
//! changes the map. In the child the thread continues with the change, and the child's recovery of
//! the map waits until the map is whole.

#![allow(unsafe_code, reason = "takes over the map in a forked child")]

use super::map::IntervalMap;
use crate::runtime::lock::{Guard, Lock, Rank};
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The recovery of the map in a child.
pub(super) type Later = fn(&mut IntervalMap);

/// See the head of the module.
pub(super) struct MapLock {
    lock: Lock<IntervalMap>,
    /// A [`Later`] that waits for the guard of the child's only thread. Null: none waits.
    later: AtomicPtr<()>,
}

/// Gives access to the map, and frees the lock when it is dropped.
pub(super) struct MapGuard {
    // Fields are dropped in this order, so the waiting recovery runs after the lock is free. A
    // check before that could miss it: a handler may fork between the check and the end of the
    // lock.
    guard: Guard<'static, IntervalMap>,
    _then: Then,
}

struct Then {
    lock: &'static MapLock,
}

impl MapLock {
    pub const fn new() -> MapLock {
        let lock = Lock::new(Rank::IntervalMap, IntervalMap::new());
        MapLock { lock, later: AtomicPtr::new(null_mut()) }
    }

    /// Like [`Lock::lock`].
    #[inline]
    pub fn lock(&'static self) -> MapGuard {
        MapGuard { guard: self.lock.lock(), _then: Then { lock: self } }
    }

    /// Like [`Lock::try_lock`].
    pub fn try_lock(&'static self) -> Option<MapGuard> {
        Some(MapGuard { guard: self.lock.try_lock()?, _then: Then { lock: self } })
    }

    /// Like [`Lock::hold`].
    pub fn hold(&self) {
        self.lock.hold();
    }

    /// Frees the lock that [`hold`](MapLock::hold) took.
    pub fn release(&self) {
        self.lock.release();
    }

    /// Like [`Lock::is_mine`].
    pub fn is_mine(&self) -> bool {
        self.lock.is_mine()
    }

    /// Like [`Lock::reset_in_child`].
    pub fn reset_in_child(&self) -> bool {
        self.lock.reset_in_child()
    }

    /// In a child: returns the map, if no guard has it. `None`: the thread is in the middle of a
    /// change, and `later` runs when it gives the lock back.
    ///
    /// # Safety
    /// The calling thread is the child's only one.
    #[allow(
        clippy::mut_from_ref,
        reason = "there is no guard, and one thread, as the contract says"
    )]
    pub unsafe fn in_child(&self, later: Later) -> Option<&mut IntervalMap> {
        if self.lock.is_guarded_here() {
            self.later.store(later as *mut (), Ordering::Release);
            return None;
        }
        // SAFETY: the thread has no guard, and there is no other thread.
        Some(unsafe { self.lock.held_value() })
    }

    #[cold]
    fn do_what_waits(&self) {
        while !self.later.load(Ordering::Acquire).is_null() {
            // Another thread that has the lock does this when it gives the lock back.
            let Some(mut map) = self.lock.try_lock() else { return };
            let later = self.later.swap(null_mut(), Ordering::AcqRel);
            if !later.is_null() {
                // SAFETY: `later` only ever holds a pointer made from a `Later`.
                let later: Later = unsafe { std::mem::transmute(later) };
                later(&mut map);
            }
        }
    }
}

impl Drop for Then {
    #[inline]
    fn drop(&mut self) {
        if !self.lock.later.load(Ordering::Relaxed).is_null() {
            self.lock.do_what_waits();
        }
    }
}

impl Deref for MapGuard {
    type Target = IntervalMap;
    #[inline]
    fn deref(&self) -> &IntervalMap {
        &self.guard
    }
}

impl DerefMut for MapGuard {
    #[inline]
    fn deref_mut(&mut self) -> &mut IntervalMap {
        &mut self.guard
    }
}
