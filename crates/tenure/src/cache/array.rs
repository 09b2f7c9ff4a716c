//! The memory of a [table](super::table): an open-addressing array whose slots hold everything.
//!
//! A slot is a place, a hash and a key. Three slots are a group. With `u64` keys a group fills one
//! cache line, and most searches end in that line. A used slot belongs to its key until no reader
//! can read it any more. So a reader that finds a key also finds its place in the slot.

#![allow(unsafe_code, reason = "reads slots without a lock")]

use super::listener::{Listener, RemovalCause};
use super::place::Place;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use std::alloc::{alloc, dealloc, Layout};
use std::borrow::Borrow;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::{null_mut, NonNull};

pub(super) const NONE: u32 = u32::MAX;

/// The place of a slot without a value. A search ends here:
const EMPTY: u64 = 0;
/// A search continues behind it; the slot has no key.
const VACANT: u64 = 1;
/// The entry was removed, but its key is still there. The stored value is this plus the number of
/// the cause. It is less than any place.
const DEAD: u64 = 2;

/// Slots in a group.
const SLOTS: usize = 3;

struct Group<K> {
    place: [AtomicU64; SLOTS],
    /// The key's hash. In a dead slot: the next slot of its list.
    hash: [AtomicU32; SLOTS],
    key: [UnsafeCell<MaybeUninit<K>>; SLOTS],
}

impl<K> Group<K> {
    fn new() -> Group<K> {
        Group {
            place: std::array::from_fn(|_| AtomicU64::new(EMPTY)),
            hash: std::array::from_fn(|_| AtomicU32::new(0)),
            key: std::array::from_fn(|_| UnsafeCell::new(MaybeUninit::uninit())),
        }
    }

    /// Returns one bit for each slot with this hash. It has no branch, because the processor cannot
    /// predict which slot has the hash.
    #[inline]
    fn with_hash(&self, hash: u32) -> u32 {
        let bit = |slot: usize| u32::from(self.hash[slot].load(Ordering::Relaxed) == hash) << slot;
        (0..SLOTS).map(bit).sum()
    }

    /// Returns whether a search ends in this group.
    #[inline]
    fn ends_search(&self) -> bool {
        self.place.iter().any(|place| place.load(Ordering::Relaxed) == EMPTY)
    }
}

/// A boxed slice that begins at a cache line.
struct Groups<K> {
    first: NonNull<Group<K>>,
    count: usize,
}

impl<K> Groups<K> {
    /// `None`: there is no memory.
    fn new(count: usize) -> Option<Groups<K>> {
        // SAFETY: a group has a size, and there is one at least.
        let first = unsafe { alloc(Self::layout(count)) }.cast::<Group<K>>();
        let first = NonNull::new(first)?;
        for at in 0..count {
            // SAFETY: the place is inside the allocation, and only this thread has the allocation.
            unsafe { first.add(at).write(Group::new()) };
        }
        Some(Groups { first, count })
    }

    fn layout(count: usize) -> Layout {
        let groups = Layout::array::<Group<K>>(count.max(1)).and_then(|groups| groups.align_to(64));
        groups.expect("a billion slots, and no key is that large")
    }
}

