//! Waits for a condition that other threads make true.

use crate::sync::{fence, AtomicU32, Futex, Ordering};
use std::time::Duration;

/// A wait ends at the latest after this time, and begins again: a child whose fork handlers did not
/// run has no thread that would ring.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// A place where threads wait. It has no state of its own, so a fork need not hold it.
#[derive(Debug)]
pub(crate) struct Event {
    rings: Futex,
    waiters: AtomicU32,
}

impl Event {
    #[cfg(not(loom))]
    pub const fn new() -> Event {
        Event { rings: Futex::new(0), waiters: AtomicU32::new(0) }
    }

    #[cfg(loom)]
    pub fn new() -> Event {
        Event { rings: Futex::new(0), waiters: AtomicU32::new(0) }
    }

    /// Waits until `done` holds. The thread that makes `done` hold calls [`ring`](Event::ring)
    /// afterwards.
    pub fn wait_until(&self, mut done: impl FnMut() -> bool) {
        self.wait_for(&mut done, None);
    }

    /// Waits until `done` holds, for `timeout` at most. `false`: it does not hold yet.
    pub fn wait_until_timeout(&self, mut done: impl FnMut() -> bool, timeout: Duration) -> bool {
        self.wait_for(&mut done, Some(timeout))
    }

    fn wait_for(&self, done: &mut dyn FnMut() -> bool, timeout: Option<Duration>) -> bool {
        // Most waits are for one system call of another thread.
        for _ in 0..crate::sync::SPINS {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        let mut left = timeout;
        loop {
            // SeqCst on both sides: either the ringing thread sees this waiter, or the waiter sees
            // the change that the ringing thread made before it looked.
            self.waiters.fetch_add(1, Ordering::SeqCst);
            let rings = self.rings.word.load(Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let mut is_done = done();
            let sleep = left.map_or(LONGEST_SLEEP, |left| left.min(LONGEST_SLEEP));
            if !is_done && !sleep.is_zero() {
                let began = crate::sync::now();
                self.rings.wait(rings, Some(sleep));
                if let Some(left) = &mut left {
                    *left = left.saturating_sub(crate::sync::since(began));
                }
                is_done = done();
            }
            self.waiters.fetch_sub(1, Ordering::SeqCst);
            if is_done || left.is_some_and(|left| left.is_zero()) {
                return is_done;
            }
        }
    }

    /// Wakes all waiters, which test their condition again.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.rings.word.fetch_add(1, Ordering::SeqCst);
            self.rings.wake_all();
        }
    }

    /// In a forked child, which does not have its parent's waiters.
    pub fn reset_in_child(&self) {
        self.waiters.store(0, Ordering::SeqCst);
    }
}
