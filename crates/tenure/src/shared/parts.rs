//! The parts of a shared cache: where it finds its values, and which of a key's entries counts.

#![allow(unsafe_code, reason = "reads records in shared memory")]

use super::entry::{unit, Entry};
use super::index::Index;
use super::object::SharedVolatile;
use super::pin::SharedChunk;
use super::record::{Origin, Record};
use super::writer::Writer;
use crate::sync::{AtomicU64, Ordering};

/// See the module's head.
pub(super) struct Parts<'a> {
    pub memory: &'a SharedVolatile,
    pub index: &'a Index,
    pub writer: &'a Writer,
}

/// Where an entry leads that may belong to a key.
pub(super) enum Leads<'a> {
    /// To the key's record.
    There(SharedChunk<'a>, Record<'a>),
    /// To another key's record.
    Elsewhere,
    /// Its value is gone, or cannot be pinned now.
    Nowhere,
}

impl<'a> Parts<'a> {
    /// Returns the record at a place of a pinned chunk. Returns `None` if there is none.
    pub fn record(&self, chunk: usize, place: usize) -> Option<Record<'a>> {
        let len = self.memory.chunk_size();
        let offset = place * unit(len);
        let start = self.memory.region().view_of(chunk).start;
        // SAFETY: inside the chunk, which is pinned, so it stays mapped. The bytes of a record do
        // not change after the index leads to it, and no code relies on them before.
        unsafe { Record::at(start + offset, len.checked_sub(offset)?) }
    }

    /// Follows an entry that may belong to a key.
    pub fn follow(&self, entry: Entry, hash: u64, key: &[u8]) -> Leads<'a> {
        match self.at(entry) {
            Some((pin, record)) if record.is_of(hash, key) => Leads::There(pin, record),
            Some(_) => Leads::Elsewhere,
            None => Leads::Nowhere,
        }
    }

    /// Returns the record that an entry leads to, and a brief pin of its chunk: a change of the key
    /// must see the value also when the program holds as many values of the chunk as it may.
    fn at(&self, entry: Entry) -> Option<(SharedChunk<'a>, Record<'a>)> {
        let pin = self.memory.pin_briefly(entry.chunk())?;
        let state = self.memory.region().chunk(entry.chunk()).load();
        if !entry.is_of(state.life()) || entry.chunk() < self.index.chunks() {
            return None;
        }
        Some((pin, self.record(entry.chunk(), entry.place())?))
    }

    /// Counts the record of an entry that the index no longer has as dead. The record stays in its
    /// chunk as long as the pinned life of the chunk.
    pub fn count_dead(&self, entry: Entry, record: &Record<'_>) {
        let (number, bytes) = (entry.chunk(), self.memory.chunk_size());
        let places = record.len().div_ceil(unit(bytes));
        let chunk = self.memory.region().chunk(number);
        self.index.root().dead.count(chunk, number, bytes, places);
    }

    /// As [`count_dead`](Self::count_dead), for an entry that may lead nowhere.
    pub fn count_displaced(&self, entry: Entry) {
        let Some((_pin, record)) = self.at(entry) else { return };
        self.count_dead(entry, &record);
    }

    /// Replaces an entry of the same key, if there is one. After that no process finds the older
    /// value, even if this process dies here.
    ///
    /// It also removes the entries before it that may belong to the key and lead nowhere now. So an
    /// entry of the key that is before this one later is another insert's.
    pub fn replace(&self, hash: u64, key: &[u8], new: Entry) -> Option<&'a AtomicU64> {
        self.index.find(self.memory, hash, |place, entry| {
            self.change(place, entry, hash, key, new).map(|_| place)
        })
    }

    /// Removes a key's entries. Returns `true` if one of them led to a value.
    pub fn remove(&self, hash: u64, key: &[u8]) -> bool {
        let mut removed = false;
        self.index.find(self.memory, hash, |place, entry| {
            let there = self.change(place, entry, hash, key, Entry::NONE);
            removed |= there.is_some_and(|origin| origin != Origin::Pending);
            None::<()>
        });
        removed
    }

    /// After an insert has put the entry `new` into a place: removes the key's other entries.
    ///
    /// Another insert may have put an entry for the key at the same time. Then the entry that a
    /// search finds first stays, and both inserts know which one that is. If each removed the
    /// other's, both would go. `own`: how the value came in. An inserted value stays in place of a
    /// made one.
    pub fn keep_first(&self, hash: u64, key: &[u8], new: Entry, put: &AtomicU64, own: Origin) {
        self.index.find(self.memory, hash, |place, entry| {
            if std::ptr::eq(place, put) {
                return None;
            }
            let there = match self.follow(entry, hash, key) {
                Leads::There(_pin, record) => Some(record.origin()),
                Leads::Elsewhere | Leads::Nowhere => None,
            };
            let yields = match there {
                Some(Origin::Pending) | None => false,
                Some(there) if there == own => Index::is_before(place, put),
                Some(there) => there == Origin::Inserted,
            };
            if yields {
                self.take_out(put, new);
                return Some(());
            }
            match own {
                Origin::Inserted => _ = self.change(place, entry, hash, key, Entry::NONE),
                // Only this entry: an insert may be about to replace it.
                // A pending one looks at this one when it is no longer pending.
                _ if there.is_some_and(|there| there != Origin::Pending) => {
                    self.take_out(place, entry);
                }
                _ => {}
            }
            None
        });
    }

    /// Removes an entry if it is still in this place.
    pub fn take_out(&self, place: &AtomicU64, entry: Entry) {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        if place.compare_exchange(entry.0, Entry::NONE.0, order, failed).is_ok() {
            self.count_displaced(entry);
        }
    }

    /// Returns whether a key has a value. Removes its entries that lead nowhere, as
    /// [`change`](Self::change) does.
    pub fn has_value(&self, hash: u64, key: &[u8]) -> bool {
        let found = self.index.find(self.memory, hash, |place, entry| {
            match self.follow(entry, hash, key) {
                Leads::There(_pin, record) => (record.origin() != Origin::Pending).then_some(()),
                Leads::Elsewhere => None,
                Leads::Nowhere => {
                    self.take_out(place, entry);
                    None
                }
            }
        });
        found.is_some()
    }

    /// Exchanges the entry in a place if it leads to the key's value, and then returns how that
    /// value came in.
    ///
    /// It removes an entry that may belong to the key and leads nowhere. Such an entry may belong
    /// to a chunk that is being emptied: its value is about to be written again, and the entry then
    /// leads there. An entry that this process cannot follow now may lead to a value later.
    fn change(
        &self,
        place: &AtomicU64,
        mut entry: Entry,
        hash: u64,
        key: &[u8],
        new: Entry,
    ) -> Option<Origin> {
        while entry.may_be(hash) {
            let there = match self.follow(entry, hash, key) {
                Leads::There(pin, record) => Some((pin, record)),
                Leads::Elsewhere => return None,
                Leads::Nowhere => None,
            };
            let to = if there.is_some() { new } else { Entry::NONE };
            match place.compare_exchange(entry.0, to.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let record = there.as_ref().map(|(_pin, record)| record);
                    record.into_iter().for_each(|record| self.count_dead(entry, record));
                    return record.map(Record::origin);
                }
                Err(now) => entry = Entry(now),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::SharedCache;

    /// Two threads have each looked for the key before the other one put its entry. In either order, they
    /// keep the first.
    fn one_stays(own: Origin) {
        for first in [0, 1] {
            let cache = SharedCache::builder().most(64 << 20).build().unwrap();
            let (parts, hash) = (cache.parts(), cache.hash(b"key"));
            let find = || parts.index.find(parts.memory, hash, |place, entry| Some((place, entry)));
            let set = |entry, origin| match parts.follow(entry, hash, b"key") {
                Leads::There(_pin, record) => record.set_origin(origin),
                Leads::Elsewhere | Leads::Nowhere => panic!("it leads to its record"),
            };
            // Two records that no entry leads to.
            let entries = [b"one", b"two"].map(|value| {
                cache.insert(b"key", value).unwrap();
                let (place, entry) = find().unwrap();
                place.store(0, Ordering::Relaxed);
                set(entry, if own == Origin::Made { Origin::Pending } else { own });
                entry
            });
            assert!(entries.iter().all(|new| parts.replace(hash, b"key", *new).is_none()));
            let put = |entry| parts.index.put(parts.memory, hash, entry, |_| false, 0).unwrap().0;
            let places = entries.map(put);
            for which in [first, 1 - first] {
                set(entries[which], own);
                parts.keep_first(hash, b"key", entries[which], places[which], own);
            }
            assert_eq!(find().map(|(_, entry)| entry), Some(entries[0]), "{first} was first");
            assert!(parts.remove(hash, b"key") && find().is_none());
        }
    }

    #[test]
    fn of_two_inserts_at_once_one_stays() {
        one_stays(Origin::Inserted);
    }

    #[test]
    fn of_two_makers_at_once_one_stays() {
        one_stays(Origin::Made);
    }
}