impl<K> Deref for Groups<K> {
    type Target = [Group<K>];
    #[inline]
    fn deref(&self) -> &[Group<K>] {
        // SAFETY: `new` has made that many groups, and they stay as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<K> Drop for Groups<K> {
    fn drop(&mut self) {
        let groups = NonNull::slice_from_raw_parts(self.first, self.count);
        // SAFETY: `new` made the groups with this layout, and no other code has them now.
        unsafe {
            groups.drop_in_place();
            dealloc(self.first.as_ptr().cast(), Self::layout(self.count));
        }
    }
}

/// See the module's head. Readers in a section reach it through a pointer. Only the thread with the
/// writers' lock changes it, except for the mark that a place was used.
pub(super) struct Array<K> {
    groups: Groups<K>,
    /// Slots that are not empty.
    used: AtomicU32,
    /// The array before this one, if it still has keys. It does not change while a reader may use
    /// it.
    pub older: AtomicPtr<Array<K>>,
    /// The next array in a list of arrays that are out of use.
    pub next: AtomicPtr<Array<K>>,
    /// Heads of the lists of dead slots: the readers are not waited for yet (`removed`), are waited
    /// for (`waiting`), or are gone (`ready`).
    removed: AtomicU32,
    waiting: AtomicU32,
    ready: AtomicU32,
}

/// Returns the group in which a search begins.
#[inline]
fn home(hash: u32, groups: usize) -> usize {
    // The multiply-shift also spreads over a number that is not a power of two.
    ((u64::from(hash) * groups as u64) >> 32) as usize
}

/// Slots whose keys were compared and differ, in the order of the search.
pub(super) struct Compared {
    few: [usize; 8],
    pub len: usize,
    more: Vec<usize>,
}

impl Compared {
    pub fn new() -> Compared {
        Compared { few: [0; 8], len: 0, more: Vec::new() }
    }

    pub fn clear(&mut self) {
        self.len = 0;
        self.more.clear();
    }

    pub fn push(&mut self, slot: usize) {
        match self.few.get_mut(self.len) {
            Some(place) => *place = slot,
            None => self.more.push(slot),
        }
        self.len += 1;
    }

    pub fn get(&self, at: usize) -> usize {
        self.few.get(at).copied().unwrap_or_else(|| self.more[at - self.few.len()])
    }
}

/// `None`: there is no memory.
fn boxed<T>(value: T) -> Option<Box<T>> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: a value has a size.
    let place = NonNull::new(unsafe { alloc(Layout::new::<T>()) }.cast::<T>())?;
    // SAFETY: the allocator has just given the place for a value of this layout.
    unsafe {
        place.write(value);
        Some(Box::from_raw(place.as_ptr()))
    }
}

/// The index has no memory to grow. The key that was to be put there.
pub(super) struct NoMemory<K>(pub K);

/// A live entry as the search found it.
pub(super) struct Hit<'a, K> {
    pub array: &'a Array<K>,
    pub at: usize,
    pub place: Place,
    key: &'a UnsafeCell<MaybeUninit<K>>,
}

impl<K> Array<K> {
    /// `None`: there is no memory.
    pub fn new(size: usize) -> Option<Box<Array<K>>> {
        assert!(size < 1 << 30, "a shard of the index has a billion keys");
        boxed(Array {
            groups: Groups::new(size.div_ceil(SLOTS))?,
            used: AtomicU32::new(0),
            older: AtomicPtr::new(null_mut()),
            next: AtomicPtr::new(null_mut()),
            removed: AtomicU32::new(NONE),
            waiting: AtomicU32::new(NONE),
            ready: AtomicU32::new(NONE),
        })
    }

    /// Returns the number of slots, used or not.
    #[inline]
    pub fn size(&self) -> usize {
        self.groups.len() * SLOTS
    }

    /// Returns the bytes that the array takes.
    pub fn bytes(&self) -> usize {
        size_of::<Array<K>>() + size_of_val(&*self.groups)
    }

    /// Returns whether this many more slots may be used.
    pub fn has_room(&self, for_more: usize) -> bool {
        // A search ends at an empty slot, so a sixth of the slots stay empty.
        (self.used.load(Ordering::Relaxed) as usize + for_more) * 6 <= self.size() * 5
    }

    fn place(&self, at: usize) -> &AtomicU64 {
        &self.groups[at / SLOTS].place[at % SLOTS]
    }

    fn hash(&self, at: usize) -> &AtomicU32 {
        &self.groups[at / SLOTS].hash[at % SLOTS]
    }

    fn key(&self, at: usize) -> &UnsafeCell<MaybeUninit<K>> {
        &self.groups[at / SLOTS].key[at % SLOTS]
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.size() {
            0
        } else {
            at + 1
        }
    }

