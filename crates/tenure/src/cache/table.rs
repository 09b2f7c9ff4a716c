//! A hash table from keys to places. Its readers take no lock.
//!
//! The program's code runs under no lock. The caller hashes the keys. The table compares keys in a
//! *section* (a reader is counted meanwhile, see [`epoch`](super::epoch)), and drops keys when they
//! are out of the table and no thread reads them. A writer compares first, then takes the writers'
//! lock and checks that it compared with all keys of the hash. If it did not, it begins again. So a
//! key's code may panic, wait, fork, and use the same table.
//!
//! The table stores the full hash with each key, so it hashes no key twice. A full table gets a
//! larger array. Keys move there when no thread is in a section; until then a lookup searches both
//! arrays. Nothing is allocated or freed under the lock.

#![allow(unsafe_code, reason = "reads arrays without a lock")]

use super::array::{Array, Compared, Hit, NoMemory};
use super::epoch::{Epoch, Grace};
use super::harvesting::Harvests;
use super::listener::{Listener, RemovalCause};
use super::place::Place;
use super::removed::Retired;
use crate::sync::{AtomicPtr, Guard, Lock, Ordering, Rank};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;

#[cfg(test)]
#[cfg(not(loom))]
#[path = "table/tests.rs"]
mod tests;

/// See the module's head. The order of the fields puts everything that a get needs into one cache
/// line.
#[repr(C)]
pub(super) struct Table<K> {
    pub(super) epoch: Epoch,
    /// The newest array; null while the table is empty.
    newest: AtomicPtr<Array<K>>,
    pub(super) writer: Lock<Writer<K>>,
    /// Called for each key that leaves.
    pub(super) listener: Option<Listener<K>>,
    pub(super) harvests: Arc<Harvests>,
    keys: PhantomData<K>,
}

/// What a writer calls while it has the writers' lock. It runs no code of the program, waits for
/// nothing, and allocates nothing.
pub(super) trait Change {
    /// Returns whether `may` must also be called for an absent key. Without the lock.
    fn heeds_absence(&self) -> bool;
    /// Returns whether the table should make the change, which then follows at once.
    fn may(&self) -> bool;
    /// The change was made: the key led to the place `before`. The call comes before any key is
    /// dropped.
    fn made(&self, before: Option<Place>);
    /// Returns why the value at the place of a removed key leaves.
    fn cause(&self, _before: Place) -> RemovalCause {
        RemovalCause::Removed
    }
}

/// A change that is always made.
#[cfg(test)]
impl Change for () {
    fn heeds_absence(&self) -> bool {
        true
    }
    fn may(&self) -> bool {
        true
    }
    fn made(&self, _before: Option<Place>) {}
}

/// Fields that only the holder of the lock may use.
pub(super) struct Writer<K> {
    /// Live entries.
    len: usize,
    /// Arrays that are out of use, with all keys that are in them. `waiting`: those whose readers
    /// are waited for.
    pub(super) retired: *mut Array<K>,
    pub(super) waiting: *mut Array<K>,
    /// Arrays whose keys have moved, or that no reader can read any more.
    pub(super) ready: *mut Array<K>,
    grace: Grace,
}

// SAFETY: the pointers lead to memory that the table owns, and keys move to other threads with it.
unsafe impl<K: Send> Send for Writer<K> {}

/// While it lives, the table frees and moves nothing that was read in it.
pub(super) struct Section<'a, K> {
    table: &'a Table<K>,
    counter: usize,
}

impl<K> Drop for Section<'_, K> {
    #[inline]
    fn drop(&mut self) {
        if self.table.epoch.leave(self.counter) {
            self.table.harvest();
        }
    }
}

impl<K> Writer<K> {
    fn new() -> Writer<K> {
        Writer {
            len: 0,
            retired: null_mut(),
            waiting: null_mut(),
            ready: null_mut(),
            grace: Grace::default(),
        }
    }
}

