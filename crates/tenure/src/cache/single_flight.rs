//! One maker for a missing value, however many threads ask for it.
//!
//! A thread that waits holds nothing. Before it waits it looks whether the maker waits for it, in
//! the end: then nobody would ever go on, and the caller gets an error instead.

use crate::os::generation::current as process;
use crate::runtime::lock::{Guard, Lock, Rank};
use rustix::thread::futex;
use std::borrow::Borrow;
use std::cell::Cell;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// A value being made.
struct Flight<K> {
    key: K,
    hash: u64,
    maker: Maker,
    done: AtomicU32,
    /// The key was changed since the flight began. Set and read under the writers' lock of its shard.
    outdated: AtomicBool,
}

/// Which thread makes a value. In a forked child the parent's threads do not exist, but for the one
/// that forked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Maker {
    thread: u64,
    process: u64,
}

impl Maker {
    /// Whether the thread exists.
    fn is_here(self) -> bool {
        self.process == process() || self.thread == this_thread()
    }
}

/// A waiting thread looks again after this whether the maker exists.
const LONGEST_SLEEP: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A number of the calling thread's own, in a child the same as in the parent.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    if NUMBER.get() == 0 {
        NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    NUMBER.get()
}

/// The values of one cache that are being made.
pub(super) struct Flights<K> {
    all: Lock<List<K>>,
    /// How many are in the list; in a child, those of makers that do not exist there as well.
    count: AtomicU32,
}

struct List<K> {
    flights: Vec<Arc<Flight<K>>>,
    /// Counts the flights that were ever added.
    added: u64,
}

/// What [`Flights::board`] found.
pub(super) enum Boarding<'a, K> {
    /// The caller makes the value. Others wait until this is dropped, by a panic too.
    Make(Landing<'a, K>),
    /// Another thread has made it, or failed to.
    Over,
    /// The value is being made by the caller itself, or by a thread that waits for the caller.
    Deadlock,
}

/// See [`Boarding::Make`].
pub(super) struct Landing<'a, K> {
    flights: &'a Flights<K>,
    flight: Arc<Flight<K>>,
}

impl<K: Eq> Flights<K> {
    pub fn new() -> Flights<K> {
        let list = List { flights: Vec::new(), added: 0 };
        Flights { all: Lock::new(Rank::SingleFlight, list), count: AtomicU32::new(0) }
    }

    /// The right to make a value, or a wait until another thread has made it.
    pub fn board<Q>(&self, hash: u64, key: &Q) -> Boarding<'_, K>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let maker = Maker { thread: this_thread(), process: process() };
        let mut mine = None;
        let mut same_hash = Vec::new();
        loop {
            let added = self.collect(hash, &mut same_hash);
            // The program's code compares, under no lock.
            let found = same_hash.iter().find(|flight| flight.key.borrow() == key);
            if let Some(flight) = found.filter(|flight| flight.maker.is_here()) {
                return if flight.wait() { Boarding::Over } else { Boarding::Deadlock };
            }
            let flight = mine.take().unwrap_or_else(|| {
                let (done, outdated) = (AtomicU32::new(0), AtomicBool::new(false));
                Arc::new(Flight { key: key.to_owned(), hash, maker, done, outdated })
            });
            let mut all = self.all.lock();
            let full = all.flights.len() == all.flights.capacity();
            if full || all.added != added {
                let places = (all.flights.len() * 2).max(16);
                drop(all);
                if full {
                    self.grow(places);
                }
                // Again: a flight may have come that was not compared.
                mine = Some(flight);
                continue;
            }
            let stale = found.and_then(|gone| all.remove(gone));
            all.flights.push(flight.clone());
            all.added += 1;
            self.count.store(all.flights.len() as u32, Ordering::SeqCst);
            drop(all);
            drop(stale);
            return Boarding::Make(Landing { flights: self, flight });
        }
    }

    /// Collects the flights of a hash; answers the count of flights added so far.
    fn collect(&self, hash: u64, into: &mut Vec<Arc<Flight<K>>>) -> u64 {
        loop {
            // Their keys may be dropped here.
            into.clear();
            let all = self.all.lock();
            let of_hash = || all.flights.iter().filter(|flight| flight.hash == hash);
            let count = of_hash().count();
            if count <= into.capacity() {
                into.extend(of_hash().cloned());
                return all.added;
            }
            drop(all);
            into.reserve(count);
        }
    }

    /// Replaces the list's memory by one of this many places.
    fn grow(&self, places: usize) {
        let mut larger = Vec::with_capacity(places);
        let mut all = self.all.lock();
        if all.flights.len() < larger.capacity() {
            larger.append(&mut all.flights);
            std::mem::swap(&mut all.flights, &mut larger);
        }
        drop(all);
    }
}