    /// Returns the live entries of a hash.
    #[inline]
    pub fn probe(&self, hash: u32) -> Probe<'_, K> {
        let group = home(hash, self.groups.len());
        Probe { array: self, group, candidates: None, left: self.groups.len(), hash }
    }

    /// Returns the array before this one.
    #[inline]
    pub fn older(&self) -> Option<&Array<K>> {
        // SAFETY: an older array goes out of use together with this one, and is freed no earlier.
        // Or it goes out of use alone, when no thread is in a section. Then the lock's holder first
        // takes it out of this field.
        unsafe { self.older.load(Ordering::Acquire).as_ref() }
    }

    /// Puts a key into a vacant or empty slot. Returns `false` if only an empty slot would do and
    /// the array has no room. Under the writers' lock.
    pub fn put(&self, hash: u32, key: &mut Option<K>, place: Place) -> bool {
        let mut at = home(hash, self.groups.len()) * SLOTS;
        let empty = loop {
            match self.place(at).load(Ordering::Relaxed) {
                EMPTY => break true,
                VACANT => break false,
                _ => at = self.after(at),
            }
        };
        if empty && !self.has_room(1) {
            return false;
        }
        let Some(key) = key.take() else { return false };
        // SAFETY: no thread reads a slot without a key, and the lock keeps other writers away.
        self.key(at).with_mut(|own| unsafe { (*own).write(key) });
        self.hash(at).store(hash, Ordering::Relaxed);
        // Release: a reader that finds the place also finds the key and the value's bytes.
        self.place(at).store(place.0, Ordering::Release);
        if empty {
            self.used.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Returns whether a slot has a live entry. Under the writers' lock.
    pub fn is_live(&self, at: usize) -> bool {
        Place::decode(self.place(at).load(Ordering::Relaxed)).is_some()
    }

    /// Puts another place into a used slot, and returns the place before. Under the writers' lock.
    pub fn set_place(&self, at: usize, place: Place) -> Place {
        // Release: the thread wrote the value's bytes before.
        Place(self.place(at).swap(place.0, Ordering::AcqRel))
    }

    /// Counts a use of a place, if the slot still has the place and its count is not at the
    /// maximum. If two threads count at the same time, one count may be lost.
    #[inline]
    pub fn mark_used(&self, at: usize, place: Place) {
        if let Some(used) = place.used_again() {
            let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.place(at).compare_exchange(place.0, used.0, order, failed);
        }
    }

    /// Returns the place in a slot with a live entry. Under the writers' lock.
    pub fn place_at(&self, at: usize) -> Place {
        Place(self.place(at).load(Ordering::Relaxed))
    }

    /// Removes a live entry and returns its place. Under the writers' lock.
    pub fn remove(&self, at: usize, cause: RemovalCause) -> Place {
        let place = Place(self.place(at).swap(DEAD + cause.number(), Ordering::AcqRel));
        self.hash(at).store(self.removed.load(Ordering::Relaxed), Ordering::Relaxed);
        self.removed.store(at as u32, Ordering::Relaxed);
        place
    }

    /// Removes the live entries whose places are `gone`, because the kernel purged them. Returns
    /// how many. Under the writers' lock.
    pub fn sweep(&self, gone: &dyn Fn(Place) -> bool) -> usize {
        let of_gone =
            |at: &usize| Place::decode(self.place(*at).load(Ordering::Relaxed)).is_some_and(gone);
        (0..self.size()).filter(of_gone).map(|at| _ = self.remove(at, RemovalCause::Purged)).count()
    }

    /// Returns the entries that are live when the iterator reaches them. The caller is in a
    /// section.
    pub fn entries(&self) -> impl Iterator<Item = Hit<'_, K>> {
        (0..self.size()).filter_map(|at| {
            // Acquire: see `put`.
            let place = Place::decode(self.place(at).load(Ordering::Acquire))?;
            Some(Hit { array: self, at, place, key: self.key(at) })
        })
    }

    /// Returns the number of live entries. Under the writers' lock.
    pub fn live(&self) -> usize {
        (0..self.size()).filter(|at| self.is_live(*at)).count()
    }

    /// Returns whether the array still has a removed key. Under the writers' lock.
    pub fn has_dead(&self) -> bool {
        [&self.removed, &self.waiting, &self.ready]
            .into_iter()
            .any(|list| list.load(Ordering::Relaxed) != NONE)
    }

    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != NONE
    }

    pub fn has_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed) != NONE
    }

    /// Begins to wait for the readers of the removed entries. No entry may be waiting already.
    pub fn begin_wait(&self) {
        let removed = self.removed.swap(NONE, Ordering::Relaxed);
        self.waiting.store(removed, Ordering::Relaxed);
    }

    /// No reader can read the waiting entries any more: they become ready. No entry may be ready
    /// already.
    pub fn end_wait(&self) {
        let waiting = self.waiting.swap(NONE, Ordering::Relaxed);
        self.ready.store(waiting, Ordering::Relaxed);
    }

    /// Takes out a key that no reader can read any more, with the cause of its removal. Under the
    /// writers' lock.
    pub fn take_ready(&self) -> Option<(K, RemovalCause)> {
        let at = self.ready.load(Ordering::Relaxed);
        if at == NONE {
            return None;
        }
        let at = at as usize;
        self.ready.store(self.hash(at).load(Ordering::Relaxed), Ordering::Relaxed);
        // SAFETY: a dead slot has its key. No thread reads it, because every section is over in
        // which a reader saw the slot live.
        let key = self.key(at).with_mut(|own| unsafe { (*own).assume_init_read() });
        let cause = cause_of(self.place(at).swap(VACANT, Ordering::AcqRel));
        self.trim(at);
        Some((key, cause))
    }

    /// Makes a vacant slot empty, and the vacant slots before it, if no search continues behind it.
    fn trim(&self, mut at: usize) {
        if self.place(self.after(at)).load(Ordering::Relaxed) != EMPTY {
            return;
        }
        while self.place(at).load(Ordering::Relaxed) == VACANT {
            self.place(at).store(EMPTY, Ordering::Release);
            self.used.fetch_sub(1, Ordering::Relaxed);
            at = if at == 0 { self.size() - 1 } else { at - 1 };
        }
    }

    /// Moves all live entries to another array, which has room for them. Returns how many.
    ///
    /// # Safety
    /// The caller holds the writers' lock, and no thread is in a section.
    pub unsafe fn move_to(&self, to: &Array<K>) -> usize {
        let mut moved = 0;
        for at in 0..self.size() {
            let Some(place) = Place::decode(self.place(at).load(Ordering::Relaxed)) else {
                continue;
            };
            self.place(at).store(VACANT, Ordering::Relaxed);
            // SAFETY: a live slot has a key, no thread reads it, and the line above marks it as
            // taken.
            let key = self.key(at).with_mut(|own| unsafe { (*own).assume_init_read() });
            let mut key = Some(key);
            let put = to.put(self.hash(at).load(Ordering::Relaxed), &mut key, place);
            assert!(put, "the caller has seen that there is room");
            moved += 1;
        }
        moved
    }
}