/// Returns the arrays from this one to the oldest.
#[inline]
pub(super) fn arrays<K>(newest: Option<&Array<K>>) -> impl Iterator<Item = &Array<K>> {
    std::iter::successors(newest, |array| array.older())
}

impl<K> Table<K> {
    pub fn new(harvests: Arc<Harvests>, listener: Option<Listener<K>>) -> Self {
        Table {
            listener,
            harvests,
            epoch: Epoch::new(),
            newest: AtomicPtr::new(null_mut()),
            writer: Lock::new(Rank::CacheShard, Writer::new()),
            keys: PhantomData,
        }
    }

    pub fn len(&self) -> usize {
        self.writer.lock().len
    }

    /// Returns the bytes that the table takes beside itself.
    pub fn bytes(&self) -> usize {
        let writer = self.writer.lock();
        arrays(self.current(&writer)).map(Array::bytes).sum()
    }

    /// Returns the number of lookups so far.
    pub fn lookups(&self) -> u64 {
        self.epoch.lookups()
    }

    /// Begins a section. `lookup`: it counts in [`Table::lookups`].
    #[inline]
    pub fn section(&self, lookup: bool) -> Section<'_, K> {
        loop {
            if let Some(counter) = self.epoch.enter(lookup) {
                return Section { table: self, counter };
            }
            self.wait();
        }
    }

    /// Waits for a writer that moves keys.
    #[cold]
    fn wait(&self) {
        drop(self.writer.lock());
    }

    /// Returns the newest array, for a thread in a section.
    #[inline]
    fn newest<'s>(&self, _section: &'s Section<'_, K>) -> Option<&'s Array<K>> {
        // SAFETY: an array is freed only when all sections in which it was reachable are over.
        unsafe { self.newest.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the newest array, for the holder of the lock.
    pub(super) fn current<'w>(&'w self, _writer: &Guard<'_, Writer<K>>) -> Option<&'w Array<K>> {
        // SAFETY: the array is replaced only under the lock, and freed later than that. Callers use
        // it only while they hold the lock.
        unsafe { self.newest.load(Ordering::Acquire).as_ref() }
    }

    /// Finds the place of the key's value. The table calls `enter` with a place before it compares
    /// the key, and returns the result for the place that it found. After that call the key still
    /// leads to that place, so what `enter` pinned there is the key's value. `uses`: counts a use.
    #[inline]
    pub fn find_and_enter<Q, P>(
        &self,
        section: &Section<'_, K>,
        hash: u32,
        key: &Q,
        uses: bool,
        mut enter: impl FnMut(Place) -> P,
    ) -> Option<(Place, P)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        'search: loop {
            let (mut hit, mut entered) =
                locate(self.newest(section), hash, key, &mut enter, |_| ())?;
            // Not a place that the key led to before: another value may be there by now. See
            // `reuse`.
            while !hit.is_still_there() {
                // The slot is the key's for the whole section, so the key is not compared again:
                // meanwhile another thread could overwrite the value again.
                let Some(now) = hit.now() else { continue 'search };
                entered = enter(now.place);
                hit = now;
            }
            if uses {
                hit.array.mark_used(hit.at, hit.place);
            }
            return Some((hit.place, entered));
        }
    }

    /// Calls `each` with every key, in a section, so `each` may do anything. A key that is inserted
    /// meanwhile may be left out, and one that is removed and inserted again may come twice.
    pub fn each_key(&self, mut each: impl FnMut(&K)) {
        let section = self.section(false);
        for hit in arrays(self.newest(&section)).flat_map(Array::entries) {
            // SAFETY: found just now, in the section above.
            unsafe { hit.with_key(&mut each) };
        }
    }

    /// Returns the place with its uses, if a key leads to it.
    pub fn holds(&self, hash: u32, place: Place) -> Option<Place> {
        let writer = self.writer.lock();
        at_place(self.current(&writer), hash, place).map(|hit| hit.place)
    }

    /// Returns whether a key leads to the place. `true` also inside a change of this thread's: in a
    /// fork handler.
    pub fn may_hold(&self, hash: u32, place: Place) -> bool {
        let writer = self.writer.lock_unless_mine();
        writer.is_none_or(|writer| at_place(self.current(&writer), hash, place).is_some())
    }

    /// Makes the key that leads to `from` lead to `to`. Returns `false` if no key leads to `from`.
    pub fn relocate(&self, hash: u32, from: Place, to: Place) -> bool {
        let writer = self.writer.lock();
        let hit = at_place(self.current(&writer), hash, from);
        hit.map(|hit| hit.array.set_place(hit.at, to)).is_some()
    }

    /// Removes the key that leads to a place. The key is dropped later: see [`Table::harvest`].
    pub fn remove_place(&self, hash: u32, place: Place, cause: RemovalCause) -> bool {
        let mut writer = self.writer.lock();
        let Some(hit) = at_place(self.current(&writer), hash, place) else { return false };
        self.remove_hit(&mut writer, &hit, cause);
        true
    }

    fn remove_hit(&self, writer: &mut Writer<K>, hit: &Hit<'_, K>, cause: RemovalCause) -> Place {
        writer.len -= 1;
        self.epoch.set_pending(true);
        hit.array.remove(hit.at, cause)
    }

    /// Removes a key and returns its place.
    pub fn remove<Q>(&self, hash: u32, key: &Q, change: &impl Change) -> Option<Place>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut compared = Compared::new();
        let place = loop {
            // In this order: the lock is freed before the section ends, which drops keys.
            let section = self.section(false);
            let newest = self.newest(&section);
            compared.clear();
            let found = locate(newest, hash, key, |_| (), |other| compared.push(other));
            if found.is_none() && !change.heeds_absence() {
                return None;
            }
            let mut writer = self.writer.lock();
            let Some((hit, ())) = found else {
                if self.is_newest(newest) && only_compared(newest, hash, &compared) {
                    change.may();
                    return None;
                }
                continue;
            };
            // Until the section ends, no slot that it has seen moves or is used for another key.
            if self.is_newest(newest) && hit.array.is_live(hit.at) && change.may() {
                let cause = change.cause(hit.array.place_at(hit.at));
                let place = self.remove_hit(&mut writer, &hit, cause);
                change.made(Some(place));
                break place;
            }
        };
        self.harvest();
        Some(place)
    }

    fn is_newest(&self, array: Option<&Array<K>>) -> bool {
        let newest = self.newest.load(Ordering::Relaxed).cast_const();
        newest == array.map_or(std::ptr::null(), std::ptr::from_ref)
    }

    /// Removes every key. Returns how many there were. [`Table::harvest`] drops them.
    pub fn clear(&self, change: &impl Change) -> usize {
        let mut writer = self.writer.lock();
        change.may();
        let mut at = self.newest.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: the arrays belong to the table, and only retired arrays are freed.
        while let Some(array) = unsafe { at.as_ref() } {
            // `older` stays, for readers that continue from here.
            array.next.store(writer.retired, Ordering::Relaxed);
            writer.retired = at;
            at = array.older.load(Ordering::Relaxed);
            self.epoch.set_pending(true);
        }
        std::mem::take(&mut writer.len)
    }

    /// Returns after the writer that has the lock now has left.
    pub fn pass_writers(&self) {
        self.wait();
    }

    /// Puts a key at a place, if `change` allows it. Keys whose places are `stale` may go. Returns
    /// the key if the table did not take it: an equal key leads to the place, or no key does.
    pub fn insert<'t>(
        &'t self,
        section: Section<'t, K>,
        hash: u32,
        key: K,
        place: Place,
        stale: &dyn Fn(Place) -> bool,
        change: &impl Change,
    ) -> Result<Option<K>, NoMemory<K>>
    where
        K: Eq,
    {
        let mut key = Some(key);
        let mut first = Some(section);
        let mut compared = Compared::new();
        loop {
            // In this order: the lock is freed before the section ends, which drops keys.
            let section = first.take().unwrap_or_else(|| self.section(false));
            let newest = self.newest(&section);
            compared.clear();
            let own = key.as_ref().expect("not put");
            let found = locate(newest, hash, own, |_| (), |other| compared.push(other));
            let mut writer = self.writer.lock();
            if !self.is_newest(newest) {
                continue;
            }
            if let Some((hit, ())) = found {
                if hit.array.is_live(hit.at) {
                    if change.may() {
                        // The key keeps its count of uses.
                        let place = place.with_uses(hit.place.uses());
                        change.made(Some(hit.array.set_place(hit.at, place)));
                    }
                    return Ok(key);
                }
                continue;
            }
            if !only_compared(newest, hash, &compared) {
                continue;
            }
            if !change.may() {
                return Ok(key);
            }
            if newest.is_some_and(|newest| newest.put(hash, &mut key, place)) {
                writer.len += 1;
                change.made(None);
                return Ok(None);
            }
            drop(writer);
            drop(section);
            self.grow(stale).map_err(|()| NoMemory(key.take().expect("not put")))?;
        }
    }

    /// Makes room: removes keys whose places are `stale`, and takes a larger array if it must.
    /// `Err`: there is no memory for one.
    #[cold]
    fn grow(&self, stale: &dyn Fn(Place) -> bool) -> Result<(), ()> {
        let mut writer = self.writer.lock();
        let before = self.current(&writer).map_or(0, Array::size);
        self.sweep(&mut writer, stale);
        let size = match before {
            // If a third is free or was removed, a new array of the same size will do.
            size if (writer.len + 1) * 9 <= size * 6 => size,
            size => (size * 8 / 7).max((writer.len + 1) * 4 / 3).max(15),
        };
        drop(writer);
        let fresh = Array::new(size).ok_or(())?;

        let mut writer = self.writer.lock();
        let same = self.current(&writer).map_or(0, Array::size) == before;
        if !same || !fresh.has_room(writer.len + 1) {
            // Another thread was faster.
            return Ok(());
        }
        let newest = self.newest.load(Ordering::Relaxed);
        fresh.older.store(newest, Ordering::Relaxed);
        self.newest.store(Box::into_raw(fresh), Ordering::Release);
        self.unite(&mut writer);
        drop(writer);
        self.harvest();
        Ok(())
    }

    /// Moves all keys into the newest array, unless a reader is in a section or there is no room.
    pub(super) fn unite(&self, writer: &mut Guard<'_, Writer<K>>) {
        let Some(newest) = self.current(writer) else { return };
        let Some(older) = newest.older() else { return };
        // The last reader that leaves tries again.
        self.epoch.set_pending(true);
        let live: usize = arrays(Some(older)).map(Array::live).sum();
        if !newest.has_room(live) || !self.epoch.close() {
            return;
        }
        let mut at = newest.older.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: the table owns its arrays, and no reader is in a section since `close` returned
        // true.
        while let Some(array) = unsafe { at.as_ref() } {
            // SAFETY: this thread holds the lock, and no thread is in a section.
            unsafe { array.move_to(newest) };
            array.next.store(writer.ready, Ordering::Relaxed);
            writer.ready = at;
            at = array.older.load(Ordering::Relaxed);
        }
        self.epoch.open();
    }

    fn sweep(&self, writer: &mut Guard<'_, Writer<K>>, gone: &dyn Fn(Place) -> bool) {
        let swept: usize = arrays(self.current(writer)).map(|array| array.sweep(gone)).sum();
        writer.len -= swept;
        if swept > 0 {
            self.epoch.set_pending(true);
        }
    }

    /// Removes the keys whose places are `gone`. [`Table::harvest`] drops them.
    pub fn remove_all(&self, gone: &dyn Fn(Place) -> bool) {
        self.sweep(&mut self.writer.lock(), gone);
    }

    /// Moves on the keys and arrays that wait for readers.
    pub(super) fn pass(&self, writer: &mut Guard<'_, Writer<K>>) {
        let newest = self.current(writer);
        for _ in 0..2 {
            if arrays(newest).any(Array::has_ready) {
                return;
            }
            if !arrays(newest).any(Array::has_waiting) && writer.waiting.is_null() {
                arrays(newest).for_each(Array::begin_wait);
                writer.waiting = std::mem::replace(&mut writer.retired, null_mut());
                writer.grace = Grace::default();
            }
            let mut grace = writer.grace;
            let passed = self.epoch.pass(&mut grace);
            writer.grace = grace;
            if !passed {
                return;
            }
            arrays(newest).for_each(Array::end_wait);
            let mut at = std::mem::replace(&mut writer.waiting, null_mut());
            // SAFETY: retired arrays belong to the table until they are freed.
            while let Some(array) = unsafe { at.as_ref() } {
                let next = array.next.swap(writer.ready, Ordering::Relaxed);
                writer.ready = at;
                at = next;
            }
        }
    }

    /// Takes the lock over a fork.
    pub fn hold(&self) {
        self.writer.hold();
    }

    /// Frees the lock after a fork.
    pub fn release(&self) {
        self.writer.release();
    }

    /// Forgets the parent's readers in a forked child, whose only thread is the caller.
    pub fn reset_in_child(&self) {
        self.harvests.reset_in_child();
        self.epoch.forget_other_readers();
    }

    /// Frees the lock in a child whose fork handlers did not run. Returns `true` if it was held:
    /// the table may have been half changed, so it is empty now, and its memory is lost.
    pub fn recover(&self) -> bool {
        let held = self.writer.reset_in_child();
        if held {
            self.newest.store(null_mut(), Ordering::SeqCst);
            *self.writer.lock() = Writer::new();
        }
        self.epoch.open();
        self.reset_in_child();
        held
    }
}

