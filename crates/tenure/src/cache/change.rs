//! What the cache does when a table changes, under the writers' lock of its shard. It outdates the
//! values that other threads make for the key, and it counts the change before any code of the
//! program runs.

use super::lanes::lane;
use super::listener::RemovalCause;
use super::place::{number, Place};
use super::single_flight::{Flights, Landing};
use super::space::Space;
use super::table::Change;
use super::Inner;
use std::cell::Cell;

/// Puts a value in. The value counts once its key leads to it.
pub(super) struct Putting<'a, K, S> {
    pub inner: &'a Inner<K, S>,
    pub hash: u32,
    pub place: Place,
    /// Another value had the place before.
    pub again: bool,
    /// Bytes that the value takes.
    pub need: usize,
    /// The flight in which the value was made. The flight then decides whether the value is stored.
    pub landing: Option<&'a Landing<'a, K>>,
    pub is_published: Cell<bool>,
    /// Why the previous value left.
    pub replaced: Cell<Option<RemovalCause>>,
}

impl<K, S> Change for Putting<'_, K, S> {
    fn heeds_absence(&self) -> bool {
        true
    }

    fn may(&self) -> bool {
        match self.landing {
            Some(landing) => !landing.is_outdated(),
            None => {
                outdate(&self.inner.flights, self.hash);
                true
            }
        }
    }

    fn made(&self, before: Option<Place>) {
        self.is_published.set(true);
        let space = &self.inner.space;
        space.came(self.place, self.again);
        if let Some(before) = before {
            let cause = cause(self.inner, before, RemovalCause::Replaced);
            self.replaced.set(Some(cause));
            space.left(before, &space.counts.removed);
            space.vacate(lane(), before, self.need);
        }
    }
}

impl<K, S> Drop for Putting<'_, K, S> {
    fn drop(&mut self) {
        if !self.is_published.get() {
            self.inner.space.did_not_come(self.place, self.again);
        }
    }
}

/// A key is removed.
pub(super) struct Removing<'a, K, S> {
    pub inner: &'a Inner<K, S>,
    pub hash: u32,
    /// There was a value. (The listener, which may clear the cache, is called later.)
    pub was_there: Cell<bool>,
}

impl<K, S> Change for Removing<'_, K, S> {
    fn heeds_absence(&self) -> bool {
        self.inner.flights.any()
    }

    fn may(&self) -> bool {
        outdate(&self.inner.flights, self.hash);
        true
    }

    fn made(&self, before: Option<Place>) {
        let space: &Space = &self.inner.space;
        self.was_there.set(before.is_some_and(|place| !self.inner.stale(place)));
        before.into_iter().for_each(|place| space.left(place, &space.counts.removed));
    }

    fn cause(&self, before: Place) -> RemovalCause {
        cause(self.inner, before, RemovalCause::Removed)
    }
}

fn outdate<K>(flights: &Flights<K>, hash: u32) {
    flights.outdate(number(hash), |other| other == hash);
}

/// Returns the cause, or `Purged` if the value is gone already: purged values leave their keys behind.
/// (So does one that is inserted in the midst of a `clear`, and goes with its segment.)
fn cause<K, S>(inner: &Inner<K, S>, place: Place, cause: RemovalCause) -> RemovalCause {
    if inner.stale(place) {
        RemovalCause::Purged
    } else {
        cause
    }
}