impl<K> Array<K> {
    /// Calls the listener for all keys in the array. The array is out of use, and only the caller
    /// has it.
    pub fn tell(&self, listener: &Listener<K>) {
        for at in 0..self.size() {
            let word = self.place(at).load(Ordering::Relaxed);
            if word >= DEAD {
                self.key(at).with(|own| {
                    // SAFETY: a live or dead slot has a key. From now on only the end of the array
                    // takes it out.
                    let key = unsafe { (*own).assume_init_ref() };
                    listener.tell(key, cause_of(word));
                });
            }
        }
    }
}

/// Returns the cause in a slot's word. A live slot's value was removed with the whole table.
fn cause_of(word: u64) -> RemovalCause {
    match Place::decode(word) {
        Some(_) => RemovalCause::Removed,
        None => RemovalCause::of(word.saturating_sub(DEAD)),
    }
}

impl<K> Drop for Array<K> {
    fn drop(&mut self) {
        let mut rest = Rest { array: self, at: 0 };
        rest.drop_keys();
    }
}

/// The slots of an array that is being freed, from `at` on. If a key's drop panics, the drop of
/// this value drops the other keys.
struct Rest<'a, K> {
    array: &'a Array<K>,
    at: usize,
}

impl<K> Rest<'_, K> {
    fn drop_keys(&mut self) {
        while self.at < self.array.size() {
            let at = self.at;
            self.at += 1;
            if self.array.place(at).swap(EMPTY, Ordering::Relaxed) >= DEAD {
                // SAFETY: a live or dead slot has a key. Only this code has the array, which is
                // being freed, and it visits each slot once.
                drop(self.array.key(at).with_mut(|own| unsafe { (*own).assume_init_read() }));
            }
        }
    }
}

