//! Atomics, cells, locks and waiting. The crate of models compiles the files that use only this
//! module with a model checker's types.

pub(crate) use crate::os::futex::{yield_now, Futex};
pub(crate) use crate::runtime::lock::{thread_number, Guard, Lock, Rank};
pub(crate) use std::sync::atomic::{
    fence, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often a waiter looks before it sleeps.
pub(crate) const SPINS: u32 = 200;

/// The current time, for waits with a deadline.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The time that has passed since `began`.
pub(crate) fn since(began: Instant) -> Duration {
    began.elapsed()
}

/// The most harvests of one thread, one inside another.
pub(crate) const HARVESTS: usize = 32;

/// The most sections of one thread that are noted, one inside another.
const SECTIONS: usize = 32;

/// The calling thread's counts of the sections that it is in.
struct Own {
    claims: Cell<u32>,
    /// Open sections of the epochs of tables.
    sections: Cell<usize>,
    /// Which counter of an epoch each open section is counted in.
    sections_of: [Cell<usize>; SECTIONS],
    harvests: Cell<u32>,
    /// Which cache each harvest is of.
    harvests_of: [Cell<usize>; HARVESTS],
    /// The address of the shared-memory record in which the thread counts or uncounts a pin. 0:
    /// none.
    counting: Cell<usize>,
}

thread_local! {
    // Constant and without a destructor, so the first use allocates nothing, and a thread can use
    // it until its very end.
    /// Each thread's own: the counts of another thread do not matter to it.
    static OWN: Own = const {
        Own {
            claims: Cell::new(0),
            sections: Cell::new(0),
            sections_of: [const { Cell::new(0) }; SECTIONS],
            harvests: Cell::new(0),
            harvests_of: [const { Cell::new(0) }; HARVESTS],
            counting: Cell::new(0),
        }
    };
}

/// How many claims the calling thread has.
pub(crate) fn own_claims() -> u32 {
    OWN.with(|own| own.claims.get())
}

/// Sets how many claims the calling thread has.
pub(crate) fn set_own_claims(count: u32) {
    OWN.with(|own| own.claims.set(count));
}

/// `std::cell::UnsafeCell` with loom's interface.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with a pointer that `read` may only read through.
    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with a pointer that `write` may write through. The caller makes sure that no
    /// other thread uses the cell meanwhile.
    #[inline]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A full barrier right after a sequentially consistent read-modify-write of this thread.
///
/// On x86-64 that instruction already is the barrier, so only the compiler needs a fence.
#[inline(always)]
pub(crate) fn barrier_after_rmw() {
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(target_arch = "x86_64"))]
    fence(Ordering::SeqCst);
}

/// The calling thread begins to read shared data in an epoch, and is about to count itself in the
/// counter at this address. A fork reads this note by [`sections_in`].
#[inline(always)]
pub(crate) fn section_begins(counter: usize) {
    OWN.with(|own| {
        let open = own.sections.get();
        if let Some(note) = own.sections_of.get(open) {
            note.set(counter);
        }
        own.sections.set(open + 1);
    });
}

/// The calling thread ends a section that [`section_begins`] began, after it has uncounted itself.
#[inline(always)]
pub(crate) fn section_ends(counter: usize) {
    OWN.with(|own| {
        let last = own.sections.get() - 1;
        if own.sections_of.get(last).is_some_and(|note| note.get() != counter) {
            swap_with_last(&own.sections_of[..=last], counter);
        }
        own.sections.set(last);
    });
}

/// A section ended before one that began later.
#[cold]
fn swap_with_last(notes: &[Cell<usize>], counter: usize) {
    if let Some(ended) = notes.iter().rev().find(|note| note.get() == counter) {
        ended.swap(&notes[notes.len() - 1]);
    }
}

/// How many sections the calling thread is in that are counted at this address: more than 0 only
/// if the program's code runs in them. `None`: more sections are open than are noted.
pub(crate) fn sections_in(counter: usize) -> Option<u64> {
    OWN.with(|own| {
        let open = own.sections_of.get(..own.sections.get())?;
        Some(open.iter().filter(|note| note.get() == counter).count() as u64)
    })
}

/// How many sections the calling thread is in.
#[cfg(test)]
pub(crate) fn sections_open() -> usize {
    OWN.with(|own| own.sections.get())
}

/// Runs code that counts or uncounts a pin in a record. A fork in a signal handler reads the record
/// by [`counting`].
#[inline(always)]
pub(crate) fn while_counting<R>(record: usize, act: impl FnOnce() -> R) -> R {
    let barrier = || std::sync::atomic::compiler_fence(Ordering::SeqCst);
    OWN.with(|own| own.counting.set(record));
    barrier();
    let result = act();
    barrier();
    OWN.with(|own| own.counting.set(0));
    result
}

/// The address of the record in which the calling thread counts or uncounts a pin. 0: none.
pub(crate) fn counting() -> usize {
    OWN.with(|own| own.counting.get())
}

/// How many harvests of tables the calling thread is in, one inside another.
pub(crate) fn own_harvests() -> u32 {
    OWN.with(|own| own.harvests.get())
}

/// Sets how many harvests the calling thread is in.
pub(crate) fn set_own_harvests(count: u32) {
    OWN.with(|own| own.harvests.set(count));
}

/// Sets the note of which cache the calling thread's harvest of this number is.
pub(crate) fn set_own_harvest(number: usize, cache: usize) {
    OWN.with(|own| own.harvests_of[number].set(cache));
}

/// The note of the calling thread's harvest of this number.
pub(crate) fn own_harvest(number: usize) -> usize {
    OWN.with(|own| own.harvests_of[number].get())
}
