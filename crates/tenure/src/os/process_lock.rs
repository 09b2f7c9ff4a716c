//! A lock that a forked child finds free, whoever held it in the parent.

use super::{fork, generation, signal::Blocked};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What it guards belongs to one process of a family of forks: a holder of another generation counts as
/// none. While it is held the thread takes no signal, so that a handler which comes here too cannot wait
/// for the code that it interrupted. Waiting is by short sleeps: holders make a few system calls.
///
/// Neither taking nor making it allocates.
pub(crate) struct ProcessLock<T> {
    /// The generation of the holder; 0: free.
    holder: AtomicU64,
    /// That of the process that used it last; guarded by `holder`.
    last: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, of which a process has one at a time; `T: Send`
// because the guards of different threads follow each other.
unsafe impl<T: Send> Sync for ProcessLock<T> {}

/// Gives the value, and the lock back when it is dropped.
pub(crate) struct ProcessGuard<'a, T> {
    lock: &'a ProcessLock<T>,
    generation: u64,
    /// A child took it for the first time: the value is its parent's.
    pub inherited: bool,
    // Last: signals come again when the lock is free.
    _blocked: Blocked,
}

impl<T> ProcessLock<T> {
    pub const fn new(value: T) -> ProcessLock<T> {
        let (holder, last) = (AtomicU64::new(0), AtomicU64::new(0));
        ProcessLock { holder, last, value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> ProcessGuard<'_, T> {
        self.lock_unless(|| false).expect("only who may give up is answered without it")
    }

    /// The same. `None`: a fork is under way for which the thread [must not wait](fork::must_not_wait).
    pub fn lock_unless_forking(&self) -> Option<ProcessGuard<'_, T>> {
        self.lock_unless(fork::must_not_wait)
    }

    fn lock_unless(&self, given_up: fn() -> bool) -> Option<ProcessGuard<'_, T>> {
        let blocked = Blocked::all();
        let generation = generation::current();
        let mut tries = 0;
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            // In a child a holder of another generation is a thread of the parent's, which is not here.
            let free = holder != generation
                && self
                    .holder
                    .compare_exchange(holder, generation, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if free {
                break;
            }
            if given_up() {
                return None;
            }
            tries += 1;
            match tries {
                0..=64 => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
        }
        let last = self.last.swap(generation, Ordering::Relaxed);
        let inherited = last != 0 && last != generation;
        Some(ProcessGuard { lock: self, generation, inherited, _blocked: blocked })
    }
}

impl<T> Deref for ProcessGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only one of this process, see `Sync`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for ProcessGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for ProcessGuard<'_, T> {
    fn drop(&mut self) {
        // Only what this guard took: a copy in a child drops the parent's generation, which counts as
        // free there already.
        let _ = self.lock.holder.compare_exchange(
            self.generation,
            0,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        static LOCK: ProcessLock<u64> = ProcessLock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut value = LOCK.lock();
                        let now = *value;
                        std::hint::black_box(now);
                        *value = now + 1;
                    }
                });
            }
        });
        assert_eq!(*LOCK.lock(), 80_000);
        assert!(!LOCK.lock().inherited);
    }
}