impl<K> Drop for Rest<'_, K> {
    fn drop(&mut self) {
        self.drop_keys();
    }
}

impl<K> Hit<'_, K> {
    /// Calls `use_it` with the entry's key. This runs the program's code.
    ///
    /// # Safety
    /// This thread is still in the section in which it found the hit.
    #[inline]
    pub unsafe fn with_key<R>(&self, use_it: impl FnOnce(&K) -> R) -> R {
        // SAFETY: the search saw the slot live, so the slot has a key, written before its place. A
        // writer takes the key out only when every section is over in which the slot was live.
        self.key.with(|own| use_it(unsafe { (*own).assume_init_ref() }))
    }

    /// Returns whether the entry's key equals `key`. This runs the program's code.
    ///
    /// # Safety
    /// As [`Hit::with_key`].
    #[inline]
    pub unsafe fn equals<Q: Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        // SAFETY: the caller is in the section in which it found the hit.
        unsafe { self.with_key(|own| own.borrow() == key) }
    }

    /// Returns whether the entry is live and still has the place, with any count of uses.
    #[inline]
    pub fn is_still_there(&self) -> bool {
        // Acquire: what the caller reads at the place afterwards is not older than the place.
        self.place.same(Place(self.array.place(self.at).load(Ordering::Acquire)))
    }

    /// Returns the entry with its present place. `None`: it is not live any more in this array.
    pub fn now(&self) -> Option<Self> {
        let place = Place::decode(self.array.place(self.at).load(Ordering::Acquire))?;
        Some(Hit { place, ..*self })
    }

    /// Returns the slot's address, which identifies the slot.
    pub fn id(&self) -> usize {
        std::ptr::from_ref(self.array.place(self.at)) as usize
    }
}

/// See [`Array::probe`].
pub(super) struct Probe<'a, K> {
    array: &'a Array<K>,
    group: usize,
    /// Slots of the group that are left to check, one bit each. `None`: the search has not entered
    /// the group.
    candidates: Option<u32>,
    /// Groups that are not searched completely.
    left: usize,
    hash: u32,
}

impl<'a, K> Iterator for Probe<'a, K> {
    type Item = Hit<'a, K>;

    #[inline(always)]
    fn next(&mut self) -> Option<Hit<'a, K>> {
        while self.left > 0 {
            let group = &self.array.groups[self.group];
            let mut candidates = self.candidates.unwrap_or_else(|| group.with_hash(self.hash));
            while candidates != 0 {
                let slot = candidates.trailing_zeros() as usize;
                candidates &= candidates - 1;
                // Acquire: see `put`. The hash is compared again, because the slot may have another
                // key by now.
                let word = group.place[slot].load(Ordering::Acquire);
                let same = group.hash[slot].load(Ordering::Relaxed) == self.hash;
                if let Some(place) = Place::decode(word).filter(|_| same) {
                    self.candidates = Some(candidates);
                    let (at, key) = (self.group * SLOTS + slot, &group.key[slot]);
                    return Some(Hit { array: self.array, at, place, key });
                }
            }
            self.candidates = None;
            self.left -= 1;
            if group.ends_search() {
                self.left = 0;
            }
            self.group += 1;
            if self.group == self.array.groups.len() {
                self.group = 0;
            }
        }
        None
    }
}
