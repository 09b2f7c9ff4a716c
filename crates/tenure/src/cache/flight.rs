//! One maker for a missing value, however many threads ask for it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A value being made.
struct Flight {
    /// The process whose thread makes it: in a forked child the parent's makers do not exist.
    process: u32,
    landed: Mutex<bool>,
    bell: Condvar,
}

/// The values being made, by their keys' full hash. Two keys of one hash wait for each other, which
/// costs time but is right: whoever waited looks its own key up again.
pub(super) struct Flights {
    all: Mutex<HashMap<u64, Arc<Flight>>>,
}

/// The right to make a value. Others wait until it is dropped, by a panic too.
pub(super) struct Maker<'a> {
    flights: &'a Flights,
    hash: u64,
    flight: Arc<Flight>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flights {
    pub fn new() -> Flights {
        Flights { all: Mutex::new(HashMap::new()) }
    }

    /// The right to make the value, or `None` after another thread has made it or failed to.
    pub fn board(&self, hash: u64) -> Option<Maker<'_>> {
        let process = std::process::id();
        let mut all = lock(&self.all);
        if let Some(flight) = all.get(&hash).filter(|flight| flight.process == process) {
            let flight = flight.clone();
            drop(all);
            let landed = lock(&flight.landed);
            drop(flight.bell.wait_while(landed, |l| !*l).unwrap_or_else(PoisonError::into_inner));
            return None;
        }
        let flight = Arc::new(Flight { process, landed: Mutex::new(false), bell: Condvar::new() });
        all.insert(hash, flight.clone());
        Some(Maker { flights: self, hash, flight })
    }

    /// The lock, for a fork.
    pub fn lock(&self) -> impl Drop + '_ {
        lock(&self.all)
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        let mut all = lock(&self.flights.all);
        if all.get(&self.hash).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            all.remove(&self.hash);
        }
        drop(all);
        *lock(&self.flight.landed) = true;
        self.flight.bell.notify_all();
    }
}
