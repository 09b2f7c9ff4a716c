//! From key to place: a hash table whose readers take no lock.
//!
//! The program's code runs under no lock: keys are hashed by the caller, compared in a *section* (a
//! reader is counted meanwhile, see [`epoch`](super::epoch)), and dropped when they are out of the
//! table and nobody reads them. A writer compares first, then takes the writers' lock and checks that
//! what it compared with is all there is; if not, it begins again. So a key's code may panic, wait,
//! fork, and use the same table.
//!
//! The full hash is kept with each entry, so no key is hashed twice. Nothing is allocated or freed
//! under the lock.

use super::epoch::{Epoch, Grace};
use super::index::{Chunk, Index, DEAD, FREE, NONE};
use super::place::{Place, USED};
use crate::sync::{sections_open, AtomicPtr, Guard, Lock, Ordering, Rank};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// See the module's head.
pub(super) struct Table<K> {
    epoch: Epoch,
    /// Null while the table is empty.
    index: AtomicPtr<Index<K>>,
    writer: Lock<Writer<K>>,
    keys: PhantomData<K>,
}

/// What only the holder of the lock may use.
struct Writer<K> {
    /// Entries with a place.
    len: usize,
    /// Slots that are not empty.
    used: usize,
    /// Entries ever used; those from here on have no chunk, or nothing in it.
    made: u32,
    /// Heads of lists through the entries' hashes: free ones; removed ones; removed ones whose
    /// readers are waited for; removed ones that nobody reads any more.
    free: u32,
    removed: u32,
    waiting: u32,
    ready: u32,
    /// The same for arrays.
    old: *mut Index<K>,
    old_waiting: *mut Index<K>,
    grace: Grace,
}

// SAFETY: the pointers lead to memory that the table owns; keys move to other threads with it.
unsafe impl<K: Send> Send for Writer<K> {}

/// While it lives, nothing that was read in it is freed.
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

/// Entries that were compared with a key and differ, in the order of their slots.
struct Compared {
    few: [u32; 8],
    len: usize,
    more: Vec<u32>,
}

impl Compared {
    fn push(&mut self, number: u32) {
        match self.few.get_mut(self.len) {
            Some(place) => *place = number,
            None => self.more.push(number),
        }
        self.len += 1;
    }

    fn get(&self, at: usize) -> u32 {
        self.few.get(at).copied().unwrap_or_else(|| self.more[at - self.few.len()])
    }
}

impl<K> Writer<K> {
    fn new() -> Writer<K> {
        Writer {
            len: 0,
            used: 0,
            made: 0,
            free: NONE,
            removed: NONE,
            waiting: NONE,
            ready: NONE,
            old: null_mut(),
            old_waiting: null_mut(),
            grace: Grace::default(),
        }
    }

    /// Removes an entry that `slot` leads to; answers its place.
    fn remove(&mut self, index: &Index<K>, slot: usize, number: u32) -> Option<Place> {
        let entry = index.entry(number);
        self.used -= index.unpublish(slot);
        self.len -= 1;
        let place = Place::decode(entry.place.swap(DEAD, Ordering::AcqRel));
        entry.hash.store(self.removed, Ordering::Relaxed);
        self.removed = number;
        place
    }

    fn retire(&mut self, index: *mut Index<K>) {
        if !index.is_null() {
            // SAFETY: it is not freed before it was taken out of this list.
            unsafe { &*index }.next.store(self.old, Ordering::Relaxed);
            self.old = index;
        }
    }
}

impl<K> Table<K> {
    pub fn new() -> Self {
        Table {
            epoch: Epoch::new(),
            index: AtomicPtr::new(null_mut()),
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
        self.current(&writer).map_or(0, |index| index.bytes(writer.made))
    }

    /// Lookups ever.
    pub fn lookups(&self) -> u64 {
        self.epoch.lookups()
    }

    /// Begins a section. `lookup`: it counts in [`Table::lookups`].
    #[inline]
    pub fn section(&self, lookup: bool) -> Section<'_, K> {
        Section { table: self, counter: self.epoch.enter(lookup) }
    }