impl<K> Flights<K> {
    /// Whether some value is being made. One load.
    ///
    /// A maker is counted before it takes its shard's writers' lock for a moment, looks for the key once
    /// more, and makes the value. So a writer that sees 0 here under that lock had it before the maker,
    /// which then finds what the writer has done. Without the lock it is for a thread that changes
    /// nothing: what it did before its section began, a maker that it does not see finds done, because
    /// both do a sequentially consistent read-modify-write and a full barrier in between.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Values being made of these hashes are outdated. The caller has their shard's writers' lock.
    /// Another key of the same hash is outdated with them: its value is made and not kept.
    #[inline]
    pub fn outdate(&self, hashes: impl Fn(u64) -> bool) {
        if self.any() {
            self.outdate_some(&hashes);
        }
    }

    #[cold]
    fn outdate_some(&self, hashes: &dyn Fn(u64) -> bool) {
        let all = self.all.lock();
        let changed = all.flights.iter().filter(|flight| hashes(flight.hash));
        changed.for_each(|flight| flight.outdated.store(true, Ordering::Relaxed));
        drop(all);
    }

    /// Takes the lock over a fork.
    pub fn hold(&self) {
        self.all.hold();
    }

    /// Frees the lock after a fork.
    pub fn release(&self) {
        self.all.release();
    }

    /// In a child whose fork handlers did not run: frees the lock. `true`: it was held; the list is
    /// empty then, and its memory lost.
    pub fn recover(&self) -> bool {
        let held = self.all.reset_in_child();
        if held {
            std::mem::forget(std::mem::take(&mut self.all.lock().flights));
            self.count.store(0, Ordering::SeqCst);
        }
        held
    }
}

impl<K> List<K> {
    fn remove(&mut self, flight: &Arc<Flight<K>>) -> Option<Arc<Flight<K>>> {
        let at = self.flights.iter().position(|other| Arc::ptr_eq(other, flight))?;
        Some(self.flights.swap_remove(at))
    }
}

impl<K> Landing<'_, K> {
    /// Whether the key was inserted or removed since the flight began. Certain under the writers' lock
    /// of its shard.
    pub fn is_outdated(&self) -> bool {
        self.flight.outdated.load(Ordering::Relaxed)
    }
}

impl<K> Drop for Landing<'_, K> {
    fn drop(&mut self) {
        let mut all = self.flights.all.lock();
        let listed = all.remove(&self.flight);
        self.flights.count.store(all.flights.len() as u32, Ordering::SeqCst);
        drop(all);
        self.flight.done.store(1, Ordering::Release);
        let _ = futex::wake(&self.flight.done, futex::Flags::PRIVATE, i32::MAX as u32);
        // The key may be dropped here, by the program's code.
        drop(listed);
    }
}

impl<K> Flight<K> {
    /// Waits until the value was made. `false`: that would be for ever.
    fn wait(&self) -> bool {
        let wait = Wait {
            thread: this_thread(),
            maker: self.maker.thread,
            done: &self.done,
            next: Cell::new(null()),
        };
        let Some(_listed) = wait.list() else { return false };
        // A handler of a signal that interrupts this may fork: in the child the maker does not exist, and
        // nobody wakes.
        while self.done.load(Ordering::Acquire) == 0 && self.maker.is_here() {
            let _ = futex::wait(&self.done, futex::Flags::PRIVATE, 0, Some(&LONGEST_SLEEP));
        }
        true
    }
}

/// A thread that waits for a value of whichever cache, on the thread's own stack.
struct Wait {
    thread: u64,
    maker: u64,
    done: *const AtomicU32,
    next: Cell<*const Wait>,
}

/// All threads that wait.
struct Waits(*const Wait);

// SAFETY: what it leads to is used only under its lock, and taken out before it ends.
unsafe impl Send for Waits {}

static WAITS: Lock<Waits> = Lock::new(Rank::FlightWaits, Waits(null()));

impl Waits {
    fn iter(&self) -> impl Iterator<Item = &Wait> {
        let mut at = self.0;
        std::iter::from_fn(move || {
            // SAFETY: a listed wait is on the stack of a thread that takes it out, under the lock,
            // before it returns.
            let wait = unsafe { at.as_ref() }?;
            at = wait.next.get();
            Some(wait)
        })
    }

