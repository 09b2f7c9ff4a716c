//! Makes a missing value once, even if many threads and tasks ask for it.
//!
//! A waiting thread holds nothing. If the maker in turn waits for that thread, both would wait for
//! ever, so the caller gets an error instead (`runtime/waits.rs`). A waiting task blocks no thread.

use super::place::{number, short, SHARDS};
use super::tasks::{is_polled_here, Tasks};
use crate::os::futex::Futex;
use crate::os::generation::current as process;
use crate::runtime::lock::{thread_number, Lock, Rank};
use crate::runtime::waits;
use std::borrow::Borrow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

/// A value being made.
struct Flight<K> {
    key: K,
    hash: u64,
    maker: Maker,
    /// 1 after the value was made, or could not be made.
    done: Futex,
    /// The tasks that wait for it.
    tasks: Tasks,
    /// The key was changed since the flight began, or may have been: the flight is not in the list
    /// any more. It is read under the writers' lock of its shard, and set under it or before it.
    outdated: AtomicBool,
    /// [`Flights::losses`] when it began.
    losses: u32,
}

/// The thread that makes a value, or [`NO_THREAD`] if a task makes it: a task moves between
/// threads. A forked child has none of the parent's threads except the one that forked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Maker {
    thread: u32,
    process: u64,
}

impl Maker {
    /// Returns whether the thread exists.
    fn is_here(self) -> bool {
        self.process == process() || self.thread == thread_number()
    }
}

/// No thread has this number.
const NO_THREAD: u32 = 0;

/// The values of one cache that are being made.
pub(super) struct Flights<K> {
    all: Lock<Lists<K>>,
    /// The number of flights in the lists. In a child it includes flights of makers that do not
    /// exist there.
    count: AtomicU32,
    /// How often the lists were lost, each time in a child without fork handlers. Changes find no
    /// flight that began before.
    losses: AtomicU32,
}

struct Lists<K> {
    /// One list for each shard: tasks make thousands of values at once, and an insert looks at all
    /// flights of its shard.
    of_shards: [List<K>; SHARDS],
    count: u32,
}

/// The flights of one shard's keys.
struct List<K> {
    flights: Vec<Arc<Flight<K>>>,
    /// Counts the flights that were ever added.
    added: u64,
}

/// What [`Flights::board`] found.
pub(super) enum Boarding<'a, K> {
    /// The caller makes the value. Others wait until this is dropped, also by a panic.
    Make(Landing<'a, K>),
    /// Another thread or task made it, or failed.
    Over,
    /// The caller itself makes the value, or the thread that makes it waits for the caller.
    Deadlock,
}

/// What [`Flights::enter`] found.
enum Entered<'a, K> {
    First(Landing<'a, K>),
    Other(Arc<Flight<K>>),
}

/// See [`Boarding::Make`].
pub(super) struct Landing<'a, K> {
    flights: &'a Flights<K>,
    flight: Arc<Flight<K>>,
}

impl<K: Eq> Flights<K> {
    pub fn new() -> Flights<K> {
        let of_shards = std::array::from_fn(|_| List { flights: Vec::new(), added: 0 });
        let lists = Lists { of_shards, count: 0 };
        Flights {
            all: Lock::new(Rank::SingleFlight, lists),
            count: AtomicU32::new(0),
            losses: AtomicU32::new(0),
        }
    }

