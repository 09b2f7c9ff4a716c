//! Puts a value in.

use super::array::NoMemory;
use super::change::Putting;
use super::harvesting::{tell_replaced, Harvesting, Unfinished};
use super::header::Header;
use super::inside::Inside;
use super::lanes::lane;
use super::listener::RemovalCause;
use super::lookup::Pinned;
use super::place::Place;
use super::segment::no_own_memory;
use super::single_flight::Landing;
use super::space::Room;
use super::table::{Change, Section};
use super::value::Value;
use super::{pins, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::fork;
use crate::text::text;
use crate::tracking::backpressure;
use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A value that was made, and its own time to live if it has one.
pub(super) type Made = (Vec<u8>, Option<Duration>);
/// A value that was put in and is still pinned.
pub(super) struct Stored<'a> {
    pin: Pinned<'a>,
    at: usize,
}

impl<'a> Stored<'a> {
    /// Returns the value. The caller also has its bytes.
    pub fn into_value(self, bytes: Vec<u8>) -> Value<'a> {
        let shared = self.pin.0.is_shared();
        if shared && !pins::take() {
            return Value::own(bytes, true);
        }
        let stored = self.pin.0.bytes(self.at, bytes.len());
        self.pin.into_value(stored, shared)
    }
}
/// What is left after a value was put in.
pub(super) struct Spare<'a, K> {
    /// The caller's key, if the table already had an equal one.
    key: Option<K>,
    /// Why the previous value left.
    cause: Option<RemovalCause>,
    /// The cache may have evicted other values for it.
    evicted: bool,
    /// Until [`Inner::finish`] has told what was evicted and replaced.
    left: Unfinished<'a>,
}
impl<K, S> Inner<K, S>
where
    K: Hash + Eq,
    S: BuildHasher,
{
    /// Stores a value. Returns the key with the error if there is no room. `landing`: the flight in
    /// which the value was made. The first result is `None` if the flight is outdated: then nothing
    /// was stored. The caller finishes with [`Inner::finish`].
    pub(super) fn put(
        &self,
        hash: u32,
        key: K,
        value: &[u8],
        time_to_live: Option<Duration>,
        landing: Option<&Landing<'_, K>>,
    ) -> std::result::Result<(Option<Stored<'_>>, Spare<'_, K>), (K, Error)> {
        // In a child without fork handlers the first lock may empty the cache, and with it room that
        // was taken before.
        fork::look();
        let left = Unfinished::new(&self.shards.harvests);
        let (room, need) = match self.room(hash, &key, value, time_to_live) {
            Ok(room) => room,
            Err(error) => return Err((key, error)),
        };
        let stored = Stored { pin: Pinned(room.segment), at: room.at };
        let (is_published, replaced) = (Cell::new(false), Cell::new(None));
        let place = room.place;
        let again = room.again;
        let putting =
            Putting { inner: self, hash, place, again, need, landing, is_published, replaced };
        let table = &self.shards.of(hash).table;
        let section = table.section(false);
        room.segment.write(room.at, value);
        let key = match self.index(section, hash, key, place, &putting) {
            Ok(key) => key,
            Err(NoMemory(key)) => return Err((key, no_own_memory())),
        };
        let stored = putting.is_published.get().then_some(stored);
        Ok((stored, Spare { key, cause: putting.replaced.get(), evicted: room.evicted, left }))
    }

    /// Puts the place of a value under its key. Where the index has no memory to grow, values leave,
    /// and their keys' slots are used.
    fn index<'t>(
        &'t self,
        section: Section<'t, K>,
        hash: u32,
        mut key: K,
        place: Place,
        change: &impl Change,
    ) -> std::result::Result<Option<K>, NoMemory<K>> {
        /// A reader in a section keeps the slots of values that have left.
        const TIMES: usize = 8;
        let table = &self.shards.of(hash).table;
        let mut section = Some(section);
        for time in 0..TIMES {
            let section = section.take().unwrap_or_else(|| table.section(false));
            // If a key's drop panicked during the insert, the returned key would be lost, and no
            // listener would hear of it.
            let quiet = Harvesting::hold_off(&self.shards.harvests);
            let stale = |place| self.stale(place);
            match table.insert(section, hash, key, place, &stale, change) {
                Ok(key) => return Ok(key),
                Err(NoMemory(back)) => key = back,
            }
            drop(quiet);
            if time == 0 && !self.evicts() {
                break;
            }
            crate::os::futex::yield_now();
            self.shards.harvest();
        }
        Err(NoMemory(key))
    }

    fn evicts(&self) -> bool {
        let _inside = Inside::begin();
        self.space.evict(&self.shards, false)
    }

    /// Calls the listener for the replaced value, and drops what is left. Runs the program's code.
    pub(super) fn finish(&self, hash: u32, spare: Spare<'_, K>) {
        let Spare { key, cause, evicted, left } = spare;
        match (key, cause, &self.listener) {
            (Some(key), Some(cause), Some(listener)) => {
                tell_replaced(&self.shards.harvests, listener, key, cause);
            }
            (key, ..) => drop(key),
        }
        match evicted {
            true => self.shards.harvest(),
            false => self.shards.harvest_of(hash),
        }
        left.end();
    }

    /// Returns the value under a key that the caller was about to make: another maker may have
    /// landed between the caller's lookup and its boarding.
    pub(super) fn boarded<Q>(&self, hash: u32, key: &Q) -> Option<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // A dropped key or the listener may ask for the key, and would then wait for this flight.
        let _quiet = Harvesting::hold_off(&self.shards.harvests);
        // Writers that did not see this maker have left after this: see `Flights::any`.
        self.shards.of(hash).table.pass_writers();
        self.contains(hash, key).then(|| self.look_up(hash, key))?
    }

    /// Puts a made value under its key, unless the key has changed meanwhile, and ends the flight.
    pub(super) fn land<Q>(
        &self,
        landing: Landing<'_, K>,
        hash: u32,
        key: &Q,
        (bytes, time_to_live): Made,
    ) -> Result<Value<'_>>
    where
        Q: ToOwned<Owned = K> + ?Sized,
    {
        if landing.is_outdated() {
            // The early check saves evictions for it.
            return Ok(Value::own(bytes, false));
        }
        let quiet = Harvesting::hold_off(&self.shards.harvests);
        let put = self.put(hash, key.to_owned(), &bytes, time_to_live, Some(&landing));
        // Before there is a value to return: if the drop of a key panicked, that value would be
        // lost, and stay pinned.
        drop(landing);
        drop(quiet);
        match put {
            Ok((stored, spare)) => {
                self.finish(hash, spare);
                Ok(match stored {
                    Some(stored) => stored.into_value(bytes),
                    None => Value::own(bytes, false),
                })
            }
            Err((key, error)) => {
                drop(key);
                self.shards.harvest();
                match error.kind() {
                    // No cache takes so long a value.
                    ErrorKind::BadRange => Err(error),
                    _ => Ok(Value::own(bytes, false)),
                }
            }
        }
    }

    /// Finds room for a value. Also returns the bytes that the value takes.
    fn room(
        &self,
        hash: u32,
        key: &K,
        value: &[u8],
        time_to_live: Option<Duration>,
    ) -> Result<(Room<'_>, usize)> {
        let Ok(len) = u32::try_from(value.len()) else {
            let why = text!("the value has {} bytes", value.len());
            return Err(Error::new(ErrorKind::BadRange, "Cache::insert", why, "split it"));
        };
        backpressure::hold_back();
        let times = self.space.lifetimes.begin(time_to_live);
        if times.is_some() && !self.has_ends.load(Ordering::Relaxed) {
            self.has_ends.store(true, Ordering::Relaxed);
        }
        let head = Header { len, hash, times };
        let before = if self.space.may_reuse(head) {
            let table = &self.shards.of(hash).table;
            let found = table.find_and_enter(&table.section(false), hash, key, false, |_| ());
            found.map(|(place, ())| place)
        } else {
            None
        };
        let room = self.space.room(&self.shards, lane(), head, before);
        if room.is_err() {
            self.shards.harvest();
        }
        Ok((room?, self.space.need(head)))
    }
}

