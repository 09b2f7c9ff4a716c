//! From key to place: a hash table whose readers take no lock.
//!
//! The program's code runs under no lock: keys are hashed by the caller, compared in a *section* (a
//! reader is counted meanwhile, see [`epoch`](super::epoch)), and dropped when they are out of the
//! table and nobody reads them. A writer compares first, then takes the writers' lock and checks that
//! what it compared with is all there is; if not, it begins again. So a key's code may panic, wait,
//! fork, and use the same table.
//!
//! The full hash is kept with each key, so no key is hashed twice. A table that is full gets a larger
//! array. Keys move there when nobody is in a section; until then both arrays are searched. Nothing
//! is allocated or freed under the lock.

#![allow(unsafe_code, reason = "reads arrays without a lock")]

use super::array::{Array, Compared, Hit};
use super::epoch::{Epoch, Grace};
use super::listener::{Listener, RemovalCause};
use super::place::Place;
use super::removed::{Harvesting, Keys, Retired};
use crate::sync::{sections_open, AtomicPtr, Guard, Lock, Ordering, Rank};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ptr::null_mut;

#[cfg(test)]
#[cfg(not(loom))]
#[path = "table/tests.rs"]
mod tests;

/// See the module's head. In this order a get finds what it needs in one cache line.
#[repr(C)]
pub(super) struct Table<K> {
    epoch: Epoch,
    /// The newest array; null while the table is empty.
    newest: AtomicPtr<Array<K>>,
    writer: Lock<Writer<K>>,
    /// Told of each key that leaves.
    listener: Option<Listener<K>>,
    keys: PhantomData<K>,
}

/// What a writer asks and tells while it has the writers' lock. Runs no code of the program's, waits for
/// nothing, allocates nothing.
pub(super) trait Change {
    /// Whether it is to be asked for an absent key, too. Without the lock.
    fn heeds_absence(&self) -> bool;
    /// Whether the change is to be made; it follows at once.
    fn may(&self) -> bool;
    /// It was made: the key led to the place `before`. Before any key is dropped.
    fn made(&self, before: Option<Place>);
    /// Why the value at the place, whose key is removed, leaves.
    fn cause(&self, _before: Place) -> RemovalCause {
        RemovalCause::Removed
    }
}

/// A change that is made in any case.
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

/// What only the holder of the lock may use.
struct Writer<K> {
    /// Live entries.
    len: usize,
    /// Arrays out of use, with all keys that are in them, and those of them whose readers are waited
    /// for.
    retired: *mut Array<K>,
    waiting: *mut Array<K>,
    /// Arrays whose keys have moved, or that nobody reads any more.
    ready: *mut Array<K>,
    grace: Grace,
}

// SAFETY: the pointers lead to memory that the table owns; keys move to other threads with it.
unsafe impl<K: Send> Send for Writer<K> {}

/// While it lives, nothing that was read in it is freed or moved.
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

/// The arrays from one on to the oldest.
#[inline]
fn arrays<K>(newest: Option<&Array<K>>) -> impl Iterator<Item = &Array<K>> {
    std::iter::successors(newest, |array| array.older())
}

impl<K> Table<K> {
    pub fn new(listener: Option<Listener<K>>) -> Self {
        Table {
            listener,
            epoch: Epoch::new(),
            newest: AtomicPtr::new(null_mut()),
            writer: Lock::new(Rank::CacheShard, Writer::new()),
            keys: PhantomData,
        }
    }

    pub fn len(&self) -> usize {
        self.writer.lock().len
    }

    /// Bytes that the table takes beside itself.
    pub fn bytes(&self) -> usize {
        let writer = self.writer.lock();
        arrays(self.current(&writer)).map(Array::bytes).sum()
    }

    /// Lookups ever.
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

    /// The newest array as a section may read it.
    #[inline]
    fn newest<'s>(&self, _section: &'s Section<'_, K>) -> Option<&'s Array<K>> {
        // SAFETY: an array is freed only when all sections are over in which it was reachable.
        unsafe { self.newest.load(Ordering::Acquire).as_ref() }
    }

    /// The newest array as the lock's holder may change it.
    fn current<'w>(&'w self, _writer: &Guard<'_, Writer<K>>) -> Option<&'w Array<K>> {
        // SAFETY: it is replaced only under the lock, and freed later than that; callers use it only
        // while they hold the lock.
        unsafe { self.newest.load(Ordering::Acquire).as_ref() }
    }