    /// The index as a section may read it.
    #[inline]
    fn index<'s>(&self, _section: &'s Section<'_, K>) -> Option<&'s Index<K>> {
        // SAFETY: an index is freed only when all sections are over in which it was reachable.
        unsafe { self.index.load(Ordering::Acquire).as_ref() }
    }

    /// The index as the lock's holder may change it.
    fn current<'w>(&self, _writer: &'w Guard<'_, Writer<K>>) -> Option<&'w Index<K>> {
        // SAFETY: it is replaced only under the lock, and freed later than that.
        unsafe { self.index.load(Ordering::Acquire).as_ref() }
    }

    /// Where the key's value lies; remembers that it was asked for.
    #[inline]
    pub fn find_and_use<Q>(&self, section: &Section<'_, K>, hash: u32, key: &Q) -> Option<Place>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let index = self.index(section)?;
        let (number, place) = locate(index, hash, key, |_| ())?;
        if !place.used() {
            // Fails if the value was moved, overwritten or removed meanwhile.
            let _ = index.entry(number).place.compare_exchange(
                place.0,
                place.0 | USED,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        Some(place)
    }

    /// Where the key's value lies.
    pub fn find<Q>(&self, section: &Section<'_, K>, hash: u32, key: &Q) -> Option<Place>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        locate(self.index(section)?, hash, key, |_| ()).map(|(_, place)| place)
    }

    /// The place with its used bit, if a key leads to it.
    pub fn holds(&self, hash: u32, place: Place) -> Option<Place> {
        let writer = self.writer.lock();
        at_place(self.current(&writer)?, hash, place).map(|(_, _, found)| found)
    }

    /// Moves the value of the key that leads to `from` to `to`. `false`: no key does.
    pub fn relocate(&self, hash: u32, from: Place, to: Place) -> bool {
        let writer = self.writer.lock();
        let Some(index) = self.current(&writer) else { return false };
        let Some((_, number, _)) = at_place(index, hash, from) else { return false };
        index.entry(number).place.store(to.0, Ordering::Release);
        true
    }

    /// Removes the key that leads to a place. The key is dropped later: see [`Table::harvest`].
    pub fn remove_place(&self, hash: u32, place: Place) -> bool {
        let mut writer = self.writer.lock();
        // SAFETY: as in `current`; not borrowed from the guard, which is changed below.
        let Some(index) = (unsafe { self.index.load(Ordering::Acquire).as_ref() }) else {
            return false;
        };
        let Some((slot, number, _)) = at_place(index, hash, place) else { return false };
        writer.remove(index, slot, number);
        self.epoch.set_pending(true);
        true
    }

    /// Removes a key; answers its place.
    pub fn remove<Q>(&self, hash: u32, key: &Q) -> Option<Place>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let removed = loop {
            let section = self.section(false);
            let index = self.index(&section)?;
            let (number, _) = locate(index, hash, key, |_| ())?;
            let mut writer = self.writer.lock();
            if !std::ptr::eq(self.index.load(Ordering::Relaxed), index) {
                continue;
            }
            // A number that this section has seen in use is nobody else's before it ends.
            let slot = index.probe(hash).find(|(_, n)| *n == number).map(|(slot, _)| slot);
            if let Some(slot) = slot {
                let place = writer.remove(index, slot, number);
                self.epoch.set_pending(true);
                break place;
            }
        };
        self.harvest();
        removed
    }

    /// Removes every key; answers how many there were. They are dropped by [`Table::harvest`].
    pub fn clear(&self) -> usize {
        let mut writer = self.writer.lock();
        let index = self.index.load(Ordering::Relaxed);
        let len = writer.len;
        let next = Writer { old: writer.old, old_waiting: writer.old_waiting, ..Writer::new() };
        let before = std::mem::replace(&mut *writer, next);
        writer.grace = before.grace;
        // SAFETY: the table's own, under the lock.
        if let Some(index) = unsafe { index.as_ref() } {
            // All entries go with it, the removed ones too, whose keys nobody has taken yet.
            index.owns.store(before.made + 1, Ordering::Relaxed);
            self.index.store(null_mut(), Ordering::Release);
            writer.retire(std::ptr::from_ref(index).cast_mut());
            self.epoch.set_pending(true);
        }
        len
    }

    /// Puts a key at a place; answers its place before. Keys whose places are `stale` may go.
    pub fn insert(
        &self,
        hash: u32,
        key: K,
        place: Place,
        stale: &dyn Fn(Place) -> bool,
    ) -> Option<Place>
    where
        K: Eq,
    {
        let mut compared = Compared { few: [NONE; 8], len: 0, more: Vec::new() };
        loop {
            // In this order: the lock is freed before the section ends, and keys are dropped.
            let section = self.section(false);
            let Some(index) = self.index(&section) else {
                drop(section);
                self.grow(stale);
                continue;
            };
            compared.len = 0;
            compared.more.clear();
            let found = locate(index, hash, &key, |number| compared.push(number));
            let mut writer = self.writer.lock();
            if !std::ptr::eq(self.index.load(Ordering::Relaxed), index) {
                continue;
            }
            if let Some((number, _)) = found {
                let entry = index.entry(number);
                if entry.live().is_none() {
                    continue;
                }
                return Place::decode(entry.place.swap(place.0, Ordering::AcqRel));
            }
            if !only_compared(index, hash, &compared) {
                continue;
            }
            let (slot, empty) = index.vacancy(hash).expect("a sixth of the slots is empty");
            let full = empty && (writer.used + 1) * 6 > index.size() * 5;
            let number = if writer.free == NONE { writer.made } else { writer.free };
            if full || number >= index.entries() {
                drop(writer);
                drop(section);
                self.grow(stale);
                continue;
            }
            if !index.has_chunk(number) {
                drop(writer);
                self.add_chunk(index, number);
                continue;
            }
            let entry = index.entry(number);
            if number == writer.made {
                writer.made += 1;
            } else {
                writer.free = entry.hash.load(Ordering::Relaxed);
            }
            // SAFETY: the entry is free: never used, or from the list of free ones.
            unsafe { entry.fill(key) };
            entry.hash.store(hash, Ordering::Relaxed);
            entry.place.store(place.0, Ordering::Release);
            index.publish(slot, hash, number);
            writer.used += usize::from(empty);
            writer.len += 1;
            return None;
        }
    }

    /// Allocates the chunk of an entry, unless another thread was faster.
    fn add_chunk(&self, index: &Index<K>, number: u32) {
        let mut chunk = Some(Chunk::new());
        let writer = self.writer.lock();
        if std::ptr::eq(self.index.load(Ordering::Relaxed), index) && !index.has_chunk(number) {
            if let Some(chunk) = chunk.take() {
                index.add_chunk(number, chunk);
            }
        }
        drop(writer);
    }

    /// Makes room: leaves out keys whose places are `stale`, then takes a larger array if it must.
    #[cold]
    fn grow(&self, stale: &dyn Fn(Place) -> bool) {
        let mut writer = self.writer.lock();
        let before = self.index.load(Ordering::Relaxed);
        // SAFETY: the table's own; freed only after it was replaced, which the check below sees,
        // for a section keeps its memory from being reused.
        let section = self.section(false);
        let old = unsafe { before.as_ref() };
        if let Some(old) = old {
            self.sweep(&mut writer, old, stale);
        }
        let old_size = old.map_or(0, Index::size);
        let size = match old_size {
            // Where a third is free, or removed, a new array of the same size will do.
            size if (writer.len + 1) * 9 <= size * 6 => size,
            size => (size * 6 / 5).max(16),
        };
        let entries = size.max(writer.made as usize);
        drop(writer);
        let fresh = Index::new(size, entries + entries / 8 + 1);

        let mut writer = self.writer.lock();
        if !std::ptr::eq(self.index.load(Ordering::Relaxed), before)
            || writer.made > fresh.entries()
        {
            drop(writer);
            drop(section);
            return;
        }
        if let Some(old) = old {
            fresh.adopt_chunks(old);
            for number in 0..writer.made {
                let entry = old.entry(number);
                if entry.live().is_some() {
                    let hash = entry.hash.load(Ordering::Relaxed);
                    let (slot, _) = fresh.vacancy(hash).expect("it has room for all");
                    fresh.publish(slot, hash, number);
                }
            }
        }
        writer.used = writer.len;
        self.index.store(Box::into_raw(fresh), Ordering::Release);
        writer.retire(before);
        self.epoch.set_pending(true);
        drop(writer);
        drop(section);
        self.harvest();
    }

    /// Removes the keys whose places are `stale`.
    fn sweep(&self, writer: &mut Writer<K>, index: &Index<K>, stale: &dyn Fn(Place) -> bool) {
        for number in 0..writer.made {
            let entry = index.entry(number);
            if entry.live().is_some_and(stale) {
                let hash = entry.hash.load(Ordering::Relaxed);
                let slot = index.probe(hash).find(|(_, n)| *n == number).map(|(slot, _)| slot);
                writer.remove(index, slot.expect("a live entry has a slot"), number);
                self.epoch.set_pending(true);
            }
        }
    }

    /// Removes the keys whose places are `gone`.
    pub fn remove_all(&self, gone: &dyn Fn(Place) -> bool) {
        let mut writer = self.writer.lock();
        // SAFETY: as in `current`; not borrowed from the guard, which is changed below.
        if let Some(index) = unsafe { self.index.load(Ordering::Acquire).as_ref() } {
            self.sweep(&mut writer, index, gone);
        }
    }

    /// Drops removed keys, and frees old arrays, that nobody reads any more. Runs the program's
    /// code: the caller holds no lock.
    #[inline]
    pub fn harvest(&self) {
        if self.epoch.pending() {
            self.harvest_now();
        }
    }

    #[cold]
    fn harvest_now(&self) {
        loop {
            let mut keys = Keys::new();
            let mut writer = self.writer.lock();
            let arrays = Arrays(self.pass(&mut writer));
            // SAFETY: as in `current`; not borrowed from the guard, which is changed below.
            if let Some(index) = unsafe { self.index.load(Ordering::Acquire).as_ref() } {
                while writer.ready != NONE && keys.len < keys.all.len() {
                    let number = writer.ready;
                    let entry = index.entry(number);
                    writer.ready = entry.hash.load(Ordering::Relaxed);
                    // SAFETY: a removed entry that nobody reads any more; the lock is held.
                    keys.push(unsafe { entry.take_key() });
                    entry.place.store(FREE, Ordering::Relaxed);
                    entry.hash.store(writer.free, Ordering::Relaxed);
                    writer.free = number;
                }
            }
            let none = writer.removed == NONE
                && writer.waiting == NONE
                && writer.ready == NONE
                && writer.old.is_null()
                && writer.old_waiting.is_null();
            self.epoch.set_pending(!none);
            drop(writer);
            if keys.len == 0 && arrays.0.is_null() {
                return;
            }
        }
    }

    /// Moves on what waits for readers; answers a list of arrays that nobody reads any more.
    fn pass(&self, writer: &mut Writer<K>) -> *mut Index<K> {
        let mut arrays: *mut Index<K> = null_mut();
        while writer.ready == NONE && arrays.is_null() {
            if writer.waiting == NONE && writer.old_waiting.is_null() {
                if writer.removed == NONE && writer.old.is_null() {
                    break;
                }
                writer.waiting = std::mem::replace(&mut writer.removed, NONE);
                writer.old_waiting = std::mem::replace(&mut writer.old, null_mut());
                writer.grace = Grace::default();
            }
            if !self.epoch.pass(&mut writer.grace) {
                break;
            }
            writer.ready = std::mem::replace(&mut writer.waiting, NONE);
            arrays = std::mem::replace(&mut writer.old_waiting, null_mut());
        }
        arrays
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
            self.index.store(null_mut(), Ordering::SeqCst);
            std::mem::forget(std::mem::replace(&mut *self.writer.lock(), Writer::new()));
        }
        self.reset_in_child();
        held
    }
}

