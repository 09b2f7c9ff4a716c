//! A turn: one thread at a time does work that may wait, allocate and call the program's code,
//! which is not allowed under a lock.

#![allow(unsafe_code, reason = "follows a list of waiting threads, each on its own stack")]

use super::waits;
use crate::os::generation;
use crate::sync::{thread_number, AtomicU64, Futex, Ordering};
use std::cell::Cell;

/// The owner of the turn. In a forked child a thread of the parent's does not count, so forks hold
/// nothing.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The thread's number, and the process's generation in the upper half. 0: the turn is free.
    owner: AtomicU64,
    /// How many turns have ended. It is counted after the owner is cleared.
    ended: Futex,
}

thread_local! {
    /// Each thread's own: the forking thread's turns go on in the child, and fork handlers are
    /// given no argument. The turn that it has taken last and still has.
    static INNERMOST: Cell<*const Mine<'static>> = const { Cell::new(std::ptr::null()) };
}

/// The calling thread's turn. It ends when it is dropped, also by a panic.
pub(crate) struct Mine<'a> {
    turn: &'a Turn,
    outer: Cell<*const Mine<'static>>,
}

/// The result of an attempt.
pub(crate) enum Attempt<'a> {
    Mine(Mine<'a>),
    /// The calling thread has it already.
    Nested,
    /// Another thread has it.
    Busy,
}

fn token() -> u64 {
    generation::current() << 32 | u64::from(thread_number())
}

impl Turn {
    pub fn new() -> Turn {
        Turn { owner: AtomicU64::new(0), ended: Futex::new(0) }
    }

    /// Takes the turn if it is free.
    pub fn attempt(&self) -> Attempt<'_> {
        let me = token();
        let owner = self.owner.load(Ordering::Acquire);
        if owner as u32 == me as u32 {
            return Attempt::Nested;
        }
        if owner != 0 && owner >> 32 == me >> 32 {
            return Attempt::Busy;
        }
        match self.owner.compare_exchange(owner, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Attempt::Mine(Mine { turn: self, outer: Cell::new(std::ptr::null()) }),
            Err(_) => Attempt::Busy,
        }
    }

    /// Waits until the thread that has the turn has ended it, or does not exist in this process.
    /// Another thread may have it by then. `false`: that thread waits, itself or through others,
    /// for the calling thread, so its turn would never end. The caller holds no lock.
    pub fn wait(&self) -> bool {
        let process = generation::current();
        // In this order: while the count stays unchanged, the owner that was found has not ended
        // its turn. (The end of the turn before it may be counted late. Then the wait is over, and
        // the caller looks again.)
        let ended = self.ended.word.load(Ordering::Acquire);
        let owner = self.owner.load(Ordering::Acquire);
        if owner == 0 || owner >> 32 != process & u64::from(u32::MAX) {
            return true;
        }
        waits::wait(&self.ended, ended, owner as u32, process)
    }

    /// Waits for the turn. `None`: the calling thread has it already, or would wait for itself.
    pub fn take(&self) -> Option<Mine<'_>> {
        loop {
            match self.attempt() {
                Attempt::Mine(mine) => return Some(mine),
                Attempt::Nested => return None,
                Attempt::Busy if self.wait() => {}
                Attempt::Busy => return None,
            }
        }
    }
}

impl Mine<'_> {
    /// Notes for a fork that the thread has the turn. The value must not move until its end: a
    /// child that is made meanwhile continues with it.
    pub fn goes_on_in_child(&self) {
        self.outer.set(INNERMOST.get());
        INNERMOST.set(std::ptr::from_ref(self).cast());
    }
}

impl Drop for Mine<'_> {
    fn drop(&mut self) {
        if INNERMOST.get() == std::ptr::from_ref(self).cast() {
            INNERMOST.set(self.outer.get());
        }
        self.turn.owner.store(0, Ordering::Release);
        self.turn.ended.word.fetch_add(1, Ordering::Release);
        self.turn.ended.wake_all();
    }
}

/// Returns whether the calling thread has a turn that goes on in children.
pub(crate) fn any_goes_on() -> bool {
    !INNERMOST.get().is_null()
}

/// In a child: the turns of the forking thread continue here.
pub(super) fn reset_in_child() {
    let mut at = INNERMOST.get();
    // SAFETY: the pointer is null, or leads into a frame of this thread that has not returned:
    // `drop` takes it out.
    while let Some(mine) = unsafe { at.as_ref() } {
        mine.turn.owner.store(token(), Ordering::Release);
        at = mine.outer.get();
    }
}
