//! The list of threads that wait for other threads: for an object's refill, a value of a cache, or
//! an open segment.
//!
//! One other thread, the holder, ends a wait. Before a thread waits, it checks whether the holder
//! waits for it, itself or through others: then neither thread would ever continue. The check and
//! the entry in the list are one step under one lock. So the last thread of a circle sees all
//! others.

#![allow(unsafe_code, reason = "follows a list of waits that lie on their threads' stacks")]

use super::event::LONGEST_SLEEP;
use super::lock::assert_none_held;
use crate::os::generation;
use crate::sync::{thread_number, Futex, Lock, Ordering, Rank, SPINS};
use std::cell::Cell;
use std::ptr::null;

/// A waiting thread, on that thread's own stack. A thread has two entries if a signal handler that
/// has interrupted a wait waits, too.
struct Wait {
    thread: u32,
    holder: u32,
    /// The wait is over when this word is no longer `seen`. The waiting thread keeps the word
    /// alive.
    end: *const Futex,
    seen: u32,
    next: Cell<*const Wait>,
    /// For a search: the wait that is followed after this one.
    then: Cell<*const Wait>,
}

/// All waits. Each keeps its holder until it is over. No wait that would close a circle is entered,
/// so there is no circle.
struct Waits(*const Wait);

// SAFETY: the entries are used under the list's lock only, and each is taken out before it ends.
unsafe impl Send for Waits {}

/// For the whole process: a circle of waits may go through any of its threads.
#[cfg(not(loom))]
static WAITS: Lock<Waits> = Lock::new(Rank::Waits, Waits(null()));
#[cfg(loom)]
loom::lazy_static! {
    /// For the whole process: a circle of waits may go through any of its threads.
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
    // The waits of other threads are on stacks that the child may use anew. The forking thread
    // itself may have one, if a signal handler has interrupted it. Its holder does not exist in the
    // child, so it is over.
    // SAFETY: the lock is held or recovered. No guard of this thread's is interrupted, because
    // signals are blocked.
    reset_in_child: |_| unsafe { WAITS.held_value() }.0 = null(),
    ..super::services::Service::named("waits", &[Rank::Waits])
};

/// Waits while `end` is `seen`. The thread `holder` changes it and [wakes](Futex::wake_all) its
/// waiters. `process` is the process, read before the caller looked for the holder: a child that is
/// made in a wait has no holder, so the wait ends there. `false`: the holder waits, perhaps through
/// others, for the calling thread. The caller holds no lock.
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
            // SAFETY: an entered wait is on the stack of its thread, and that thread takes it out,
            // under the lock, before it returns.
            let wait = unsafe { at.as_ref() }?;
            at = wait.next.get();
            Some(wait)
        })
    }

    /// Returns whether one thread waits for another, perhaps through others.
    fn lead(&self, from: u32, to: u32) -> bool {
        let (mut at, mut to_follow) = (from, null::<Wait>());
        while at != to {
            // A wait that the search meets twice was followed before the second time, because there
            // is no circle.
            for wait in self.iter().filter(|wait| wait.thread == at && !wait.is_over()) {
                wait.then.set(to_follow);
                to_follow = wait;
            }
            // SAFETY: the pointer is null, or leads to a wait met above, in the list, whose lock is
            // held.
            let Some(wait) = (unsafe { to_follow.as_ref() }) else { return false };
            (at, to_follow) = (wait.holder, wait.then.get());
        }
        true
    }
}

impl Wait {
    fn is_over(&self) -> bool {
        // SAFETY: the waiting thread keeps the word alive while the wait is in the list, and this
        // wait is in it or about to be.
        unsafe { &*self.end }.word.load(Ordering::Acquire) != self.seen
    }

    /// Enters the wait in the list. `None`: its holder waits for the calling thread.
    fn enter(&self) -> Option<Entered<'_>> {
        let mut waits = WAITS.lock_signals_blocked();
        // A holder that has changed the word may wait for this thread by now, but not because of
        // this wait.
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
        // In a child the wait may not be in the list; `next` is not used then.
    }
}

/// Returns how many threads wait for this word.
#[cfg(all(test, not(loom)))]
pub(crate) fn count(end: &Futex) -> usize {
    watch();
    WAITS.lock_signals_blocked().iter().filter(|wait| std::ptr::eq(wait.end, end)).count()
}
