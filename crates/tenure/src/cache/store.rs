//! Reads a value at its place, and puts a value there.

use super::array::NoMemory;
use super::change::Putting;
use super::copied::Copied;
use super::harvesting::{tell_replaced, Harvesting, Unfinished};
use super::header::Header;
use super::inside::Inside;
use super::lanes::lane;
use super::lifetimes::Age;
use super::listener::RemovalCause;
use super::place::Place;
use super::segment::{no_own_memory, Segment};
use super::single_flight::Landing;
use super::space::{Index, Room};
use super::table::{Change, Section};
use super::value::Value;
use super::{pins, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::text::text;
use crate::tracking::backpressure;
use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Why a value was not at its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Miss {
    /// The segment has other contents now, so the value may have moved.
    Stale,
    /// Purged.
    Gone,
    /// Its time is over.
    Ended,
    /// There is no memory to take the value back, or to copy it.
    Refused,
}

/// A value that was made, and its own time to live if it has one.
pub(super) type Made = (Vec<u8>, Option<Duration>);

/// A pin that ends with this value, unless a [`Value`] takes it over.
pub(super) struct Pinned<'a>(&'a Segment);

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.0.unpin();
    }
}

impl<'a> Pinned<'a> {
    /// Returns another pin of the same segment.
    fn again(&self) -> Pinned<'a> {
        self.0.range.pin();
        Pinned(self.0)
    }

    #[inline]
    fn into_value(self, bytes: &'a [u8], token: bool) -> Value<'a> {
        let segment = self.0;
        std::mem::forget(self);
        Value::pinned(segment, bytes, token)
    }
}

/// A value, and where it is.
pub(super) struct Found<'a> {
    pub value: Value<'a>,
    pub place: Place,
    /// While it lives, no other value takes the place, even if `value` is a copy.
    _stays: Pinned<'a>,
}

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

