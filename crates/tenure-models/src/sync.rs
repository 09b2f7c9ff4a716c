//! The core's `crate::sync`, made of loom's types.
//!
//! loom treats `SeqCst` accesses as `AcqRel`, so it would report orders that no processor shows; it
//! knows `SeqCst` fences. So each `SeqCst` access has such a fence before it here. That is a little
//! more than the language promises (an earlier `Relaxed` store is ordered before a later `SeqCst`
//! load), and less than a fence on both sides (a `SeqCst` read-modify-write is not ordered before a
//! later `Acquire` load).
//!
//! loom's fences also synchronise, as if each were an exchange of one word that all threads share.
//! That could hide an access whose order is too weak to publish. [`Order::Weak`] is the other
//! extreme: no fence at all, and `SeqCst` is `AcqRel`. A model of a publication in which no thread
//! waits runs with it.

pub(crate) use crate::runtime::lock::{Guard, Lock, Rank};
pub(crate) use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
pub(crate) use loom::thread::yield_now;
use std::cell::Cell;
pub(crate) use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The meaning of `SeqCst` in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Fences,
    Weak,
}

std::thread_local! {
    // All threads of a model run on the one thread of its test.
    static ORDER: Cell<Order> = const { Cell::new(Order::Fences) };
}

pub(crate) fn set_order(order: Order) {
    ORDER.set(order);
}

pub(crate) fn fence(order: Ordering) {
    if ORDER.get() == Order::Fences {
        loom::sync::atomic::fence(order);
    }
}

fn before(order: Ordering) {
    if order == Ordering::SeqCst {
        fence(order);
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty $(, $parameter:ident)?) => {
        #[derive(Debug)]
        pub(crate) struct $name$(<$parameter>)?(loom::sync::atomic::$name$(<$parameter>)?);

        impl$(<$parameter>)? $name$(<$parameter>)? {
            pub fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }
            pub fn load(&self, order: Ordering) -> $value {
                before(order);
                self.0.load(order)
            }
            pub fn store(&self, value: $value, order: Ordering) {
                before(order);
                self.0.store(value, order);
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                before(order);
                self.0.swap(value, order)
            }
            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                before(success);
                self.0.compare_exchange(from, to, success, failure)
            }
            pub fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(from, to, success, failure)
            }
        }

        /// Memory is freed after the last access to it.
        impl$(<$parameter>)? Drop for $name$(<$parameter>)? {
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    self.0.with_mut(|_| ());
                }
            }
        }
    };
}

macro_rules! counts {
    ($name:ident, $value:ty) => {
        impl $name {
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_add(value, order)
            }
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_sub(value, order)
            }
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_or(value, order)
            }
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                before(order);
                self.0.fetch_and(value, order)
            }
            /// The first read gets the newest value: an older one would only let the exchange fail.
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut value = self.fetch_or(0, failure);
                while let Some(next) = change(value) {
                    match self.compare_exchange(value, next, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(now) => value = now,
                    }
                }
                Err(value)
            }
        }
    };
}

atomic!(AtomicU8, u8);
atomic!(AtomicU16, u16);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);
atomic!(AtomicPtr, *mut T, T);
counts!(AtomicU8, u8);
counts!(AtomicU16, u16);
counts!(AtomicU32, u32);
counts!(AtomicU64, u64);
counts!(AtomicUsize, usize);

/// The kernel's part under a lock, as the kernel has one. A wait with a timeout has none here: a
/// lost wake-up is a deadlock, which loom reports.
#[derive(Debug)]
pub(crate) struct Futex {
    pub word: AtomicU32,
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    pub fn new(value: u32) -> Futex {
        Futex { word: AtomicU32::new(value), queue: Mutex::new(()), woken: Condvar::new() }
    }

    pub fn wait(&self, expected: u32, _timeout: Option<Duration>) {
        let queue = self.queue.lock().unwrap();
        if self.word.load(Ordering::Acquire) == expected {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    pub fn wake_one(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_one();
    }

    pub fn wake_all(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_all();
    }
}

/// A look before a sleep doubles the interleavings and adds nothing: the wait looks again.
pub(crate) const SPINS: u32 = 0;

pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn since(_began: Instant) -> Duration {
    Duration::ZERO
}

loom::thread_local! {
    static CLAIMS: Cell<u32> = Cell::new(0);
    static NUMBER: Cell<u32> = Cell::new(0);
    static SECTIONS: Cell<u32> = Cell::new(0);
    static OWN_HARVESTS: Cell<u32> = Cell::new(0);
    static HARVESTS_OF: [Cell<usize>; HARVESTS] = [const { Cell::new(0) }; HARVESTS];
}

std::thread_local! {
    static NUMBERS: Cell<u32> = const { Cell::new(0) };
}

/// Before each interleaving.
pub(crate) fn reset() {
    NUMBERS.set(0);
}

/// Threads are numbered in the order in which they ask.
pub(crate) fn thread_number() -> u32 {
    NUMBER.with(|number| {
        if number.get() == 0 {
            NUMBERS.set(NUMBERS.get() + 1);
            number.set(NUMBERS.get());
        }
        number.get()
    })
}

pub(crate) fn own_claims() -> u32 {
    CLAIMS.with(Cell::get)
}

pub(crate) fn set_own_claims(count: u32) {
    CLAIMS.with(|claims| claims.set(count));
}

pub(crate) fn barrier_after_rmw() {
    fence(Ordering::SeqCst);
}

pub(crate) fn section_begins(_counter: usize) {
    SECTIONS.with(|sections| sections.set(sections.get() + 1));
}

pub(crate) fn section_ends(_counter: usize) {
    SECTIONS.with(|sections| sections.set(sections.get() - 1));
}

/// No model forks in a section.
pub(crate) fn sections_in(_counter: usize) -> Option<u64> {
    SECTIONS.with(|sections| (sections.get() == 0).then_some(0))
}

pub(crate) fn own_harvests() -> u32 {
    OWN_HARVESTS.with(Cell::get)
}

pub(crate) fn set_own_harvests(count: u32) {
    OWN_HARVESTS.with(|harvests| harvests.set(count));
}

pub(crate) const HARVESTS: usize = 32;

pub(crate) fn set_own_harvest(number: usize, of: usize) {
    HARVESTS_OF.with(|all| all[number].set(of));
}

pub(crate) fn own_harvest(number: usize) -> usize {
    HARVESTS_OF.with(|all| all[number].get())
}
