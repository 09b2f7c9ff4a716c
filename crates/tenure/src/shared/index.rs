//! Which keys a shared cache has: tables of entries, each twice as large as the one before. Every
//! process that has the cache open keeps the tables' chunks pinned.
//!
//! New entries go to the last table in use. When a table is three quarters full, the next table
//! comes into use. A lookup reads one line of eight entries in each table. Every change is one
//! compare-and-swap, so a process may die between any two of them.

#![allow(unsafe_code, reason = "gives out atomics of shared memory")]

use super::dead::DeadChunks;
use super::entry::{Entry, MOST_CHUNKS};
use super::making::{Flights, FLIGHTS_AT};
use super::object::SharedVolatile;
use super::pin::SharedPin;
use crate::error::Result;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The contents of the first chunk.
#[repr(C)]
pub(super) struct Root {
    /// The seed of the keys' hashes. It is never 0 after it was made.
    pub seed: AtomicU64,
    /// The number of tables in use, minus one.
    last: AtomicU32,
    /// Where the last empty chunk was found.
    pub hint: AtomicU32,
    /// How many entries were put into empty places of each table.
    used: [AtomicU64; MOST_TABLES],
    pub inserts: AtomicU64,
    /// Entries that were replaced because their line was full.
    pub displaced: AtomicU64,
    pub dead: DeadChunks,
    _room: [u64; (FLIGHTS_AT - ROOT_HEAD) / 8],
    /// Values that are being made: see [`super::flight`].
    pub flights: Flights,
}

const MOST_TABLES: usize = 20;
/// Bytes of the root before its room.
const ROOT_HEAD: usize = 16 + 8 * MOST_TABLES + 16 + size_of::<DeadChunks>();
const LINE: usize = 8;
/// Another process fills a chunk with zeros in less time, unless it is stopped.
const LONGEST: Duration = Duration::from_secs(1);
/// The chunks of the index are at most this part of all.
const PART: usize = 64;

type Line = [AtomicU64; LINE];

/// See the module's head.
#[derive(Debug)]
pub(super) struct Index {
    tables: usize,
    chunk: usize,
    /// Which chunks this process has pinned. A child inherits those pins.
    pinned: Box<[AtomicBool]>,
    /// The start of the data: the addresses of chunks follow from it.
    base: usize,
}

/// Returns whether a cache can have this many chunks of this size: the root lies in the first one.
pub(super) fn is_possible(chunks: usize, chunk: usize) -> bool {
    (4..=MOST_CHUNKS).contains(&chunks) && chunk >= size_of::<Root>()
}

/// Returns how many tables the index of a cache with this many chunks has.
fn tables_of(chunks: usize) -> usize {
    let most = (chunks / PART).max(1);
    ((most + 1).ilog2() as usize).clamp(1, MOST_TABLES)
}

impl Index {
    /// Pins the root and the first table. Makes them if they are gone: then the cache is empty.
    pub fn open(memory: &SharedVolatile) -> Result<Index> {
        let tables = tables_of(memory.chunks());
        let index = Index {
            tables,
            chunk: memory.chunk_size(),
            pinned: (0..1 << tables).map(|_| AtomicBool::new(false)).collect(),
            base: memory.as_ptr(0)? as usize,
        };
        index.keep(memory, 0)?;
        let root = index.root();
        if root.seed.load(Ordering::Acquire) == 0 {
            let seed = foldhash::fast::RandomState::default();
            let seed = std::hash::BuildHasher::hash_one(&seed, 0) | 1;
            let _ = root.seed.compare_exchange(0, seed, Ordering::AcqRel, Ordering::Acquire);
        }
        index.keep(memory, 1)?;
        Ok(index)
    }

    /// Returns the number of chunks of the index. The chunks of values follow.
    pub fn chunks(&self) -> usize {
        1 << self.tables
    }

    /// Pins a chunk for as long as this process has the cache open, and makes it if it is gone. If
    /// another process makes or purges the chunk, waits for at most [`LONGEST`], because that
    /// process may be stopped.
    ///
    /// # Errors
    /// There is no memory for it, or another process still makes it.
    fn keep(&self, memory: &SharedVolatile, chunk: usize) -> Result<()> {
        if self.pinned[chunk].load(Ordering::Acquire) {
            return Ok(());
        }
        let mut pin = memory.pin(chunk)?;
        loop {
            match pin {
                SharedPin::Intact(intact) => {
                    std::mem::forget(intact);
                    break;
                }
                SharedPin::ToMake(maker) => match maker.finish() {
                    Ok(made) => {
                        std::mem::forget(made);
                        break;
                    }
                    // A handler has forked: this is the child, and its parent makes the chunk.
                    Err(_) => pin = memory.pin(chunk)?,
                },
                SharedPin::BeingMade(other) => pin = other.wait(Some(LONGEST))?,
            }
        }
        // Two threads that come at once pin it twice, until the cache is closed.
        self.pinned[chunk].store(true, Ordering::Release);
        Ok(())
    }

