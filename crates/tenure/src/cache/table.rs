//! From key to place: an open-addressing table whose slots are one key and eight bytes.
//!
//! A general hash map doubles when it is full and keeps a control byte a slot: 39 bytes for each
//! `u64` key just after it grew. With 4 KiB values the promise is 41 bytes for everything. This one
//! grows by a quarter at 80 % full, so a `u64` key takes 20 to 25.

use std::borrow::Borrow;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a value lies: which segment, which generation of it, which offset, and whether it was used
/// since it was put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u64);

const OFFSET_BITS: u32 = 18;
const SEGMENT_BITS: u32 = 22;
const GENERATION_BITS: u32 = 23;
const USED: u64 = 1 << 63;

/// Values start at multiples of this.
pub(super) const UNIT: usize = 8;
/// Generations count from 1 to this and begin again.
pub(super) const GENERATIONS: u32 = (1 << GENERATION_BITS) - 1;
/// As many segments as a place can name.
pub(super) const SEGMENTS: u32 = 1 << SEGMENT_BITS;

impl Place {
    pub fn new(segment: u32, generation: u32, offset: usize) -> Place {
        debug_assert!(generation > 0 && generation <= GENERATIONS && segment < SEGMENTS);
        debug_assert!(offset % UNIT == 0 && offset / UNIT < 1 << OFFSET_BITS);
        Place(
            u64::from(generation) << (OFFSET_BITS + SEGMENT_BITS)
                | u64::from(segment) << OFFSET_BITS
                | (offset / UNIT) as u64,
        )
    }
    pub fn offset(self) -> usize {
        (self.0 as usize & ((1 << OFFSET_BITS) - 1)) * UNIT
    }
    pub fn segment(self) -> u32 {
        (self.0 >> OFFSET_BITS) as u32 & (SEGMENTS - 1)
    }
    pub fn generation(self) -> u32 {
        (self.0 >> (OFFSET_BITS + SEGMENT_BITS)) as u32 & GENERATIONS
    }
    /// The same place, whether used or not.
    pub fn same(self, other: Place) -> bool {
        (self.0 ^ other.0) & !USED == 0
    }
    pub fn used(self) -> bool {
        self.0 & USED != 0
    }
}

struct Slot<K> {
    /// 0: empty. Never 0 otherwise, because generations start at 1.
    place: AtomicU64,
    key: MaybeUninit<K>,
}

impl<K> Slot<K> {
    fn place(&self) -> Option<Place> {
        match self.place.load(Ordering::Relaxed) {
            0 => None,
            place => Some(Place(place)),
        }
    }
}

/// One shard's table. `hash` is 32 bits everywhere; the same for the same key.
pub(super) struct Table<K> {
    slots: Box<[Slot<K>]>,
    len: usize,
}

impl<K: Eq> Table<K> {
    pub fn new() -> Self {
        Table { slots: Box::new([]), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that the table takes.
    pub fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot<K>>()
    }

    fn home(&self, hash: u32) -> usize {
        // Multiply-shift spreads over a size that is no power of two.
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    /// The slots from `hash`'s home on, up to the first empty one.
    fn probe(&self, hash: u32) -> impl Iterator<Item = (usize, &Slot<K>, Place)> {
        let (home, size) = (self.home(hash), self.slots.len());
        (0..size).map_while(move |step| {
            let at = if home + step < size { home + step } else { home + step - size };
            let slot = &self.slots[at];
            slot.place().map(|place| (at, slot, place))
        })
    }

    fn position<Q>(&self, hash: u32, key: &Q) -> Option<(usize, Place)>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.probe(hash)
            // SAFETY: a slot with a place holds a key.
            .find(|(_, slot, _)| unsafe { slot.key.assume_init_ref() }.borrow() == key)
            .map(|(at, _, place)| (at, place))
    }

    /// Where the key's value lies; remembers that it was asked for.
    #[inline]
    pub fn find_and_use<Q>(&self, hash: u32, key: &Q) -> Option<Place>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let (at, place) = self.position(hash, key)?;
        if !place.used() {
            // Only this bit changes under the shard's read lock; two readers set the same.
            self.slots[at].place.fetch_or(USED, Ordering::Relaxed);
        }
        Some(place)
    }

