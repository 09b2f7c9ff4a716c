//! The memory of a [table](super::table): entries that never move, and an array that finds them.
//!
//! An entry is a place, a hash and a key: 20 bytes for a `u64` key, since two entries share their
//! padding. Entries lie in chunks that stay where they are while the index lives. A slot of the
//! array is 32 bits: an entry's number, and above it as many bits of the hash as fit.

use super::place::Place;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use std::borrow::Borrow;
use std::mem::MaybeUninit;

/// Entries of a chunk.
#[cfg(not(loom))]
pub(super) const CHUNK: u32 = 32;
#[cfg(loom)]
pub(super) const CHUNK: u32 = 2;
/// No entry.
pub(super) const NONE: u32 = u32::MAX;
/// An entry's place when it was removed and its key is still there.
pub(super) const DEAD: u64 = 1;
/// An entry's place when it has no key.
pub(super) const FREE: u64 = 0;

/// A slot that ends a search.
const EMPTY: u32 = 0;
/// A slot whose entry was removed; a search goes on behind it.
const REMOVED: u32 = 1;

struct Pair<K> {
    place: [AtomicU64; 2],
    /// The key's hash, for good while the entry is in use. Then the next entry of its list.
    hash: [AtomicU32; 2],
    key: [UnsafeCell<MaybeUninit<K>>; 2],
}

/// See the module's head.
pub(super) struct Chunk<K>([Pair<K>; CHUNK as usize / 2]);

impl<K> Chunk<K> {
    pub fn new() -> Box<Chunk<K>> {
        let pair = |_| Pair {
            place: [AtomicU64::new(FREE), AtomicU64::new(FREE)],
            hash: [AtomicU32::new(0), AtomicU32::new(0)],
            key: [UnsafeCell::new(MaybeUninit::uninit()), UnsafeCell::new(MaybeUninit::uninit())],
        };
        Box::new(Chunk(std::array::from_fn(pair)))
    }
}

/// One entry, wherever it stands in its life.
pub(super) struct Entry<'a, K> {
    pub place: &'a AtomicU64,
    pub hash: &'a AtomicU32,
    key: &'a UnsafeCell<MaybeUninit<K>>,
}

impl<K> Entry<'_, K> {
    /// Where the value lies, unless the entry was removed.
    #[inline]
    pub fn live(&self) -> Option<Place> {
        // Acquire: the value's bytes were written before its place, and the key before that.
        Place::decode(self.place.load(Ordering::Acquire))
    }

    /// Whether the entry's key equals `key`; runs the program's code.
    ///
    /// # Safety
    /// The entry was [live](Entry::live), seen so by this thread in a section that it is still in.
    #[inline]
    pub unsafe fn equals<Q: Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        // SAFETY: a live entry has a key, written before its place was; the key is taken out only
        // when every section is over in which the entry was seen live.
        self.key.with(|own| unsafe { (*own).assume_init_ref() }.borrow() == key)
    }

    /// Gives a free entry its key.
    ///
    /// # Safety
    /// The entry is free and the caller holds the writers' lock.
    pub unsafe fn fill(&self, key: K) {
        // SAFETY: nobody reads the key of a free entry, and the lock keeps other writers away.
        self.key.with_mut(|own| unsafe { (*own).write(key) });
    }

    /// Takes the key out of a removed entry.
    ///
    /// # Safety
    /// The entry is `DEAD`, nobody reads it any more, and the caller alone takes it.
    pub unsafe fn take_key(&self) -> K {
        // SAFETY: a dead entry has its key still, and nobody else uses it: see above.
        self.key.with_mut(|own| unsafe { (*own).assume_init_read() })
    }
}

/// See the module's head. Reached through a pointer by readers in a section, changed by the holder
/// of the writers' lock.
pub(super) struct Index<K> {
    slots: Box<[AtomicU32]>,
    chunks: Box<[AtomicPtr<Chunk<K>>]>,
    /// How many of a slot's bits are the entry's number.
    bits: u32,
    /// The next index of a list of those that wait to be freed.
    pub next: AtomicPtr<Index<K>>,
    /// 0: the chunks live on in a later index. Otherwise one more than the entries ever used, which
    /// go with this index.
    pub owns: AtomicU32,
}

fn tag(hash: u32) -> u32 {
    // The slot is found by the hash's top bits, the shard by its lowest: the product's top bits mix
    // those between.
    hash.wrapping_mul(0x9E37_79B1)
}

impl<K> Index<K> {
    /// An index of `size` slots that can find entries with numbers below `entries`.
    pub fn new(size: usize, entries: usize) -> Box<Index<K>> {
        let chunks = entries.div_ceil(CHUNK as usize);
        let bits = usize::BITS - (chunks * CHUNK as usize + 2).leading_zeros();
        assert!(bits <= 30, "a shard of the index has a billion keys");
        Box::new(Index {
            slots: (0..size).map(|_| AtomicU32::new(EMPTY)).collect(),
            chunks: (0..chunks).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            bits,
            next: AtomicPtr::new(std::ptr::null_mut()),
            owns: AtomicU32::new(0),
        })
    }

    pub fn size(&self) -> usize {
        self.slots.len()
    }

    /// Entries that the index can find.
    pub fn entries(&self) -> u32 {
        self.chunks.len() as u32 * CHUNK
    }