    /// Pins a chunk in the same way if it is there. Never waits. Returns `false` if the chunk is
    /// gone, being made or being purged: then it has no entries.
    fn is_kept(&self, memory: &SharedVolatile, chunk: usize) -> bool {
        if self.pinned[chunk].load(Ordering::Acquire) {
            return true;
        }
        let Ok(Some(intact)) = memory.read(chunk) else { return false };
        std::mem::forget(intact);
        self.pinned[chunk].store(true, Ordering::Release);
        true
    }

    pub fn root(&self) -> &Root {
        // SAFETY: the first chunk is mapped and stays pinned. Its bytes are zeros at first, and all
        // processes use it as these atomics.
        unsafe { &*(self.base as *const Root) }
    }

    /// Returns the chunk of a hash's line in a table, and the line's number in that chunk. Behind
    /// the root, each table has twice as many chunks as the one before.
    fn line_of(&self, number: usize, hash: u64) -> (usize, usize) {
        // All are powers of two. The upper bits of the hash distinguish the entries of a line.
        let line = hash as usize & (self.lines_of(number) - 1);
        let each = self.lines_of(0);
        ((1 << number) + (line >> each.ilog2()), line & (each - 1))
    }

    fn lines_of(&self, table: usize) -> usize {
        (self.chunk << table) / size_of::<Line>()
    }

    /// Returns the lines in a chunk that this process keeps pinned.
    fn lines(&self, chunk: usize) -> &[Line] {
        let (at, lines) = (self.base + chunk * self.chunk, self.lines_of(0));
        // SAFETY: the chunk is mapped and stays pinned. Its bytes are zeros at first, and all
        // processes use it as these atomics.
        unsafe { std::slice::from_raw_parts(at as *const Line, lines) }
    }

    /// Returns every place that may have an entry.
    fn places<'a>(&'a self, memory: &'a SharedVolatile) -> impl Iterator<Item = &'a AtomicU64> {
        let chunks = 1..1 << (self.last() + 1);
        let kept = chunks.filter(|chunk| self.is_kept(memory, *chunk));
        kept.flat_map(|chunk| self.lines(chunk).iter().flatten())
    }

    fn last(&self) -> usize {
        (self.root().last.load(Ordering::Acquire) as usize).min(self.tables - 1)
    }

    /// Calls `act` with every place whose entry may belong to the hash, the newest table first,
    /// until `act` returns a value.
    pub fn find<'a, R>(
        &'a self,
        memory: &SharedVolatile,
        hash: u64,
        mut act: impl FnMut(&'a AtomicU64, Entry) -> Option<R>,
    ) -> Option<R> {
        for number in (0..=self.last()).rev() {
            let (chunk, line) = self.line_of(number, hash);
            if !self.is_kept(memory, chunk) {
                continue;
            }
            for place in &self.lines(chunk)[line] {
                let entry = Entry(place.load(Ordering::Acquire));
                if entry.may_be(hash) {
                    if let Some(found) = act(place, entry) {
                        return Some(found);
                    }
                }
            }
        }
        None
    }

    /// Returns whether [`find`](Self::find) comes to one place before it comes to another.
    pub fn is_before(one: &AtomicU64, other: &AtomicU64) -> bool {
        let address = |place| std::ptr::from_ref::<AtomicU64>(place) as usize;
        let line = |place| address(place) / size_of::<Line>();
        // A newer table lies behind the older ones.
        if line(one) == line(other) {
            return address(one) < address(other);
        }
        line(one) > line(other)
    }

