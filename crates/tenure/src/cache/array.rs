//! The memory of a [table](super::table): an open-addressing array whose slots hold everything.
//!
//! A slot is a place, a hash and a key. Three slots are a group: with `u64` keys it fills one cache
//! line, in which most searches end. A slot that is in use belongs to its key until no reader can
//! read it any more, so a reader that finds a key finds its place beside it.

#![allow(unsafe_code, reason = "reads slots without a lock")]

use super::listener::{Listener, RemovalCause};
use super::place::Place;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::borrow::Borrow;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::{null_mut, NonNull};

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// What is in a slot's place when no value is. Ends a search:
const EMPTY: u64 = 0;
/// A search goes on behind it; it has no key.
const VACANT: u64 = 1;
/// The entry was removed, but its key is still there. This and the cause's number: less than any place.
const DEAD: u64 = 2;

/// Slots in a group.
const SLOTS: usize = 3;

struct Group<K> {
    place: [AtomicU64; SLOTS],
    /// The key's hash. In a dead slot, the next slot of its list.
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

    /// Slots with this hash, one bit each. Without a branch: which of them it is cannot be predicted.
    #[inline]
    fn with_hash(&self, hash: u32) -> u32 {
        let bit = |slot: usize| u32::from(self.hash[slot].load(Ordering::Relaxed) == hash) << slot;
        (0..SLOTS).map(bit).sum()
    }

    /// Whether no search goes on behind the group.
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
    fn new(count: usize) -> Groups<K> {
        let layout = Self::layout(count);
        // SAFETY: a group has a size, and there is one at least.
        let first = unsafe { alloc(layout) }.cast::<Group<K>>();
        let Some(first) = NonNull::new(first) else { handle_alloc_error(layout) };
        for at in 0..count {
            // SAFETY: inside the allocation, which nobody else has.
            unsafe { first.add(at).write(Group::new()) };
        }
        Groups { first, count }
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
        // SAFETY: `new` has made as many, and they stay while `self` does.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<K> Drop for Groups<K> {
    fn drop(&mut self) {
        let groups = NonNull::slice_from_raw_parts(self.first, self.count);
        // SAFETY: made in `new` with this layout; nobody else has them.
        unsafe {
            groups.drop_in_place();
            dealloc(self.first.as_ptr().cast(), Self::layout(self.count));
        }
    }
}

/// See the module's head. Readers in a section reach it through a pointer; only the holder of the
/// writers' lock changes it, but for the mark that a place was used.
pub(super) struct Array<K> {
    groups: Groups<K>,
    /// Slots that are not empty.
    used: AtomicU32,
    /// The array before this one, if it has keys still. Not changed while a reader may use it.
    pub older: AtomicPtr<Array<K>>,
    /// The next of a list of arrays that are out of use.
    pub next: AtomicPtr<Array<K>>,
    /// Heads of the lists of dead slots: whose readers are not waited for yet, are waited for, and
    /// are gone.
    removed: AtomicU32,
    waiting: AtomicU32,
    ready: AtomicU32,
}

/// The group in which a search begins.
#[inline]
fn home(hash: u32, groups: usize) -> usize {
    // Multiply-shift spreads over a number that is no power of two.
    ((u64::from(hash) * groups as u64) >> 32) as usize
}

/// Slots whose keys were compared with a key and differ, in the order of the search.
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

/// A live entry as it was seen.
pub(super) struct Hit<'a, K> {
    pub array: &'a Array<K>,
    pub at: usize,
    pub place: Place,
    key: &'a UnsafeCell<MaybeUninit<K>>,
}

impl<K> Array<K> {
    pub fn new(size: usize) -> Box<Array<K>> {
        assert!(size < 1 << 30, "a shard of the index has a billion keys");
        Box::new(Array {
            groups: Groups::new(size.div_ceil(SLOTS)),
            used: AtomicU32::new(0),
            older: AtomicPtr::new(null_mut()),
            next: AtomicPtr::new(null_mut()),
            removed: AtomicU32::new(NONE),
            waiting: AtomicU32::new(NONE),
            ready: AtomicU32::new(NONE),
        })
    }

