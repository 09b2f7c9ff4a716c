//! The interval map's lock. A signal's handler may make a child while the thread that it interrupts changes the map:
//! there the thread goes on with the change, and what the child has to do to the map waits until it is whole.

#![allow(unsafe_code, reason = "takes over the map in a forked child")]

use super::map::IntervalMap;
use crate::runtime::lock::{Guard, Lock, Rank};
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What a child does to the map.
pub(super) type Later = fn(&mut IntervalMap);

/// See the module's head.
pub(super) struct MapLock {
    lock: Lock<IntervalMap>,
    /// A [`Later`] that waits for the guard of the child's only thread. Null: nothing does.
    later: AtomicPtr<()>,
}

/// Gives the map, and the lock back when it is dropped.
pub(super) struct MapGuard {
    // Fields are dropped in this order: what waits is done when the lock is free. Looked at before, it could be missed: a
    // handler may fork between the look and the lock's end.
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

    /// As [`Lock::lock`].
    #[inline]
    pub fn lock(&'static self) -> MapGuard {
        MapGuard { guard: self.lock.lock(), _then: Then { lock: self } }
    }

    /// As [`Lock::try_lock`].
    pub fn try_lock(&'static self) -> Option<MapGuard> {
        Some(MapGuard { guard: self.lock.try_lock()?, _then: Then { lock: self } })
    }

    /// As [`Lock::hold`].
    pub fn hold(&self) {
        self.lock.hold();
    }

    /// Frees what [`hold`](MapLock::hold) took.
    pub fn release(&self) {
        self.lock.release();
    }

    /// As [`Lock::reset_in_child`].
    pub fn reset_in_child(&self) -> bool {
        self.lock.reset_in_child()
    }

    /// In a child: the map, if no guard has it. Then its thread is in the middle of something, and `later` is done
    /// when it gives the lock back.
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
            // Another thread that has it does this when it gives it back.
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