    /// Puts an entry in. `is_stale`: returns whether an entry leads nowhere any more. `pick`:
    /// chooses the entry to replace if none is empty or stale. Returns the place, and the replaced
    /// entry.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the table. `ETIMEDOUT`: another process that makes it is
    /// stopped.
    pub fn put(
        &self,
        memory: &SharedVolatile,
        hash: u64,
        entry: Entry,
        is_stale: impl Fn(Entry) -> bool,
        pick: usize,
    ) -> Result<(&AtomicU64, Option<Entry>)> {
        loop {
            let last = self.last();
            let (chunk, line) = self.line_of(last, hash);
            self.keep(memory, chunk)?;
            let line = &self.lines(chunk)[line];
            let seen: [Entry; LINE] =
                std::array::from_fn(|n| Entry(line[n].load(Ordering::Acquire)));
            let empty = seen.iter().position(|entry| *entry == Entry::NONE);
            let free = empty.or_else(|| seen.iter().position(|entry| is_stale(*entry)));
            let at = free.unwrap_or(pick % LINE);
            let put =
                line[at].compare_exchange(seen[at].0, entry.0, Ordering::AcqRel, Ordering::Relaxed);
            if put.is_err() {
                continue;
            }
            if free.is_none() {
                self.root().displaced.fetch_add(1, Ordering::Relaxed);
            } else if empty.is_some() {
                let used = self.root().used[last].fetch_add(1, Ordering::Relaxed) as usize;
                if used > self.lines_of(last) * LINE / 4 * 3 && last + 1 < self.tables {
                    let (from, to) = (last as u32, last as u32 + 1);
                    let _ = self.root().last.compare_exchange(
                        from,
                        to,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                }
            }
            return Ok((&line[at], free.is_none().then_some(seen[at])));
        }
    }

    /// Removes every entry of a chunk. After that no entry is from an earlier life that has the
    /// same 16 bits as this one.
    pub fn forget(&self, memory: &SharedVolatile, chunk: usize) {
        for place in self.places(memory) {
            let there = place.load(Ordering::Relaxed);
            if Entry(there).chunk() == chunk {
                let _ = place.compare_exchange(there, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Empties all tables.
    pub fn clear(&self, memory: &SharedVolatile) {
        self.places(memory).for_each(|place| place.store(0, Ordering::SeqCst));
    }
}

const _: () = assert!(size_of::<Root>() <= 16 << 10);
const _: () = assert!(std::mem::offset_of!(Root, flights) == FLIGHTS_AT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_a_small_part() {
        assert_eq!(tables_of(16), 1);
        assert_eq!(tables_of(64), 1);
        assert_eq!(tables_of(512), 3);
        assert_eq!(tables_of(24 << 10), 8);
    }

    /// A process is stopped while it gives back a part of the index that no process has pinned.
    #[test]
    fn a_part_that_is_being_purged_is_waited_for_by_no_look() {
        let memory = SharedVolatile::builder(512 << 16).chunk_size(1 << 16).build().unwrap();
        let index = Index::open(&memory).unwrap();
        index.root().last.store(1, Ordering::Relaxed);
        drop(memory.get_or_make(2, |_| ()).unwrap());
        let part = memory.region().chunk(2);
        assert_eq!(part.begin_purge(0, || Some(0)), crate::shared::chunk::Purge::Done);
        let took = (0..5).map(|_| {
            let begun = std::time::Instant::now();
            assert!(index.find(&memory, 5 << 60, |_, _| Some(())).is_none());
            begun.elapsed()
        });
        // One that waits does so for that long each time.
        assert!(took.min().unwrap() < LONGEST / 2);
        part.end_purge(false);
        index.put(&memory, 5 << 60, Entry::new(5 << 60, 300, 1, 1), |_| false, 0).unwrap();
        assert!(index.find(&memory, 5 << 60, |_, _| Some(())).is_some());
    }

    /// There are two tables. The second has chunks 2 and 3, and another process makes chunk 3.
    #[test]
    fn a_part_that_is_being_made_hides_no_other_and_is_waited_for_by_no_look() {
        let memory = SharedVolatile::builder(512 << 16).chunk_size(1 << 16).build().unwrap();
        let (in_2, in_3) = (5 << 60, 6 << 60 | 1 << 10);
        let entry = |hash, place| Entry::new(hash, 300, 1, place);
        let put = |index: &Index, hash, place| {
            index.put(&memory, hash, entry(hash, place), |_| false, 0).map(drop)
        };
        let index = Index::open(&memory).unwrap();
        put(&index, in_2, 1).unwrap();
        index.root().last.store(1, Ordering::Relaxed);
        put(&index, in_2, 2).unwrap();

        let other = Index::open(&memory).unwrap();
        let SharedPin::ToMake(_made_elsewhere) = memory.pin(3).unwrap() else { panic!() };
        let newest = |hash| other.find(&memory, hash, |_, entry| Some(entry.place()));
        assert_eq!((newest(in_2), newest(in_3)), (Some(2), None));
        assert_eq!(put(&other, in_3, 3).unwrap_err().errno(), libc::ETIMEDOUT);
        other.forget(&memory, 300);
        assert_eq!(newest(in_2), None);
    }
}