    /// Slots, used or not.
    #[inline]
    pub fn size(&self) -> usize {
        self.groups.len() * SLOTS
    }

    /// Bytes that the array takes.
    pub fn bytes(&self) -> usize {
        size_of::<Array<K>>() + size_of_val(&*self.groups)
    }

    /// Whether one slot more may be used.
    pub fn has_room(&self, for_more: usize) -> bool {
        // A search ends at an empty slot, so a sixth of them stay so.
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

    /// The live entries of a hash.
    #[inline]
    pub fn probe(&self, hash: u32) -> Probe<'_, K> {
        let group = home(hash, self.groups.len());
        Probe { array: self, group, candidates: None, left: self.groups.len(), hash }
    }

    /// The array before this one.
    #[inline]
    pub fn older(&self) -> Option<&Array<K>> {
        // SAFETY: it goes out of use together with this one, and is then freed no earlier; or alone,
        // when nobody is in a section, and then it is taken out here first, under the lock.
        unsafe { self.older.load(Ordering::Acquire).as_ref() }
    }

    /// Puts a key into a vacant slot; `false`: it would take an empty one and has no room. Under the
    /// writers' lock.
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
        // SAFETY: a slot without a key is read by nobody, and the lock keeps other writers away.
        self.key(at).with_mut(|own| unsafe { (*own).write(key) });
        self.hash(at).store(hash, Ordering::Relaxed);
        // Release: a reader that finds the place finds the key, and the value's bytes.
        self.place(at).store(place.0, Ordering::Release);
        if empty {
            self.used.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Whether a slot has a live entry. Under the writers' lock.
    pub fn is_live(&self, at: usize) -> bool {
        Place::decode(self.place(at).load(Ordering::Relaxed)).is_some()
    }

    /// Puts another place into a slot in use; answers the one before. Under the writers' lock.
    pub fn set_place(&self, at: usize, place: Place) -> Place {
        // Release: the value's bytes were written before.
        Place(self.place(at).swap(place.0, Ordering::AcqRel))
    }

    /// Counts a use of a place, if it is still in the slot and its uses are not counted already. A use
    /// that is counted at the same time by another thread may be lost.
    #[inline]
    pub fn mark_used(&self, at: usize, place: Place) {
        if let Some(used) = place.used_again() {
            let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.place(at).compare_exchange(place.0, used.0, order, failed);
        }
    }

    /// The place in a slot with a live entry. Under the writers' lock.
    pub fn place_at(&self, at: usize) -> Place {
        Place(self.place(at).load(Ordering::Relaxed))
    }

    /// Removes a live entry; answers its place. Under the writers' lock.
    pub fn remove(&self, at: usize, cause: RemovalCause) -> Place {
        let place = Place(self.place(at).swap(DEAD + cause.number(), Ordering::AcqRel));
        self.hash(at).store(self.removed.load(Ordering::Relaxed), Ordering::Relaxed);
        self.removed.store(at as u32, Ordering::Relaxed);
        place
    }

    /// Removes the live entries whose places are `gone`: they were purged. Answers how many. Under the writers' lock.
    pub fn sweep(&self, gone: &dyn Fn(Place) -> bool) -> usize {
        let of_gone =
            |at: &usize| Place::decode(self.place(*at).load(Ordering::Relaxed)).is_some_and(gone);
        (0..self.size()).filter(of_gone).map(|at| _ = self.remove(at, RemovalCause::Purged)).count()
    }

    /// The entries that are live when they are met. The caller is in a section.
    pub fn entries(&self) -> impl Iterator<Item = Hit<'_, K>> {
        (0..self.size()).filter_map(|at| {
            // Acquire: see `put`.
            let place = Place::decode(self.place(at).load(Ordering::Acquire))?;
            Some(Hit { array: self, at, place, key: self.key(at) })
        })
    }

    /// Live entries. Under the writers' lock.
    pub fn live(&self) -> usize {
        (0..self.size()).filter(|at| self.is_live(*at)).count()
    }

    /// Whether any removed key is there. Under the writers' lock.
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

    /// The removed entries are those whose readers are waited for. None waits already.
    pub fn begin_wait(&self) {
        let removed = self.removed.swap(NONE, Ordering::Relaxed);
        self.waiting.store(removed, Ordering::Relaxed);
    }