/// The entry with this key. `other` is told the entries of the same hash that were compared before.
#[inline]
fn locate<K, Q>(
    index: &Index<K>,
    hash: u32,
    key: &Q,
    mut other: impl FnMut(u32),
) -> Option<(u32, Place)>
where
    K: Borrow<Q>,
    Q: Eq + ?Sized,
{
    for (_, number) in index.probe(hash) {
        let entry = index.entry(number);
        let Some(place) = entry.live() else { continue };
        if entry.hash.load(Ordering::Relaxed) != hash {
            continue;
        }
        // SAFETY: seen live just now; callers are in a section.
        if unsafe { entry.equals(key) } {
            return Some((number, place));
        }
        other(number);
    }
    None
}

/// The slot, the number and the place with its used bit, of the entry that leads to a place.
fn at_place<K>(index: &Index<K>, hash: u32, place: Place) -> Option<(usize, u32, Place)> {
    index.probe(hash).find_map(|(slot, number)| {
        let found = index.entry(number).live().filter(|found| found.same(place))?;
        Some((slot, number, found))
    })
}

/// Whether every entry of this hash is among those that were compared. Under the lock.
fn only_compared<K>(index: &Index<K>, hash: u32, compared: &Compared) -> bool {
    let mut next = 0;
    for (_, number) in index.probe(hash) {
        let entry = index.entry(number);
        if entry.live().is_none() || entry.hash.load(Ordering::Relaxed) != hash {
            continue;
        }
        // Both are in the order of the slots; some that were compared may be gone.
        while next < compared.len && compared.get(next) != number {
            next += 1;
        }
        if next == compared.len {
            return false;
        }
        next += 1;
    }
    true
}

