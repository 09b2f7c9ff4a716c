//! Reads the value under a key.

use super::copied::Copied;
use super::lifetimes::Age;
use super::listener::RemovalCause;
use super::place::Place;
use super::segment::Segment;
use super::space::Index;
use super::value::Value;
use super::{pins, Inner};
use std::borrow::Borrow;
use std::sync::atomic::Ordering;

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
/// A pin that ends with this value, unless a [`Value`] takes it over.
pub(super) struct Pinned<'a>(pub &'a Segment);

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
    pub fn into_value(self, bytes: &'a [u8], token: bool) -> Value<'a> {
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
    use super::super::place::short;
    use super::*;
    use crate::Cache;
    use std::time::Duration;

    /// Else a value that moved meanwhile would end too early: its use was noted where it was.
    #[test]
    fn a_use_is_noted_where_the_key_leads() {
        let cache = Cache::<u64>::builder().time_to_idle(Duration::from_secs(1000));
        let cache = cache.build().unwrap();
        cache.insert(1, b"one").unwrap();
        let (inner, hash) = (&*cache.inner, short(cache.inner.shards.hash(&1)));
        let Found { place, _stays, .. } = inner.find_again(hash, &1, false).unwrap();
        let notes = |miss: &mut Miss| {
            // The cache notes uses in steps of a second.
            std::thread::sleep(Duration::from_millis(1100));
            inner.times(hash, place, _stays.0, true, miss)
        };
        let mut miss = Miss::Gone;
        assert!(notes(&mut miss).is_some());
        assert!(cache.remove(&1));
        assert!(notes(&mut miss).is_none() && miss == Miss::Stale);
    }
}
