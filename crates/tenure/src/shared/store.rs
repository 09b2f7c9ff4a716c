//! How a value gets into a shared cache.
//!
//! A made value may be older than an insert, a removal or a clear that came while it was made. The
//! later change must win, also if a process dies between any two steps, so the two sides work like
//! a pinner and a purger. Each writes first and looks afterwards:
//!
//! - A change first outdates the flights of its key, and then looks for the key's entries.
//! - A maker first puts its entry into the index, with a record that is *pending*. Gets pass over
//!   such a record. Then the maker looks whether its flight is outdated. Only if it is not, one
//!   store makes the value one that gets find.
//!
//! If the maker finds its flight not outdated, the change looks for entries after the maker has put
//! its own. So the change finds that entry, and removes or replaces it, pending or not. Otherwise
//! the maker removes its entry, which no get has found.
//!
//! A maker replaces no value. If the key has one by now, the made value is not stored: an insert or
//! another maker came first. An insert that looked before the maker has put its entry sees that
//! entry when it [keeps the first](Parts::keep_first), and the inserted value stays. A value that
//! leaves because other code needs the memory is no change.
//!
//! A maker that dies leaves a pending record, which nobody finds. It goes with its chunk.

use super::entry::Entry;
use super::evict;
use super::flight::Flight;
use super::parts::Parts;
use super::record::Origin;
use super::writer::{Class, Written};
use crate::error::Result;
use crate::sync::{barrier_after_rmw, AtomicU64, Ordering};

impl<'a> Parts<'a> {
    /// Writes a value and puts it into the index. `flight`: the flight that made it. Then it is not
    /// in the index if the key has changed meanwhile.
    pub fn store(
        &self,
        call: &'static str,
        value: (u64, u64, &[u8], &[u8]),
        flight: Option<&Flight<'_>>,
    ) -> Result<Written<'a>> {
        let (hash, _, key, _) = value;
        let empty = |need| evict::empty_chunk(self, need);
        let class = self.class_of(hash);
        let written = self.writer.write(call, self.memory, self.index, class, value, empty)?;
        match flight {
            None => self.put_inserted(hash, key, written.entry)?,
            Some(flight) => self.put_made(hash, key, &written, flight)?,
        }
        Ok(written)
    }

    fn put_inserted(&self, hash: u64, key: &[u8], new: Entry) -> Result<()> {
        self.index.root().flights.outdate(hash);
        let place = match self.replace(hash, key, new) {
            Some(place) => place,
            None => self.put(hash, new)?,
        };
        self.index.root().inserts.fetch_add(1, Ordering::SeqCst);
        // Of two inserts at once at least one sees the other one's value.
        barrier_after_rmw();
        self.keep_first(hash, key, new, place, Origin::Inserted);
        Ok(())
    }

    /// Puts a made value in, unless its key has changed: see the module's head.
    fn put_made(
        &self,
        hash: u64,
        key: &[u8],
        written: &Written<'_>,
        flight: &Flight<'_>,
    ) -> Result<()> {
        let new = written.entry;
        let is_late = || flight.is_outdated() || self.has_value(hash, key);
        let Some(record) = written.record() else { return Ok(()) };
        if is_late() {
            self.count_dead(new, &record);
            return Ok(());
        }
        record.set_origin(Origin::Pending);
        let place = self.put(hash, new)?;
        barrier_after_rmw();
        if is_late() {
            self.take_out(place, new);
            return Ok(());
        }
        record.set_origin(Origin::Made);
        self.index.root().inserts.fetch_add(1, Ordering::SeqCst);
        // Of two makers at least one sees that the other one's value is not pending any more.
        barrier_after_rmw();
        self.keep_first(hash, key, new, place, Origin::Made);
        Ok(())
    }

    /// Puts an entry into a place that has none of the key's.
    fn put(&self, hash: u64, new: Entry) -> Result<&'a AtomicU64> {
        let is_stale = |entry: Entry| {
            let chunk = entry.chunk();
            chunk >= self.memory.chunks()
                || !entry.is_of(self.memory.region().chunk(chunk).load().life())
        };
        let pick = new.place() ^ (hash >> 32) as usize;
        let put = self.index.put(self.memory, hash, new, is_stale, pick);
        let (place, displaced) = put.inspect_err(|_| self.count_displaced(new))?;
        displaced.into_iter().for_each(|entry| self.count_displaced(entry));
        Ok(place)
    }

    /// Returns the class of a value. If an entry that may be its key's leads to the previous life
    /// of a chunk, the value was there not long ago. It came back too late, and is kept.
    fn class_of(&self, hash: u64) -> Class {
        let region = self.memory.region();
        let went = |_: &_, entry: Entry| {
            let chunk = entry.chunk();
            let life = (chunk < self.memory.chunks()).then(|| region.chunk(chunk).load().life())?;
            entry.is_of_life_before(life).then_some(())
        };
        match self.index.find(self.memory, hash, went) {
            Some(()) => Class::Kept,
            None => Class::New,
        }
    }
}