impl<K, S> Inner<K, S> {
    #[inline]
    pub(super) fn look_up<Q>(&self, hash: u32, key: &Q) -> Option<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.shards.harvest_left();
        let shard = self.shards.of(hash);
        let section = shard.table.section(true);
        let found =
            shard.table.find_and_enter(&section, hash, key, true, |place| self.enter(place));
        // Not at the end of a block whose value is `found`: if the drop of a key panicked there,
        // that value would be lost, and stay pinned.
        drop(section);
        let found_any = found.is_some();
        if let Some((place, entered)) = found {
            let value = self.read(hash, place, entered, true, &mut Miss::Gone);
            if value.is_some() {
                return value;
            }
        }
        self.look_again(hash, key, found_any)
    }

    /// Continues a lookup after a value was not at its place, or (`again` is not set) there was no
    /// key.
    #[cold]
    fn look_again<Q>(&self, hash: u32, key: &Q, again: bool) -> Option<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let value = if again { self.follow(hash, key) } else { None };
        if value.is_none() {
            self.shards.of(hash).misses.fetch_add(1, Ordering::Relaxed);
        }
        value
    }

    fn follow<Q>(&self, hash: u32, key: &Q) -> Option<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find_again(hash, key, true).map(|found| found.value)
    }

    /// Returns the value under a key, and its place. `uses`: the lookup counts as a use.
    pub(super) fn find_again<Q>(&self, hash: u32, key: &Q, uses: bool) -> Option<Found<'_>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let enter = |place| self.enter(place);
        let read = self.ask(hash, key, enter, |place, entered| {
            let mut miss = Miss::Gone;
            let stays = entered.as_ref().map(|(pin, _)| pin.again());
            let value = self.read(hash, place, entered, uses, &mut miss);
            match (&value, miss) {
                (None, Miss::Stale) => return None,
                (None, Miss::Gone) => self.forget(hash, place, RemovalCause::Purged),
                (None, Miss::Ended) => self.forget(hash, place, RemovalCause::Expired),
                _ => {}
            }
            Some(value.zip(stays).map(|(value, stays)| Found { value, place, _stays: stays }))
        });
        read.unwrap_or_else(|stale| {
            // A place that was vacated and filled again may have a new value.
            let stale = stale.filter(|place| self.stale(*place));
            stale.into_iter().for_each(|place| self.forget(hash, place, RemovalCause::Purged));
            None
        })
    }

    /// Looks up a key and passes its place, and the result of `enter` for it, to `about`. `about`
    /// returns `None` if the segment has other contents now: then the value may have moved, and the
    /// lookup repeats. Returns `Err` if there is no key, or if it still leads to this place.
    fn ask<Q, E, A>(
        &self,
        hash: u32,
        key: &Q,
        enter: impl Fn(Place) -> E,
        about: impl Fn(Place, E) -> Option<A>,
    ) -> std::result::Result<A, Option<Place>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let table = &self.shards.of(hash).table;
        let mut last: Option<Place> = None;
        // A value moves only when its segment is emptied, which is rare during one call.
        for _ in 0..8 {
            let section = table.section(false);
            let found = table.find_and_enter(&section, hash, key, false, &enter);
            drop(section);
            let (place, entered) = found.ok_or(None)?;
            if let Some(answer) = about(place, entered) {
                return Ok(answer);
            }
            if last.is_some_and(|last| last.same(place)) {
                return Err(Some(place));
            }
            last = Some(place);
        }
        Err(None)
    }

    /// Pins a place's segment, unless it has other contents by now. The `bool`: the pages are
    /// there.
    #[inline]
    fn enter(&self, place: Place) -> Option<(Pinned<'_>, bool)> {
        let segment = self.space.segments.get(place.segment())?;
        let plain = segment.life.enter(&segment.range, place.generation())?;
        Some((Pinned(segment), plain))
    }

    /// Returns the value at a place whose segment was entered. `uses`: the read counts as a use. If
    /// the value is not there, sets `miss` to the reason.
    // Always inlined. A value that is passed through memory is stored 8 bytes at a time and loaded
    // 16 bytes at a time. The load waits for the stores, and these wait until the header has come
    // from memory. The reader's own loads of the value would begin only after that.
    #[inline(always)]
    fn read<'a>(
        &self,
        hash: u32,
        place: Place,
        entered: Option<(Pinned<'a>, bool)>,
        uses: bool,
        miss: &mut Miss,
    ) -> Option<Value<'a>> {
        *miss = Miss::Stale;
        let (pin, plain) = entered?;
        let segment = pin.0;
        let offset = place.offset();
        if !plain {
            match segment.copy_offered(offset, hash, &self.space.lifetimes) {
                Copied::Value(value) => {
                    self.play_use(hash, place, uses, value.len());
                    return Some(Value::own(value, true));
                }
                Copied::Ended => {
                    *miss = Miss::Ended;
                    return None;
                }
                Copied::Not => {}
            }
        }
        *miss = Miss::Refused;
        if !plain && !self.take_back(segment) {
            return None;
        }
        *miss = Miss::Gone;
        let bytes = segment.value(offset, hash, || self.times(hash, place, segment, uses, miss))?;
        // Before there is a `Value`: if the call panicked, it would be dropped, so it would be in
        // memory.
        self.play_use(hash, place, uses, bytes.len());
        // A value in its own segment keeps no memory but its own.
        let shared = segment.is_shared();
        if shared && (self.space.crowded.load(Ordering::Relaxed) || !pins::take()) {
            *miss = Miss::Refused;
            return copy(bytes);
        }
        Some(pin.into_value(bytes, shared))
    }

    /// Plays a use of a value in the policy's trials, if they have its key.
    #[inline]
    fn play_use(&self, hash: u32, place: Place, uses: bool, bytes: usize) {
        if uses && self.space.policy.samples_use(hash, place.uses()) {
            self.space.policy.play(hash, bytes);
        }
    }

    /// Returns whether a key leads to a value that has not ended.
    pub(super) fn contains<Q>(&self, hash: u32, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.shards.harvest_left();
        let is_there = if self.has_ends.load(Ordering::Relaxed) {
            self.ask(hash, key, |place| self.enter(place), |place, at| self.is_alive(place, at?))
        } else {
            self.ask(hash, key, |_| (), |place, ()| (!self.stale(place)).then_some(true))
        };
        is_there.unwrap_or(false)
    }

    /// Returns whether the value at a place whose segment was entered has not ended.
    fn is_alive(&self, place: Place, (pin, plain): (Pinned<'_>, bool)) -> Option<bool> {
        let segment = pin.0;
        let head = (plain || self.take_back(segment))
            .then(|| segment.header(place.offset(), self.space.lifetimes.bytes()))
            .flatten();
        Some(head.is_some_and(|head| !self.space.has_ended(head)))
    }

    /// Returns the bytes of the times of a value that ends. Returns `None` if it has ended, was
    /// purged or moved, and `miss` then says which. `uses`: if it has not ended, it counts as used now.
    #[inline(never)]
    fn times(
        &self,
        hash: u32,
        place: Place,
        segment: &Segment,
        uses: bool,
        miss: &mut Miss,
    ) -> Option<usize> {
        let lifetimes = &self.space.lifetimes;
        let bytes = lifetimes.bytes();
        match lifetimes.age(segment.times(place.offset(), bytes)?) {
            Age::Over => {
                *miss = Miss::Ended;
                return None;
            }
            Age::AliveUnused(now) if uses => {
                segment.note_use(place.offset(), now);
                // A thread that moves the value now sees the note, or the next look finds the new
                // place: both take the lock of the shard.
                if !self.shards.of(hash).table.may_hold(hash, place) {
                    *miss = Miss::Stale;
                    return None;
                }
            }
            Age::Alive | Age::AliveUnused(_) => {}
        }
        Some(bytes)
    }

    #[cold]
    fn take_back(&self, segment: &Segment) -> bool {
        match segment.settle() {
            Ok(0) => true,
            Ok(gone) => {
                self.space.met_purge(gone);
                true
            }
            Err(_) => false,
        }
    }

    #[inline]
    pub(super) fn stale(&self, place: Place) -> bool {
        self.space
            .segments
            .get(place.segment())
            .is_none_or(|segment| segment.life.generation() != place.generation())
    }

    /// Takes out a key whose value is not at its place, or has ended.
    fn forget(&self, hash: u32, place: Place, cause: RemovalCause) {
        if self.shards.forget(hash, place, cause) {
            let (counts, ended) = (&self.space.counts, cause == RemovalCause::Expired);
            self.space.left(place, if ended { &counts.expired } else { &counts.purged });
        }
        self.shards.harvest_of(hash);
    }
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
        let left = Unfinished::new(&self.shards.harvests);
        let (room, need) = match self.room(hash, &key, value, time_to_live) {
            Ok(room) => room,
            Err(error) => return Err((key, error)),
        };
        let stored = Stored { pin: Pinned(room.segment), at: room.at };
        let (is_published, replaced) = (Cell::new(false), Cell::new(None));
        let place = room.place;
        let putting = Putting { inner: self, hash, place, need, landing, is_published, replaced };
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
            std::thread::yield_now();
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
                    ErrorKind::OutOfMemory => Ok(Value::own(bytes, false)),
                    _ => Err(error),
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

/// Returns a copy of a value that must not stay pinned.
#[cold]
fn copy<'a>(bytes: &[u8]) -> Option<Value<'a>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(Value::own(copy, true))
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
