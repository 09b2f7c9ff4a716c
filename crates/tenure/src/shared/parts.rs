//! The parts of a shared cache: where it finds its values, and which of a key's entries counts.

#![allow(unsafe_code, reason = "reads records in shared memory")]

use super::entry::{unit, Entry};
use super::index::Index;
use super::object::SharedVolatile;
use super::pin::SharedChunk;
use super::record::Record;
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

    /// Returns the record that an entry leads to, and a pin of its chunk.
    fn at(&self, entry: Entry) -> Option<(SharedChunk<'a>, Record<'a>)> {
        let pin = self.memory.read(entry.chunk()).ok()??;
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
    pub fn replace(&self, hash: u64, key: &[u8], new: Entry) -> Option<&'a AtomicU64> {
        self.index.find(self.memory, hash, |place, entry| {
            let Leads::There(_pin, record) = self.follow(entry, hash, key) else { return None };
            let put =
                place.compare_exchange(entry.0, new.0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            put.then(|| {
                self.count_dead(entry, &record);
                place
            })
        })
    }

    /// Removes a key's entries, except the one in the place `but`. Returns `true` if one of them
    /// led to a value.
    ///
    /// It removes every entry that may belong to the key, unless the entry leads to another key's
    /// value. An entry that leads nowhere may belong to a chunk that is being emptied: its value is
    /// about to be written again, and the entry then leads there. An entry that this process cannot
    /// follow now may lead to a value later.
    pub fn drop_others(&self, hash: u64, key: &[u8], but: Option<&AtomicU64>) -> bool {
        let mut dropped = false;
        self.index.find(self.memory, hash, |place, mut entry| {
            if but.is_some_and(|but| std::ptr::eq(but, place)) {
                return None;
            }
            while entry.may_be(hash) {
                let leads = self.follow(entry, hash, key);
                if matches!(leads, Leads::Elsewhere) {
                    break;
                }
                match place.compare_exchange(entry.0, 0, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        if let Leads::There(_pin, record) = &leads {
                            self.count_dead(entry, record);
                            dropped = true;
                        }
                        break;
                    }
                    Err(now) => entry = Entry(now),
                }
            }
            None::<()>
        });
        dropped
    }
}