#[cfg(test)]
mod tests {
    use crate::no_allocation::REFUSES_LARGE;
    use crate::Cache;
    use std::sync::atomic::Ordering;
    use tenure_testkit::{in_child, this_test};

    #[test]
    fn where_the_index_cannot_grow_values_leave() {
        in_child(this_test!(), &[], || {
            let cache = Cache::<u64>::new().unwrap();
            let count = 1_000_000;
            // What has a place for many segments has it before.
            cache.insert(0, &[0; 8]).unwrap();
            REFUSES_LARGE.store(true, Ordering::Relaxed);
            let stored = (0..count).filter(|key| {
                let stored = cache.insert(*key, &key.to_ne_bytes()).is_ok();
                let value = cache.get(key);
                stored && value.is_some_and(|value| *value == key.to_ne_bytes())
            });
            let stored = stored.count() as u64;
            REFUSES_LARGE.store(false, Ordering::Relaxed);
            assert!(stored > count * 9 / 10, "{stored} of {count}");
            let there = (0..count).filter(|key| {
                let value = cache.get(key);
                assert!(value.as_ref().is_none_or(|value| **value == key.to_ne_bytes()));
                value.is_some()
            });
            let there = there.count() as u64;
            assert!(there > 10_000 && there < count, "{there} of {count}");
        });
    }
}