/// Keys that are out of the table; dropped with it.
struct Keys<K> {
    all: [MaybeUninit<K>; 16],
    len: usize,
}

impl<K> Keys<K> {
    fn new() -> Self {
        Keys { all: [const { MaybeUninit::uninit() }; 16], len: 0 }
    }

    fn push(&mut self, key: K) {
        self.all[self.len].write(key);
        self.len += 1;
    }
}

impl<K> Drop for Keys<K> {
    fn drop(&mut self) {
        let keys = std::ptr::from_mut(&mut self.all[..self.len]) as *mut [K];
        // SAFETY: the first `len` were written and are nobody else's.
        unsafe { std::ptr::drop_in_place(keys) };
    }
}

/// A list of arrays that nobody reads; freed with it.
struct Arrays<K>(*mut Index<K>);

impl<K> Drop for Arrays<K> {
    fn drop(&mut self) {
        while !self.0.is_null() {
            let first = self.0;
            // SAFETY: it was taken out of the table's lists after all its readers had left.
            unsafe {
                self.0 = (*first).next.load(Ordering::Relaxed);
                Index::free(first);
            }
        }
    }
}

impl<K> Drop for Table<K> {
    fn drop(&mut self) {
        let index = self.index.load(Ordering::Relaxed);
        let writer = self.writer.get_mut();
        let (old, waiting, made) = (writer.old, writer.old_waiting, writer.made);
        drop(Arrays(old));
        drop(Arrays(waiting));
        if !index.is_null() {
            // SAFETY: the table's own, which nobody else can reach any more.
            unsafe {
                (*index).owns.store(made + 1, Ordering::Relaxed);
                (*index).next.store(null_mut(), Ordering::Relaxed);
            }
            drop(Arrays(index));
        }
    }
}