    /// Nobody reads the waiting entries any more. None is ready already.
    pub fn end_wait(&self) {
        let waiting = self.waiting.swap(NONE, Ordering::Relaxed);
        self.ready.store(waiting, Ordering::Relaxed);
    }

    /// Takes out a key that nobody reads any more, with the cause of its removal. Under the writers' lock.
    pub fn take_ready(&self) -> Option<(K, RemovalCause)> {
        let at = self.ready.load(Ordering::Relaxed);
        if at == NONE {
            return None;
        }
        let at = at as usize;
        self.ready.store(self.hash(at).load(Ordering::Relaxed), Ordering::Relaxed);
        // SAFETY: a dead slot has its key, and nobody reads it: every section is over in which it
        // was seen live.
        let key = self.key(at).with_mut(|own| unsafe { (*own).assume_init_read() });
        let cause = cause_of(self.place(at).swap(VACANT, Ordering::AcqRel));
        self.trim(at);
        Some((key, cause))
    }

    /// Makes a vacant slot empty, and those before it, if no search goes on behind it.
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

    /// Moves all live entries to another array, which has room for them; answers how many.
    ///
    /// # Safety
    /// The caller holds the writers' lock, and nobody is in a section.
    pub unsafe fn move_to(&self, to: &Array<K>) -> usize {
        let mut moved = 0;
        for at in 0..self.size() {
            let Some(place) = Place::decode(self.place(at).load(Ordering::Relaxed)) else {
                continue;
            };
            self.place(at).store(VACANT, Ordering::Relaxed);
            // SAFETY: a live slot has a key, nobody reads it, and it is marked as taken above.
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
    /// Tells of all keys that are there. The array is out of use, and nobody else has it.
    pub fn tell(&self, listener: &Listener<K>) {
        for at in 0..self.size() {
            let word = self.place(at).load(Ordering::Relaxed);
            if word >= DEAD {
                self.key(at).with(|own| {
                    // SAFETY: a live or dead slot has a key, which only the array's end takes out now.
                    let key = unsafe { (*own).assume_init_ref() };
                    listener.tell(key, cause_of(word));
                });
            }
        }
    }
}

/// Why the value of a slot with this word left. A live one did with the whole table.
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

/// The slots of an array that is being freed whose keys are still to be dropped. If a key's drop panics,
/// the others are dropped while the panic goes on.
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
                // SAFETY: a live or dead slot has a key, nobody else has this array, which is being
                // freed, and each slot is met once.
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
    /// Calls `use_it` with the entry's key; runs the program's code.
    ///
    /// # Safety
    /// The hit was made in a section that this thread is still in.
    #[inline]
    pub unsafe fn with_key<R>(&self, use_it: impl FnOnce(&K) -> R) -> R {
        // SAFETY: the slot was seen live, so it has a key, which was written before its place. The
        // key is taken out only when every section is over in which the slot was live.
        self.key.with(|own| use_it(unsafe { (*own).assume_init_ref() }))
    }

    /// Whether the entry's key equals `key`; runs the program's code.
    ///
    /// # Safety
    /// As [`Hit::with_key`].
    #[inline]
    pub unsafe fn equals<Q: Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        // SAFETY: the caller is in the section that the hit was made in.
        unsafe { self.with_key(|own| own.borrow() == key) }
    }

    /// Whether the entry is live and has the place still, however often it was used.
    #[inline]
    pub fn is_still_there(&self) -> bool {
        // Acquire: what is read at the place after this is not older than the place.
        self.place.same(Place(self.array.place(self.at).load(Ordering::Acquire)))
    }

    /// The slot's address, by which it is told from others.
    pub fn id(&self) -> usize {
        std::ptr::from_ref(self.array.place(self.at)) as usize
    }
}

/// See [`Array::probe`].
pub(super) struct Probe<'a, K> {
    array: &'a Array<K>,
    group: usize,
    /// Slots of the group that are still to be looked at, one bit each; `None`: the group was not entered.
    candidates: Option<u32>,
    /// Groups that were not searched to their end.
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
                // Acquire: see `put`. The hash once more, for the slot may have got another key since.
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