    /// Where the key's value lies. `enter` is told a place before the key is compared, and its answer for the
    /// place that is found comes with it. The key leads to that place when `enter` has answered: what `enter` has
    /// pinned there is the key's value. `uses`: remembers that it was asked for.
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
        loop {
            let (hit, entered) = locate(self.newest(section), hash, key, &mut enter, |_| ())?;
            // Not the place that it led to before: another value may be written there since. See `reuse`.
            if hit.is_still_there() {
                if uses {
                    hit.array.mark_used(hit.at, hit.place);
                }
                return Some((hit.place, entered));
            }
        }
    }

    /// Calls `each` with every key, in a section: it may do what it likes. A key that is put in meanwhile may be left
    /// out, and one that is removed and put in again may come twice.
    pub fn each_key(&self, mut each: impl FnMut(&K)) {
        let section = self.section(false);
        for hit in arrays(self.newest(&section)).flat_map(Array::entries) {
            // SAFETY: hit just now, in the section above.
            unsafe { hit.with_key(&mut each) };
        }
    }

    /// The place with its uses, if a key leads to it.
    pub fn holds(&self, hash: u32, place: Place) -> Option<Place> {
        let writer = self.writer.lock();
        at_place(self.current(&writer), hash, place).map(|hit| hit.place)
    }

    /// Moves the value of the key that leads to `from` to `to`. `false`: no key does.
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

    /// Removes a key; answers its place.
    pub fn remove<Q>(&self, hash: u32, key: &Q, change: &impl Change) -> Option<Place>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut compared = Compared::new();
        let place = loop {
            // In this order: the lock is freed before the section ends, and keys are dropped.
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
            // Nothing that this section has seen moves before it ends, or is used for another key.
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

    /// Removes every key; answers how many there were. They are dropped by [`Table::harvest`].
    pub fn clear(&self, change: &impl Change) -> usize {
        let mut writer = self.writer.lock();
        change.may();
        let mut at = self.newest.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: the table's own; nobody frees them before they were retired.
        while let Some(array) = unsafe { at.as_ref() } {
            // `older` stays, for readers that go on from here.
            array.next.store(writer.retired, Ordering::Relaxed);
            writer.retired = at;
            at = array.older.load(Ordering::Relaxed);
            self.epoch.set_pending(true);
        }
        std::mem::take(&mut writer.len)
    }

    /// Returns when every writer has left that has the lock now.
    pub fn pass_writers(&self) {
        self.wait();
    }

    /// Puts a key at a place, if `change` allows it. Keys whose places are `stale` may go. Answers the key if it is not
    /// needed: one like it leads to the place, or none does.
    pub fn insert<'t>(
        &'t self,
        section: Section<'t, K>,
        hash: u32,
        key: K,
        place: Place,
        stale: &dyn Fn(Place) -> bool,
        change: &impl Change,
    ) -> Option<K>
    where
        K: Eq,
    {
        let mut key = Some(key);
        let mut first = Some(section);
        let mut compared = Compared::new();
        loop {
            // In this order: the lock is freed before the section ends, and keys are dropped.
            let section = first.take().unwrap_or_else(|| self.section(false));
            let newest = self.newest(&section);
            compared.clear();
            let own = key.as_ref()?;
            let found = locate(newest, hash, own, |_| (), |other| compared.push(other));
            let mut writer = self.writer.lock();
            if !self.is_newest(newest) {
                continue;
            }
            if let Some((hit, ())) = found {
                if hit.array.is_live(hit.at) {
                    if change.may() {
                        // The key has been used as often as before.
                        let place = place.with_uses(hit.place.uses());
                        change.made(Some(hit.array.set_place(hit.at, place)));
                    }
                    return key;
                }
                continue;
            }
            if !only_compared(newest, hash, &compared) {
                continue;
            }
            if !change.may() {
                return key;
            }
            if newest.is_some_and(|newest| newest.put(hash, &mut key, place)) {
                writer.len += 1;
                change.made(None);
                return None;
            }
            drop(writer);
            drop(section);
            self.grow(stale);
        }
    }

    /// Makes room: leaves out keys whose places are `stale`, then takes a larger array if it must.
    #[cold]
    fn grow(&self, stale: &dyn Fn(Place) -> bool) {
        let mut writer = self.writer.lock();
        let before = self.current(&writer).map_or(0, Array::size);
        self.sweep(&mut writer, stale);
        let size = match before {
            // Where a third is free or was removed, a new array of the same size will do.
            size if (writer.len + 1) * 9 <= size * 6 => size,
            size => (size * 8 / 7).max((writer.len + 1) * 4 / 3).max(15),
        };
        drop(writer);
        let fresh = Array::new(size);

        let mut writer = self.writer.lock();
        let same = self.current(&writer).map_or(0, Array::size) == before;
        if !same || !fresh.has_room(writer.len + 1) {
            // Another thread was faster.
            drop(writer);
            return;
        }
        let newest = self.newest.load(Ordering::Relaxed);
        fresh.older.store(newest, Ordering::Relaxed);
        self.newest.store(Box::into_raw(fresh), Ordering::Release);
        self.unite(&mut writer);
        drop(writer);
        self.harvest();
    }

    /// Moves all keys into the newest array, unless a reader is in a section or there is no room.
    fn unite(&self, writer: &mut Guard<'_, Writer<K>>) {
        let Some(newest) = self.current(writer) else { return };
        let Some(older) = newest.older() else { return };
        // Once more when the last reader leaves.
        self.epoch.set_pending(true);
        let live: usize = arrays(Some(older)).map(Array::live).sum();
        if !newest.has_room(live) || !self.epoch.close() {
            return;
        }
        let mut at = newest.older.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: the table owns its arrays, and no reader is in a section since `close` returned
        // true.
        while let Some(array) = unsafe { at.as_ref() } {
            // SAFETY: the lock is held and nobody is in a section.
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

    /// Removes the keys whose places are `gone`. They are dropped by [`Table::harvest`].
    pub fn remove_all(&self, gone: &dyn Fn(Place) -> bool) {
        self.sweep(&mut self.writer.lock(), gone);
    }

    /// Drops removed keys, and frees arrays, that nobody reads any more. Runs the program's code: the
    /// caller holds no lock. What a key's drop leaves here, the harvest that dropped it takes: see
    /// [`Harvesting`].
    #[inline]
    pub fn harvest(&self) {
        if self.epoch.pending() {
            self.harvest_now();
        }
    }

    #[cold]
    fn harvest_now(&self) {
        let Some(_harvesting) = Harvesting::begin() else { return };
        loop {
            let mut keys = Keys::new();
            let mut writer = self.writer.lock();
            self.unite(&mut writer);
            self.pass(&mut writer);
            let retired = Retired(std::mem::replace(&mut writer.ready, null_mut()));
            for array in arrays(self.current(&writer)) {
                while keys.has_room() {
                    let Some((key, cause)) = array.take_ready() else { break };
                    keys.push(key, cause);
                }
            }
            self.epoch.set_pending(self.has_more(&writer));
            drop(writer);
            if keys.len == 0 && retired.0.is_null() {
                return;
            }
            // Under no lock.
            if let Some(listener) = &self.listener {
                retired.tell(listener);
                keys.tell(listener);
                listener.tell_put_off();
            }
            // Dropped here: first the arrays, then the keys.
        }
    }

    fn has_more(&self, writer: &Guard<'_, Writer<K>>) -> bool {
        let newest = self.current(writer);
        arrays(newest).any(Array::has_dead)
            || newest.is_some_and(|newest| newest.older().is_some())
            || !writer.retired.is_null()
            || !writer.waiting.is_null()
    }

    /// Moves on what waits for readers.
    fn pass(&self, writer: &mut Guard<'_, Writer<K>>) {
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
            // SAFETY: retired arrays are the table's own until they are freed.
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

    /// In a forked child, whose only thread is the caller: the parent's readers do not exist.
    pub fn reset_in_child(&self) {
        // A thread that forked inside a key's code still reads: then the counters stay as they are,
        // and what the child removes may never be freed.
        if sections_open() == 0 {
            self.epoch.forget_readers();
        }
    }

    /// In a child whose fork handlers did not run: frees the lock. `true`: it was held, so the
    /// table may be half changed, and is empty now; its memory is lost.
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

/// The entry with this key. `early` is told each place before its key is compared; `other` is told
/// the slots of the same hash whose keys differ. The caller is in a section.
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
            // SAFETY: hit just now; the caller is in a section.
            if unsafe { hit.equals(key) } {
                return Some((hit, prepared));
            }
            other(hit.id());
        }
    }
    None
}

/// The entry with a place. Under the lock.
fn at_place<K>(newest: Option<&Array<K>>, hash: u32, place: Place) -> Option<Hit<'_, K>> {
    arrays(newest).find_map(|array| array.probe(hash).find(|hit| hit.place.same(place)))
}

/// Whether every entry of this hash is among those that were compared. Under the lock.
fn only_compared<K>(newest: Option<&Array<K>>, hash: u32, compared: &Compared) -> bool {
    let mut next = 0;
    for hit in arrays(newest).flat_map(|array| array.probe(hash)) {
        // Both are in the order of the search; some that were compared may be gone.
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
        if self.listener.is_some() {
            // What was removed, and nobody was told of yet. Of what is there nobody is told.
            self.harvest();
        }
        let newest = self.newest.load(Ordering::Relaxed);
        let writer = self.writer.get_mut();
        // SAFETY: all are the table's own, which nobody else can reach any more.
        for array in arrays(unsafe { newest.as_ref() }) {
            array.next.store(array.older.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        drop([newest, writer.retired, writer.waiting, writer.ready].map(Retired));
    }
}