    /// Whether `maker` waits in the end for `thread`.
    fn lead(&self, maker: u64, thread: u64) -> bool {
        let mut at = maker;
        // There is no ring among those that wait already, so this ends.
        while at != thread {
            // SAFETY: the flag belongs to a flight that the waiting thread has a share of.
            let undone = |w: &&Wait| unsafe { (*w.done).load(Ordering::Acquire) } == 0;
            match self.iter().filter(undone).find(|wait| wait.thread == at) {
                Some(wait) => at = wait.maker,
                None => return false,
            }
        }
        true
    }
}

/// Takes the wait out of the list.
struct Listed<'a>(&'a Wait);

impl Wait {
    /// Adds it to the list; `None`: its maker waits for it.
    fn list(&self) -> Option<Listed<'_>> {
        let mut waits: Guard<'_, Waits> = WAITS.lock();
        // A maker that is done may wait for this thread by now, but not for this value's sake.
        // SAFETY: as in `lead`.
        let done = unsafe { (*self.done).load(Ordering::Acquire) } != 0;
        if !done && waits.lead(self.maker, self.thread) {
            return None;
        }
        self.next.set(waits.0);
        waits.0 = self;
        Some(Listed(self))
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut waits = WAITS.lock();
        let next = self.0.next.get();
        if std::ptr::eq(waits.0, self.0) {
            waits.0 = next;
        } else if let Some(before) = waits.iter().find(|w| std::ptr::eq(w.next.get(), self.0)) {
            before.next.set(next);
        }
        drop(waits);
    }
}

/// Takes the lock of the waits over a fork, after every [`Flights::hold`].
pub(super) fn hold_waits() {
    WAITS.hold();
}

/// Frees it.
pub(super) fn release_waits() {
    WAITS.release();
}

/// In a forked child: no thread waits that exists there.
pub(super) fn reset_waits_in_child(missed: bool) {
    if missed {
        WAITS.reset_in_child();
        WAITS.lock().0 = null();
    } else {
        // SAFETY: the forking thread holds the lock.
        unsafe { WAITS.held_value() }.0 = null();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn make<'a>(flights: &'a Flights<u64>, key: u64) -> Landing<'a, u64> {
        crate::cache::fork::watch();
        match flights.board(7, &key) {
            Boarding::Make(landing) => landing,
            _ => panic!("nobody makes {key}"),
        }
    }

    #[test]
    fn one_thread_makes_and_the_others_wait() {
        let flights = Flights::<u64>::new();
        let landing = make(&flights, 1);
        let other = make(&flights, 2);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| matches!(flights.board(7, &1), Boarding::Over)))
                .collect();
            let done: *const AtomicU32 = &landing.flight.done;
            let waits = || WAITS.lock().iter().filter(|wait| wait.done == done).count();
            while waits() < 4 {
                std::thread::yield_now();
            }
            drop(landing);
            assert!(waiting.into_iter().all(|thread| thread.join().unwrap()));
        });
        drop(other);
        drop(make(&flights, 1));
    }

    #[test]
    fn the_same_key_inside_its_own_making_is_an_error() {
        let flights = Flights::<u64>::new();
        let _landing = make(&flights, 1);
        assert!(matches!(flights.board(7, &1), Boarding::Deadlock));
        drop(make(&flights, 2));
    }

    #[test]
    fn two_threads_crosswise_and_in_two_caches() {
        let (here, there) = (Flights::<u64>::new(), Flights::<u64>::new());
        for _ in 0..50 {
            let (both, after) = (Barrier::new(2), Barrier::new(2));
            let errors = AtomicU32::new(0);
            std::thread::scope(|scope| {
                for (own, other, key) in [(&here, &there, 1), (&there, &here, 2)] {
                    let (both, after, errors) = (&both, &after, &errors);
                    scope.spawn(move || {
                        let landing = make(own, key);
                        both.wait();
                        match other.board(7, &(3 - key)) {
                            Boarding::Deadlock => _ = errors.fetch_add(1, Ordering::Relaxed),
                            Boarding::Over => {}
                            Boarding::Make(_) => panic!("the other makes it"),
                        }
                        drop(landing);
                        after.wait();
                    });
                }
            });
            assert_eq!(errors.load(Ordering::Relaxed), 1);
        }
    }
}
