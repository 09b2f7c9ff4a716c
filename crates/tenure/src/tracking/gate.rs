//! Where forks wait for claims, and claims for forks: no page is half way between two states when a child
//! is made.

use crate::runtime::event::Event;
use crate::sync::{own_claims, set_own_claims, AtomicU32, Ordering};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Claims of all threads.
    claims: AtomicU32,
    /// A fork waits for them to end, or is under way.
    closed: AtomicU32,
    /// Rung when either changes.
    changed: Event,
}

impl Gate {
    #[cfg(not(loom))]
    pub const fn new() -> Gate {
        Gate { claims: AtomicU32::new(0), closed: AtomicU32::new(0), changed: Event::new() }
    }

    #[cfg(loom)]
    pub fn new() -> Gate {
        Gate { claims: AtomicU32::new(0), closed: AtomicU32::new(0), changed: Event::new() }
    }

    /// One more claim. A thread that has one already does not wait: the fork waits for it.
    pub fn enter(&self) {
        let own = own_claims();
        loop {
            // SeqCst on both sides: either the fork sees the claim, or this thread sees the fork.
            self.claims.fetch_add(1, Ordering::SeqCst);
            if own > 0 || self.closed.load(Ordering::SeqCst) == 0 {
                break;
            }
            self.claims.fetch_sub(1, Ordering::SeqCst);
            self.changed.ring();
            self.changed.wait_until(|| self.closed.load(Ordering::SeqCst) == 0);
        }
        set_own_claims(own + 1);
    }

    /// One claim less.
    pub fn leave(&self) {
        set_own_claims(own_claims().saturating_sub(1));
        self.claims.fetch_sub(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) != 0 {
            self.changed.ring();
        }
    }

    /// Before a fork: waits until no other thread has a claim, and lets none have one. The claims of the
    /// forking thread itself, which a signal's handler interrupted, go on in parent and child.
    pub fn close(&self) {
        self.closed.store(1, Ordering::SeqCst);
        let own = own_claims();
        self.changed.wait_until(|| self.claims.load(Ordering::SeqCst) <= own);
    }

    /// After it.
    pub fn open(&self) {
        self.closed.store(0, Ordering::SeqCst);
        self.changed.ring();
    }

    /// In a child, where the caller is the only thread.
    pub fn reset_in_child(&self) {
        self.claims.store(own_claims(), Ordering::SeqCst);
        self.changed.reset_in_child();
    }
}
