//! The gate, at which forks wait for claims, and claims for forks. So no page is half way between
//! two states when a child is made.

use crate::runtime::event::Event;
use crate::sync::{own_claims, set_own_claims, AtomicU32, Ordering};

/// A bit in the number of a thread's claims: the thread is changing the count, so a signal handler
/// cannot rely on it.
const CHANGING: u32 = 1 << 31;
/// The gate is closed. `CLOSED + 1`: it is closed, and another thread may have a claim.
const CLOSED: u32 = 1;

/// See the head of the module.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Claims of all threads.
    claims: AtomicU32,
    /// Not 0: a fork waits for the claims to end, or is under way.
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

    /// Adds a claim. A thread that has one already does not wait, because the fork waits for it.
    pub fn enter(&self) {
        let own = own_claims();
        loop {
            set_own_claims(own | CHANGING);
            // SeqCst on both sides: either the fork sees the claim, or this thread sees the fork.
            self.claims.fetch_add(1, Ordering::SeqCst);
            if own > 0 || self.closed.load(Ordering::SeqCst) == 0 {
                break;
            }
            self.one_less();
            set_own_claims(own);
            self.changed.ring();
            self.changed.wait_until(|| self.closed.load(Ordering::SeqCst) == 0);
        }
        set_own_claims(own + 1);
    }

    /// Subtracts a claim.
    pub fn leave(&self) {
        let own = own_claims();
        let less = (own & !CHANGING).saturating_sub(1) | own & CHANGING;
        set_own_claims(less | CHANGING);
        self.one_less();
        set_own_claims(less);
        if self.closed.load(Ordering::SeqCst) != 0 {
            self.changed.ring();
        }
    }

    /// Subtracts a claim, but does not go below 0: see [`reset_in_child`](Gate::reset_in_child).
    fn one_less(&self) {
        let less = |claims: u32| claims.checked_sub(1);
        let _ = self.claims.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Before a fork: keeps other threads from taking a claim, and waits until none has one, or
    /// until the fork gives up. Claims of the forking thread itself, which a signal handler
    /// interrupted, continue in parent and child.
    pub fn close(&self, gives_up: impl Fn() -> bool) {
        let own = own_claims();
        // If the handler interrupted `enter` or `leave`, it is not known whether that claim is
        // counted. A claim of another thread may be counted in its place.
        let unsure = u32::from(own & CHANGING != 0);
        self.closed.store(CLOSED + unsure, Ordering::SeqCst);
        let most = (own & !CHANGING) + unsure;
        self.changed.wait_until(|| self.claims.load(Ordering::SeqCst) <= most || gives_up());
    }

    /// In a child, before the gate is opened: returns whether another thread may have had a claim.
    pub fn is_unsure(&self) -> bool {
        self.closed.load(Ordering::SeqCst) > CLOSED
    }

    /// After a fork: lets threads take claims again.
    pub fn open(&self) {
        self.closed.store(0, Ordering::SeqCst);
        self.changed.ring();
    }

    /// In a child, where the caller is the only thread. A claim that it is about to end may have
    /// been counted or not: it counts as ended.
    pub fn reset_in_child(&self) {
        self.claims.store(own_claims() & !CHANGING, Ordering::SeqCst);
        self.changed.reset_in_child();
    }
}