/// Returns the entry with this key. Calls `early` with each place before it compares the key, and
/// `other` with the slots of the same hash whose keys differ. The caller is in a section.
#[inline]
fn locate<'a, K, Q, P>(
    newest: Option<&'a Array<K>>,
    hash: u32,
    key: &Q,
    mut early: impl FnMut(Place) -> P,
    mut other: impl FnMut(usize),
) -> Option<(Hit<'a, K>, P)>
where
    K: Borrow<Q>,
    Q: Eq + ?Sized,
{
    for array in arrays(newest) {
        for hit in array.probe(hash) {
            let prepared = early(hit.place);
            // SAFETY: found just now, and the caller is in a section.
            if unsafe { hit.equals(key) } {
                return Some((hit, prepared));
            }
            other(hit.id());
        }
    }
    None
}

/// Returns the entry with a place. Under the lock.
fn at_place<K>(newest: Option<&Array<K>>, hash: u32, place: Place) -> Option<Hit<'_, K>> {
    arrays(newest).find_map(|array| array.probe(hash).find(|hit| hit.place.same(place)))
}

/// Returns whether the writer compared with every entry of this hash. Under the lock.
fn only_compared<K>(newest: Option<&Array<K>>, hash: u32, compared: &Compared) -> bool {
    let mut next = 0;
    for hit in arrays(newest).flat_map(|array| array.probe(hash)) {
        // Both are in the order of the search. Some compared entries may be gone.
        while next < compared.len && compared.get(next) != hit.id() {
            next += 1;
        }
        if next == compared.len {
            return false;
        }
        next += 1;
    }
    true
}

impl<K> Drop for Table<K> {
    fn drop(&mut self) {
        /// Frees the arrays, also if the drop of a key panics before.
        struct Arrays<'a, K>(&'a mut Table<K>);
        impl<K> Drop for Arrays<'_, K> {
            fn drop(&mut self) {
                let newest = self.0.newest.load(Ordering::Relaxed);
                let writer = self.0.writer.get_mut();
                // SAFETY: all arrays belong to the table, and no other thread can reach it any more.
                for array in arrays(unsafe { newest.as_ref() }) {
                    array.next.store(array.older.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                drop([newest, writer.retired, writer.waiting, writer.ready].map(Retired));
            }
        }
        Arrays(self).0.harvest_last();
    }
}
