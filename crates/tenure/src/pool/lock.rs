//! The pool's locks. They know their owner: a thread that comes again while it holds one (a signal's
//! handler, a fork's handler that allocates) is told so, and goes another way. So is a thread that may not
//! wait for a fork (`NoWait`) while one is under way.

use crate::os::fork;
use rustix::thread::futex::{self, Flags, Timespec};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU32, Ordering};

/// Somebody sleeps until the lock is free.
const WAITED_FOR: u32 = 1 << 31;
const SPINS: u32 = 60;
const SHORT_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: fork::SHORT_WAIT.as_nanos() as i64 };

thread_local! {
    // Constant and without a destructor: no allocation, and usable to a thread's very end.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
}

/// A number that no other thread of the process has; a forked child keeps that of the thread that made
/// it.
#[inline]
pub(super) fn thread_number() -> u32 {
    let number = NUMBER.get();
    if number != 0 {
        return number;
    }
    new_number()
}

#[cold]
fn new_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % (WAITED_FOR - 1) + 1;
    NUMBER.set(number);
    number
}

/// A lock whose holder is known.
pub(super) struct Lock(AtomicU32);

/// Frees the lock on drop.
pub(super) struct Held<'a>(&'a Lock);

impl Lock {
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    /// Waits for the lock. `None`: the calling thread holds it already, or a fork may, for which it must not
    /// wait.
    #[inline]
    pub fn lock(&self) -> Option<Held<'_>> {
        match self.try_lock() {
            None => self.wait(fork::may_not_wait_long()),
            held => held,
        }
    }

    /// `None`: it is held, by whomever.
    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_>> {
        let free =
            self.0.compare_exchange(0, thread_number(), Ordering::Acquire, Ordering::Relaxed);
        // Not `then_some`: a `Held` that is made and dropped would free the lock of whoever has it.
        free.is_ok().then(|| Held(self))
    }

    #[cold]
    fn wait(&self, not_long: bool) -> Option<Held<'_>> {
        let me = thread_number();
        let mut spins = 0;
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if word & !WAITED_FOR == me {
                return None;
            }
            if word != 0 && not_long && fork::must_not_wait() {
                return None;
            }
            if word == 0 {
                // Whoever has slept cannot know whether others still do.
                let mine = if spins > SPINS { me | WAITED_FOR } else { me };
                let taken = self.0.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return Some(Held(self));
                }
                continue;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            spins = SPINS + 1;
            let waited = word | WAITED_FOR;
            let marked = word == waited
                || self
                    .0
                    .compare_exchange(word, waited, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            if marked {
                // Interrupted, or no longer so: looked at again above.
                // A fork that takes the lock next wakes nobody.
                let a_while = not_long.then_some(SHORT_WAIT);
                let _ = futex::wait(&self.0, Flags::PRIVATE, waited, a_while.as_ref());
            }
        }
    }

    /// Takes the lock for good, for as long as a fork takes: [`release`](Self::release) frees it.
    /// `false`: this thread holds it already.
    pub fn hold(&self) -> bool {
        // Also where a signal's handler forks that interrupted a call which may not wait.
        self.try_lock().or_else(|| self.wait(false)).map(std::mem::forget).is_some()
    }

    /// Frees what [`hold`](Self::hold) took.
    pub fn release(&self) {
        if self.0.swap(0, Ordering::Release) & WAITED_FOR != 0 {
            let _ = futex::wake(&self.0, Flags::PRIVATE, 1);
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A value behind such a lock.
pub(super) struct Guarded<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used under the lock alone, by one thread at a time.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub const fn new(value: T) -> Guarded<T> {
        Guarded { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Does something to the value. `None`: the calling thread is doing something to it already.
    #[inline]
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _held = self.lock.lock()?;
        // SAFETY: under the lock.
        Some(act(unsafe { &mut *self.value.get() }))
    }

    /// The same, unless the lock is held by whomever.
    pub fn try_with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _held = self.lock.try_lock()?;
        // SAFETY: under the lock.
        Some(act(unsafe { &mut *self.value.get() }))
    }

    /// The lock, for a fork.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_the_owner_is_told() {
        let shared = Guarded::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let done = shared.with(|count| {
                            assert!(shared.with(|_| ()).is_none(), "held by this thread");
                            *count += 1;
                        });
                        assert!(done.is_some());
                    }
                });
            }
        });
        assert_eq!(shared.with(|count| *count), Some(200_000));
    }
}
