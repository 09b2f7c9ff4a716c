//! Which thread waits for which, whatever it waits for: an object's refill, a value of a cache, an
//! open segment.
//!
//! What a thread waits for is ended by one other thread, the holder. Before a thread waits it looks
//! whether the holder waits for it, itself or through others: then neither would ever go on. The
//! look and the entry in the list of waits are one step under one lock, so of the threads of a
//! circle the last to come sees all others.

#![allow(unsafe_code, reason = "follows a list of waits that lie on their threads' stacks")]

use super::event::LONGEST_SLEEP;
use super::lock::assert_none_held;
use crate::os::generation;
use crate::sync::{thread_number, Futex, Lock, Ordering, Rank, SPINS};
use std::cell::Cell;
use std::ptr::null;

/// A thread that waits, on the thread's own stack. A thread has two where a signal's handler waits
/// that has interrupted a wait.
struct Wait {
    thread: u32,
    holder: u32,
    /// It is over when this is no longer `seen`. The thread that waits keeps it alive.
    end: *const Futex,
    seen: u32,
    next: Cell<*const Wait>,
    /// Of a search: what is to be followed after this.
    then: Cell<*const Wait>,
}

/// All waits. Each keeps its holder until it is over, and none that is entered closes a circle, so
/// there is none.
struct Waits(*const Wait);

// SAFETY: what it leads to is used under its lock only, and taken out before it ends.
unsafe impl Send for Waits {}

/// For the whole process: a circle of waits may go through any of its threads.
#[cfg(not(loom))]
static WAITS: Lock<Waits> = Lock::new(Rank::Waits, Waits(null()));
#[cfg(loom)]
loom::lazy_static! {
    /// For the whole process, as the other.
    static ref WAITS: Lock<Waits> = Lock::new(Rank::Waits, Waits(null()));
}

/// Has forks hold the lock.
fn watch() {
    #[cfg(not(loom))]
    super::fork_state::register(&SERVICE);
}

/// For the whole process: the register's entry of the waits.
#[cfg(not(loom))]
static SERVICE: super::services::Service = super::services::Service {
    hold: || WAITS.hold(),
    release: || WAITS.release(),
    recover: || _ = WAITS.reset_in_child(),
    // The waits of other threads are on stacks that the child may use anew. One of the forking
    // thread's own, which a signal's handler has interrupted, is for a thread that does not exist:
    // it is over.
    // SAFETY: the lock is held or recovered, and no guard of this thread's is interrupted: signals
    // are blocked.
    reset_in_child: |_| unsafe { WAITS.held_value() }.0 = null(),
    ..super::services::Service::named("waits", &[Rank::Waits])
};

/// Waits while `end` is `seen`. The thread `holder` changes it and [wakes](Futex::wake_all) its
/// waiters. `process` is the process, read before the caller looked for the holder: a child that is
/// made in a wait has no holder, so the wait ends there. `false`: the holder waits for the calling
/// thread in the end. The caller holds no lock.
pub(crate) fn wait(end: &Futex, seen: u32, holder: u32, process: u64) -> bool {
    assert_none_held();
    watch();
    let is_over = || end.word.load(Ordering::Acquire) != seen;
    // Most waits are for one system call of another thread.
    for _ in 0..SPINS {
        if is_over() {
            return true;
        }
        std::hint::spin_loop();
    }
    let (next, then) = (Cell::new(null()), Cell::new(null()));
    let wait = Wait { thread: thread_number(), holder, end, seen, next, then };
    let Some(_entered) = wait.enter() else { return false };
    while !is_over() && generation::current() == process {
        end.wait(seen, Some(LONGEST_SLEEP));
    }
    true
}

impl Waits {
    fn iter(&self) -> impl Iterator<Item = &Wait> {
        let mut at = self.0;
        std::iter::from_fn(move || {
            // SAFETY: an entered wait is on the stack of a thread that takes it out, under the
            // lock, before it returns.
            let wait = unsafe { at.as_ref() }?;
            at = wait.next.get();
            Some(wait)
        })
    }

    /// Whether one thread waits for another in the end.
    fn lead(&self, from: u32, to: u32) -> bool {
        let (mut at, mut to_follow) = (from, null::<Wait>());
        while at != to {
            // A wait that is met twice has been followed before the second time, for there is no
            // circle.
            for wait in self.iter().filter(|wait| wait.thread == at && !wait.is_over()) {
                wait.then.set(to_follow);
                to_follow = wait;
            }
            // SAFETY: null, or met above: in the list, whose lock is held.
            let Some(wait) = (unsafe { to_follow.as_ref() }) else { return false };
            (at, to_follow) = (wait.holder, wait.then.get());
        }
        true
    }
}

impl Wait {
    fn is_over(&self) -> bool {
        // SAFETY: the thread that waits keeps it alive for as long as the wait is in the list, and
        // this one is, or is about to be.
        unsafe { &*self.end }.word.load(Ordering::Acquire) != self.seen
    }

    /// Enters it in the list. `None`: its holder waits for it.
    fn enter(&self) -> Option<Entered<'_>> {
        let mut waits = WAITS.lock_signals_blocked();
        // A holder that has ended this may wait for this thread by now, but not for this one's
        // sake.
        if !self.is_over() && waits.lead(self.holder, self.thread) {
            return None;
        }
        self.next.set(waits.0);
        waits.0 = self;
        Some(Entered(self))
    }
}

/// Takes the wait out of the list when it is dropped.
struct Entered<'a>(&'a Wait);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut waits = WAITS.lock_signals_blocked();
        let next = self.0.next.get();
        if std::ptr::eq(waits.0, self.0) {
            waits.0 = next;
        } else if let Some(before) = waits.iter().find(|w| std::ptr::eq(w.next.get(), self.0)) {
            before.next.set(next);
        }
        // In a child it may not be there; `next` is not used then.
    }
}

/// How many threads wait for this.
#[cfg(all(test, not(loom)))]
pub(crate) fn count(end: &Futex) -> usize {
    watch();
    WAITS.lock_signals_blocked().iter().filter(|wait| std::ptr::eq(wait.end, end)).count()
}