    /// Bytes that the index and the chunks of `made` entries take.
    pub fn bytes(&self, made: u32) -> usize {
        size_of::<Index<K>>()
            + size_of_val(&*self.slots)
            + size_of_val(&*self.chunks)
            + made.div_ceil(CHUNK) as usize * size_of::<Chunk<K>>()
    }

    /// The entry with a number that came from this index.
    #[inline]
    pub fn entry(&self, number: u32) -> Entry<'_, K> {
        let chunk = self.chunks[(number / CHUNK) as usize].load(Ordering::Acquire);
        debug_assert!(!chunk.is_null());
        // SAFETY: a number is used only after its chunk was stored, and chunks are freed with the
        // last index that has them.
        let pair = unsafe { &(*chunk).0[(number % CHUNK / 2) as usize] };
        let side = (number % 2) as usize;
        Entry { place: &pair.place[side], hash: &pair.hash[side], key: &pair.key[side] }
    }

    /// Whether the chunk of the entry with this number is there.
    pub fn has_chunk(&self, number: u32) -> bool {
        !self.chunks[(number / CHUNK) as usize].load(Ordering::Relaxed).is_null()
    }

    /// Adds the chunk of the entry with this number. Under the writers' lock.
    pub fn add_chunk(&self, number: u32, chunk: Box<Chunk<K>>) {
        self.chunks[(number / CHUNK) as usize].store(Box::into_raw(chunk), Ordering::Release);
    }

    /// Takes over another index's chunks. Under the writers' lock, before it is published.
    pub fn adopt_chunks(&self, from: &Index<K>) {
        for (to, from) in self.chunks.iter().zip(&from.chunks) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        // Multiply-shift spreads over a size that is no power of two.
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    /// The numbers of the entries that may have this hash, with their slots.
    #[inline]
    pub fn probe(&self, hash: u32) -> Probe<'_, K> {
        let left = self.slots.len();
        Probe { index: self, at: if left == 0 { 0 } else { self.home(hash) }, left, tag: tag(hash) }
    }

    /// The first slot where an entry of this hash can be put, and whether it was never used.
    pub fn vacancy(&self, hash: u32) -> Option<(usize, bool)> {
        let size = self.slots.len();
        let home = self.home(hash);
        (0..size).map(|step| (home + step) % size).find_map(|at| {
            match self.slots[at].load(Ordering::Relaxed) {
                EMPTY => Some((at, true)),
                REMOVED => Some((at, false)),
                _ => None,
            }
        })
    }

    /// Lets a slot lead to an entry. Under the writers' lock.
    pub fn publish(&self, slot: usize, hash: u32, number: u32) {
        let word = tag(hash) >> self.bits << self.bits | (number + 2);
        // Release: a reader that finds the number finds the entry's contents.
        self.slots[slot].store(word, Ordering::Release);
    }

    /// Lets a slot lead nowhere; answers how many slots became empty. Under the writers' lock.
    pub fn unpublish(&self, slot: usize) -> usize {
        let size = self.slots.len();
        if self.slots[(slot + 1) % size].load(Ordering::Relaxed) != EMPTY {
            self.slots[slot].store(REMOVED, Ordering::Release);
            return 0;
        }
        // No search goes on behind an empty slot, so it need not come past this one either, nor
        // past removed ones before it.
        let mut at = slot;
        let mut emptied = 0;
        loop {
            self.slots[at].store(EMPTY, Ordering::Release);
            emptied += 1;
            at = (at + size - 1) % size;
            if self.slots[at].load(Ordering::Relaxed) != REMOVED {
                return emptied;
            }
        }
    }

    /// Frees a retired index: its arrays, and its chunks with their keys if it owns them.
    ///
    /// # Safety
    /// `index` is from [`Box::into_raw`], in no list, and nobody reads it any more.
    pub unsafe fn free(index: *mut Index<K>) {
        // SAFETY: see above.
        let index = unsafe { Box::from_raw(index) };
        let owns = index.owns.load(Ordering::Relaxed);
        if owns == 0 {
            return;
        }
        for number in 0..owns - 1 {
            let entry = index.entry(number);
            if entry.place.swap(FREE, Ordering::Relaxed) != FREE {
                // SAFETY: an entry that is not free has a key, and nobody else has this index.
                drop(unsafe { entry.take_key() });
            }
        }
        for chunk in &index.chunks {
            let chunk = chunk.load(Ordering::Relaxed);
            if !chunk.is_null() {
                // SAFETY: made by `Box::into_raw`, and no later index has it.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

/// See [`Index::probe`].
pub(super) struct Probe<'a, K> {
    index: &'a Index<K>,
    at: usize,
    left: usize,
    tag: u32,
}

impl<K> Iterator for Probe<'_, K> {
    type Item = (usize, u32);

    #[inline]
    fn next(&mut self) -> Option<(usize, u32)> {
        let bits = self.index.bits;
        while self.left > 0 {
            let at = self.at;
            self.left -= 1;
            self.at = if at + 1 == self.index.slots.len() { 0 } else { at + 1 };
            // Acquire: see `publish`.
            let word = self.index.slots[at].load(Ordering::Acquire);
            if word == EMPTY {
                self.left = 0;
                return None;
            }
            if (word ^ self.tag) >> bits == 0 && word > REMOVED {
                return Some((at, (word & ((1 << bits) - 1)) - 2));
            }
        }
        None
    }
}