    /// Returns the right to make a value, or waits until another thread or task has made it.
    pub fn board<Q>(&self, hash: u64, key: &Q) -> Boarding<'_, K>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let maker = Maker { thread: thread_number(), process: process() };
        match self.enter(hash, key, maker) {
            Entered::First(landing) => Boarding::Make(landing),
            Entered::Other(flight) => {
                let wait = || waits::wait(&flight.done, 0, flight.maker.thread, maker.process);
                match !is_polled_here(flight.number()) && wait() {
                    true => Boarding::Over,
                    false => Boarding::Deadlock,
                }
            }
        }
    }

    /// As [`board`](Flights::board), for a task: it waits as a future.
    pub async fn board_task<Q>(&self, hash: u64, key: &Q) -> Boarding<'_, K>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let maker = Maker { thread: NO_THREAD, process: process() };
        let flight = match self.enter(hash, key, maker) {
            Entered::First(landing) => return Boarding::Make(landing),
            Entered::Other(flight) => flight,
        };
        // A task that makes a value polls its `make`, and so this code, on its own thread. A thread
        // that makes a value and blocks on this code would wait for itself.
        if is_polled_here(flight.number()) || flight.maker.thread == thread_number() {
            return Boarding::Deadlock;
        }
        // A child that polls its tasks anew has none of the parent's tasks, and need not wait for
        // them.
        flight.tasks.end(|| flight.maker.is_here()).await;
        Boarding::Over
    }

    /// Returns the flight of a key: a new one, or that of another maker that exists.
    fn enter<Q>(&self, hash: u64, key: &Q, maker: Maker) -> Entered<'_, K>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut mine = None;
        let mut same_hash = Vec::new();
        loop {
            let added = self.collect(hash, &mut same_hash);
            // The comparison runs the program's code, under no lock.
            let found = same_hash.iter().find(|flight| flight.key.borrow() == key);
            if let Some(flight) = found.filter(|flight| flight.maker.is_here()) {
                let flight = flight.clone();
                drop(same_hash);
                return Entered::Other(flight);
            }
            let flight = mine.take().unwrap_or_else(|| {
                let (done, outdated) = (Futex::new(0), AtomicBool::new(false));
                let (key, tasks) = (key.to_owned(), Tasks::new());
                let losses = self.losses.load(Ordering::Relaxed);
                Arc::new(Flight { key, hash, maker, done, tasks, outdated, losses })
            });
            let mut all = self.all.lock();
            let list = all.of(hash);
            let full = list.flights.len() == list.flights.capacity();
            if full || list.added != added {
                let places = (list.flights.len() * 2).max(4);
                drop(all);
                if full {
                    self.grow(hash, places);
                }
                // Again: another thread may have added a flight that was not compared.
                mine = Some(flight);
                continue;
            }
            // Its maker is one of the parent's threads. If it is the one that forked, its value may
            // still come, and no change of the key finds this flight from now on.
            let stale = found.and_then(|gone| all.remove(gone));
            stale.iter().for_each(|gone| gone.outdated.store(true, Ordering::Relaxed));
            let list = all.of(hash);
            list.flights.push(flight.clone());
            list.added += 1;
            all.count += 1;
            self.count.store(all.count, Ordering::SeqCst);
            drop(all);
            let landing = Landing { flights: self, flight };
            // This drops keys. If a drop panics, the landing is dropped as well. A returned landing
            // would be lost, and other threads would wait for it for ever.
            drop((stale, same_hash));
            return Entered::First(landing);
        }
    }

    /// Collects the flights of a hash. Returns how many flights were ever added.
    fn collect(&self, hash: u64, into: &mut Vec<Arc<Flight<K>>>) -> u64 {
        loop {
            // This may drop keys.
            into.clear();
            let mut all = self.all.lock();
            let list = all.of(hash);
            let of_hash = || list.flights.iter().filter(|flight| flight.hash == hash);
            let count = of_hash().count();
            if count <= into.capacity() {
                into.extend(of_hash().cloned());
                return list.added;
            }
            drop(all);
            into.reserve(count);
        }
    }

    /// Replaces the memory of a hash's list by memory for this many flights.
    fn grow(&self, hash: u64, places: usize) {
        let mut larger = Vec::with_capacity(places);
        let mut all = self.all.lock();
        let list = all.of(hash);
        if list.flights.len() < larger.capacity() {
            larger.append(&mut list.flights);
            std::mem::swap(&mut list.flights, &mut larger);
        }
        drop(all);
    }
}

