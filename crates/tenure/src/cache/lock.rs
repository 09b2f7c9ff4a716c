//! A stand-in for the ranked lock of the runtime: the same calls, without the check of ranks.
//!
//! Holding it over a fork allocates nothing, and a child can free it whoever held it.

use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// The order in which a thread may take the cache's locks, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The list of all caches.
    Caches,
    /// The right to open a lane's next segment.
    Lane,
    /// The lists of segments.
    Space,
    /// A shard of the index.
    Shard,
    /// The values being made.
    Flights,
    /// Which thread waits for which value.
    Waits,
}

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const AWAITED: u32 = 2;

/// A mutual exclusion lock.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, of which there is one at a time, or with `&mut`.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as above; the lock owns its value.
unsafe impl<T: Send> Send for Lock<T> {}

/// Gives access to the value, and frees the lock when it is dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    pub(crate) const fn new(_rank: Rank, value: T) -> Self {
        Lock { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.hold();
        Guard { lock: self }
    }

    /// Takes the lock without a guard, for a fork.
    #[inline]
    pub(crate) fn hold(&self) {
        let taken = self.word.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        if crate::os::fork::missed() {
            // A child whose handlers did not run: the holder may not exist.
            crate::os::fork::make_up();
        }
        for _ in 0..100 {
            let word = self.word.load(Ordering::Relaxed);
            let free = word == FREE
                && self
                    .word
                    .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if free {
                return;
            }
            if word == AWAITED {
                break;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(AWAITED, Ordering::Acquire) != FREE {
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    /// Frees a lock that [`Lock::hold`] took.
    #[inline]
    pub(crate) fn release(&self) {
        if self.word.swap(FREE, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
    }

    /// Frees the lock in a child whose fork handlers did not run; says whether it was taken. Its
    /// holder does not exist there, and the value may be half changed.
    pub(crate) fn free_in_child(&self) -> bool {
        self.word.swap(FREE, Ordering::Acquire) != FREE
    }

    /// The value, for the thread that called [`Lock::hold`].
    ///
    /// # Safety
    /// The caller holds the lock, and has no guard of it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: see above: nobody else can reach the value.
        unsafe { &mut *self.value.get() }
    }

    /// The value of a lock that nobody else can reach.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release();
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}