    /// Where the key's value lies.
    pub fn find<Q>(&self, hash: u32, key: &Q) -> Option<Place>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.position(hash, key).map(|(_, place)| place)
    }

    /// The place with its used bit, if a key leads to it.
    pub fn holds(&self, hash: u32, place: Place) -> Option<Place> {
        self.probe(hash).find(|(_, _, p)| p.same(place)).map(|(_, _, p)| p)
    }

    /// Puts the key at a place; answers its place before. The caller has called [`Table::reserve`].
    pub fn insert(&mut self, hash: u32, key: K, place: Place) -> Option<Place> {
        if let Some((at, before)) = self.position(hash, &key) {
            *self.slots[at].place.get_mut() = place.0;
            return Some(before);
        }
        let (home, size) = (self.home(hash), self.slots.len());
        let at = (0..size)
            .map(|step| (home + step) % size)
            .find(|at| self.slots[*at].place().is_none())
            .expect("reserve() keeps a fifth of the slots empty");
        self.slots[at].key.write(key);
        *self.slots[at].place.get_mut() = place.0;
        self.len += 1;
        None
    }

    /// Moves the value of whichever key lies at `from` to `to`. `false`: none does.
    pub fn relocate(&mut self, hash: u32, from: Place, to: Place) -> bool {
        let found = self.probe(hash).find(|(_, _, p)| p.same(from)).map(|(at, _, _)| at);
        if let Some(at) = found {
            *self.slots[at].place.get_mut() = to.0;
        }
        found.is_some()
    }

    /// Removes a key; answers its place.
    pub fn remove<Q>(&mut self, hash: u32, key: &Q, rehash: impl Fn(&K) -> u32) -> Option<Place>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let (at, place) = self.position(hash, key)?;
        self.take_out(at, rehash);
        Some(place)
    }

    /// Removes whichever key lies at the place.
    pub fn remove_place(&mut self, hash: u32, place: Place, rehash: impl Fn(&K) -> u32) -> bool {
        let found = self.probe(hash).find(|(_, _, p)| p.same(place)).map(|(at, _, _)| at);
        if let Some(at) = found {
            self.take_out(at, rehash);
        }
        found.is_some()
    }

    /// Empties a slot and moves later ones up, so that no search meets a gap before its key.
    fn take_out(&mut self, at: usize, rehash: impl Fn(&K) -> u32) {
        let size = self.slots.len();
        *self.slots[at].place.get_mut() = 0;
        // SAFETY: the slot held a key until its place was cleared, and nobody reads it since.
        unsafe { self.slots[at].key.assume_init_drop() };
        self.len -= 1;
        let mut gap = at;
        let mut next = (at + 1) % size;
        while self.slots[next].place().is_some() {
            // SAFETY: a slot with a place holds a key.
            let home = self.home(rehash(unsafe { self.slots[next].key.assume_init_ref() }));
            // Distances along the ring from the key's home: it may move up to the gap if the gap
            // does not lie before its home.
            let to_gap = (gap + size - home) % size;
            let to_next = (next + size - home) % size;
            if to_gap < to_next {
                self.slots.swap(gap, next);
                gap = next;
            }
            next = (next + 1) % size;
        }
    }

    /// Makes room for one more key: first by leaving out keys whose places are `stale`, then by
    /// growing.
    pub fn reserve(&mut self, rehash: impl Fn(&K) -> u32, stale: impl Fn(Place) -> bool) {
        if (self.len + 1) * 5 <= self.slots.len() * 4 {
            return;
        }
        let kept = self.slots.iter().filter_map(Slot::place).filter(|p| !stale(*p)).count();
        // Leaving out a tenth is worth a rebuild at the same size.
        let size = if (kept + 1) * 9 <= self.slots.len() * 6 {
            self.slots.len()
        } else {
            (self.slots.len() * 5 / 4).max(16)
        };
        let mut new: Table<K> = Table {
            slots: (0..size)
                .map(|_| Slot { place: AtomicU64::new(0), key: MaybeUninit::uninit() })
                .collect(),
            len: 0,
        };
        for slot in &mut self.slots {
            let Some(place) = slot.place() else { continue };
            *slot.place.get_mut() = 0;
            // SAFETY: the slot held a key; with its place cleared it is ours alone now.
            let key = unsafe { slot.key.assume_init_read() };
            if !stale(place) {
                new.insert(rehash(&key), key, place);
            }
        }
        self.len = 0;
        *self = new;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Table::new();
    }
}

impl<K> Drop for Table<K> {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            if slot.place().is_some() {
                // SAFETY: a slot with a place holds a key, which nobody else has.
                unsafe { slot.key.assume_init_drop() };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn hash(key: &u64) -> u32 {
        // Poor on purpose: many collisions.
        ((key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32) << 12
    }

    #[test]
    fn behaves_as_a_map() {
        let mut table = Table::new();
        let mut model: HashMap<u64, u32> = HashMap::new();
        let mut state = 1u64;
        for step in 0..200_000u32 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = (state >> 33) % 3000;
            match state % 5 {
                0 | 1 => {
                    table.reserve(hash, |_| false);
                    let place = Place::new(step % SEGMENTS, 1 + step % 7, 8);
                    let before = table.insert(hash(&key), key, place);
                    assert_eq!(before.map(Place::segment), model.insert(key, place.segment()));
                }
                2 => {
                    let removed = table.remove(hash(&key), &key, hash);
                    assert_eq!(removed.map(Place::segment), model.remove(&key));
                }
                _ => {
                    let found = table.find_and_use(hash(&key), &key);
                    assert_eq!(found.map(Place::segment), model.get(&key).copied());
                }
            }
            assert_eq!(table.len(), model.len());
        }
    }

    #[test]
    fn stale_places_make_room() {
        let mut table = Table::new();
        for key in 0..1000u64 {
            table.reserve(hash, |place| place.generation() == 1);
            table.insert(hash(&key), key, Place::new(0, 1 + u32::from(key % 10 == 0), 0));
        }
        assert!(table.bytes() <= 400 * 16, "{} bytes", table.bytes());
        for key in (0..1000u64).step_by(10) {
            assert!(table.find_and_use(hash(&key), &key).is_some());
        }
    }

    #[test]
    fn keys_are_dropped_once() {
        let counted = std::rc::Rc::new(());
        #[derive(PartialEq, Eq)]
        struct Key(u64, std::rc::Rc<()>);
        let rehash = |key: &Key| hash(&key.0);
        let mut table = Table::new();
        for i in 0..100 {
            let key = Key(i, counted.clone());
            table.reserve(rehash, |_| false);
            table.insert(rehash(&key), key, Place::new(1, 1, 0));
        }
        for i in 0..50 {
            let key = Key(i, counted.clone());
            assert!(table.remove(rehash(&key), &key, rehash).is_some());
        }
        assert_eq!(std::rc::Rc::strong_count(&counted), 51);
        drop(table);
        assert_eq!(std::rc::Rc::strong_count(&counted), 1);
    }
}