impl<K> Flights<K> {
    /// Returns whether some value is being made. One load.
    ///
    /// A maker first counts itself, then takes its shard's writers' lock for a moment, looks for
    /// the key once more, and makes the value. So a writer that reads 0 here under that lock had
    /// the lock before the maker, and the maker then finds the writer's change. Without the lock,
    /// only a thread that changes nothing calls this. A maker that it does not see finds done what
    /// the thread did before its section began, because both do a sequentially consistent
    /// read-modify-write and a full barrier in between.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Outdates the values of these hashes that are being made in this shard. The caller has the
    /// shard's writers' lock. Another key of the same hash is outdated as well: its value is made
    /// and not kept.
    #[inline]
    pub fn outdate(&self, shard: usize, hashes: impl Fn(u32) -> bool) {
        if self.any() {
            self.outdate_some(shard, &hashes);
        }
    }

    #[cold]
    fn outdate_some(&self, shard: usize, hashes: &dyn Fn(u32) -> bool) {
        let all = self.all.lock();
        let flights = all.of_shards[shard].flights.iter();
        let changed = flights.filter(|flight| hashes(short(flight.hash)));
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

    /// Frees the lock in a child whose fork handlers did not run. Returns `true` if it was held:
    /// then the list is empty afterwards, and its memory is lost.
    pub fn recover(&self) -> bool {
        let held = self.all.reset_in_child();
        if held {
            let mut all = self.all.lock();
            for list in &mut all.of_shards {
                std::mem::forget(std::mem::take(&mut list.flights));
            }
            all.count = 0;
            self.count.store(0, Ordering::SeqCst);
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        held
    }
}

impl<K> Lists<K> {
    /// Returns the list of a hash.
    fn of(&mut self, hash: u64) -> &mut List<K> {
        &mut self.of_shards[number(short(hash))]
    }

    fn remove(&mut self, flight: &Arc<Flight<K>>) -> Option<Arc<Flight<K>>> {
        let flights = &mut self.of(flight.hash).flights;
        let at = flights.iter().position(|other| Arc::ptr_eq(other, flight))?;
        let removed = flights.swap_remove(at);
        self.count -= 1;
        Some(removed)
    }
}

impl<K> Flight<K> {
    /// Returns a number that no other living flight has.
    fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl<K> Landing<'_, K> {
    /// Returns the flight's number, for [`polled`](super::tasks::polled).
    pub fn number(&self) -> usize {
        self.flight.number()
    }

    /// Returns whether the key was inserted or removed since the flight began. The result is
    /// certain under the writers' lock of its shard. In a child that goes on with a task of the
    /// parent's, or has lost the lists, it is unknown: the flight may be out of the list. Then it
    /// counts as outdated.
    pub fn is_outdated(&self) -> bool {
        self.flight.outdated.load(Ordering::Relaxed)
            || !self.flight.maker.is_here()
            || self.flight.losses != self.flights.losses.load(Ordering::Relaxed)
    }
}

impl<K> Drop for Landing<'_, K> {
    fn drop(&mut self) {
        let mut all = self.flights.all.lock();
        let listed = all.remove(&self.flight);
        self.flights.count.store(all.count, Ordering::SeqCst);
        drop(all);
        self.flight.done.word.store(1, Ordering::Release);
        self.flight.done.wake_all();
        self.flight.tasks.wake_all();
        // This may drop the key, by the program's code.
        drop(listed);
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
            _ => panic!("no other thread makes {key}"),
        }
    }

    /// As in a child of a raw fork, while another thread of the parent had the lists.
    #[test]
    fn a_flight_that_was_lost_with_its_list_is_outdated() {
        let flights = Flights::new();
        let landing = make(&flights, 1);
        std::thread::scope(|scope| scope.spawn(|| flights.hold()).join().unwrap());
        assert!(!landing.is_outdated());
        assert!(flights.recover());
        assert!(landing.is_outdated());
        drop(landing);
        assert!(!make(&flights, 1).is_outdated());
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
            while waits::count(&landing.flight.done) < 4 {
                crate::os::futex::yield_now();
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
