//! Where a process puts new values: at the end of a chunk of its own, one for each class. Only this
//! process writes there, and others read what the index leads to. So nothing is locked, and a
//! process that dies leaves at most its open chunks unfilled.

#![allow(unsafe_code, reason = "writes records to shared memory")]

use super::entry::{unit, Entry, MOST_CHUNKS};
use super::index::Index;
use super::object::SharedVolatile;
use super::pin::{Maker, SharedChunk, SharedPin};
use super::record::Record;
use super::state::{Kind, State};
use super::{record, stored};
use crate::error::{Error, ErrorKind, Result};
use crate::os::generation;
use crate::sync::{AtomicU64, Ordering};
use crate::tracking::settings::Priority;

/// The values that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// New values. Most are never used again.
    New,
    /// Values that were used more than once. They go later.
    Kept,
}

impl Class {
    const ALL: [Class; 2] = [Class::New, Class::Kept];

    pub fn priority(self) -> Priority {
        match self {
            Class::New => Priority::DEFAULT,
            Class::Kept => Priority::new(Priority::DEFAULT.level() + 1).unwrap_or_default(),
        }
    }
}

/// This process's open chunks: an [`Open`] for each class.
#[derive(Debug)]
pub(super) struct Writer {
    open: [AtomicU64; Class::ALL.len()],
}

/// An open chunk, in a word: the next free place (17 bits), the chunk's number (22 bits), and the
/// process, because a child opens its own chunks. All parts change at once: a thread of a child
/// must never write where the parent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open(u64);

const NONE: Open = Open(u64::MAX);
const PLACE_BITS: u32 = 17;
const PROCESS_AT: u32 = 40;

impl Open {
    fn new(process: u64, chunk: usize, next: u64) -> Open {
        Open(process << PROCESS_AT | (chunk as u64) << PLACE_BITS | next)
    }

    fn chunk(self) -> usize {
        (self.0 >> PLACE_BITS) as usize & (MOST_CHUNKS - 1)
    }

    fn next(self) -> u64 {
        self.0 & ((1 << PLACE_BITS) - 1)
    }

    /// Returns whether another process has opened it.
    fn is_inherited(self) -> bool {
        self != NONE && (self.0 ^ generation::current() << PROCESS_AT) >> PROCESS_AT != 0
    }
}

/// Exchanges the word of a class.
fn swap(open: &AtomicU64, from: Open, to: Open) -> bool {
    open.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// A record that was written, and the pin of its chunk.
pub(super) struct Written<'a> {
    pub entry: Entry,
    pub pin: SharedChunk<'a>,
    address: usize,
    room: usize,
}

impl<'a> Written<'a> {
    pub fn record(&self) -> Option<Record<'a>> {
        // SAFETY: the record is in a chunk that is pinned while this lives, and the holder of the
        // record also has the pin.
        unsafe { Record::at(self.address, self.room) }
    }
}

impl Writer {
    pub fn new() -> Writer {
        Writer { open: [const { AtomicU64::new(NONE.0) }; Class::ALL.len()] }
    }

    /// In a child: ends the child's pins of the open chunks, because the parent goes on with them.
    #[cold]
    fn leave_the_parents(&self, memory: &SharedVolatile) {
        for open in &self.open {
            let there = Open(open.load(Ordering::Acquire));
            if there.is_inherited() && swap(open, there, NONE) {
                memory.region().unpin(there.chunk());
            }
        }
    }

    /// Writes a record. Gets find it after its entry is in the index. `gone`: returns an empty
    /// chunk with this many places free.
    pub fn write<'a>(
        &self,
        call: &'static str,
        memory: &'a SharedVolatile,
        index: &Index,
        class: Class,
        (hash, expires, key, value): (u64, u64, &[u8], &[u8]),
        gone: impl Fn(usize) -> Result<Option<Empty<'a>>>,
    ) -> Result<Written<'a>> {
        let unit = unit(memory.chunk_size());
        let need = record::len_of(key, value.len()).div_ceil(unit) as u64;
        let places = (memory.chunk_size() / unit) as u64;
        let open = &self.open[class as usize];
        loop {
            let there = Open(open.load(Ordering::Acquire));
            if there.is_inherited() {
                self.leave_the_parents(memory);
                continue;
            }
            let (chunk, next) = (there.chunk(), there.next());
            let is_full = || next + need > places || memory.pins_left(chunk) <= 0;
            if there == NONE || is_full() {
                let empty = gone(need as usize)?.ok_or_else(|| all_pinned(call))?;
                self.open_chunk(memory, index, class, there, empty);
                continue;
            }
            // Before this pin is counted, this process's pin of its open chunk may end, and the
            // chunk may go.
            let Some(pin) = memory.read_as(call, chunk)? else {
                swap(open, there, NONE);
                continue;
            };
            // Inherited: a signal handler has made this child since then, and the places belong to
            // the parent.
            if !swap(open, there, Open(there.0 + need)) || there.is_inherited() {
                continue;
            }
            let life = memory.region().chunk(chunk).load().life();
            let (place, start) = (next as usize, memory.as_ptr(chunk)? as usize);
            let (address, room) = (start + place * unit, memory.chunk_size() - place * unit);
            // SAFETY: these places belong to this call since the exchange above. Only this process
            // has the chunk open, and it gives out each place once in a life of the chunk. The
            // chunk is pinned. If a signal handler makes a child from here on, the child writes the
            // same bytes.
            unsafe { record::write(address, hash, expires, key, value) };
            return Ok(Written { entry: Entry::new(hash, chunk, life, place), pin, address, room });
        }
    }

    /// Opens a chunk in place of another one.
    #[cold]
    fn open_chunk(
        &self,
        memory: &SharedVolatile,
        index: &Index,
        class: Class,
        before: Open,
        Empty { chunk, process, next }: Empty<'_>,
    ) {
        let region = memory.region();
        let number = chunk.number();
        // An entry distinguishes 65,536 lives of a chunk. Several lives in a row do this, because a
        // process may die here.
        let of_chunk = region.chunk(number);
        if of_chunk.load().life() & 0x7fff >= 0x7fc0 {
            index.forget(memory, number);
        }
        of_chunk.priority.store(stored(class.priority()), Ordering::Relaxed);
        // Chunks that are opened later are younger, even if that is in the same tick.
        let tick = region.facts().tick.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        of_chunk.used.store(tick, Ordering::Relaxed);
        let is_opened = swap(&self.open[class as usize], before, Open::new(process, number, next));
        // If another thread has opened a chunk meanwhile, all places of this chunk count as dead,
        // so that a later writer takes it.
        let closed = if is_opened { before } else { Open::new(process, number, next) };
        // A child's parent goes on with an inherited chunk.
        if closed != NONE && !closed.is_inherited() {
            // No process writes to the rest of it.
            let (bytes, number) = (memory.chunk_size(), closed.chunk());
            let rest = bytes / unit(bytes) - closed.next() as usize;
            index.root().dead.count(region.chunk(number), number, bytes, rest);
        }
        if is_opened {
            std::mem::forget(chunk);
            if before != NONE {
                region.unpin(before.chunk());
            }
        }
    }
}

/// A pinned chunk without values. Only the process that found it fills it: a child that a signal
/// handler makes meanwhile has a copy of this.
pub(super) struct Empty<'a> {
    chunk: SharedChunk<'a>,
    process: u64,
    next: u64,
}

impl<'a> Empty<'a> {
    /// Returns a chunk of zeros as an empty one.
    pub fn of_zeros(memory: &SharedVolatile, maker: Maker<'a>) -> Empty<'a> {
        Empty::of(memory, maker.process(), maker.publish(State::intact).0)
    }

    /// Returns a chunk whose values are dropped as an empty one.
    pub fn anew(memory: &SharedVolatile, maker: Maker<'a>) -> Empty<'a> {
        Empty::of(memory, maker.process(), maker.publish(State::anew).0)
    }

    fn of(memory: &SharedVolatile, process: u64, chunk: SharedChunk<'a>) -> Empty<'a> {
        memory.region().chunk(chunk.number()).begin_to_live(memory.chunk_size());
        Empty { chunk, process, next: 1 }
    }

    /// Writes a record, like [`Writer::write`]. Returns `None` if there is no room for it.
    pub fn write(
        &mut self,
        memory: &SharedVolatile,
        (hash, expires, key, value): (u64, u64, &[u8], &[u8]),
    ) -> Option<(Entry, Record<'_>)> {
        let (bytes, number, place) = (memory.chunk_size(), self.chunk.number(), self.next as usize);
        let unit = unit(bytes);
        let next = place + record::len_of(key, value.len()).div_ceil(unit);
        if next > bytes / unit {
            return None;
        }
        let (address, room) = (self.chunk.as_ptr() as usize + place * unit, bytes - place * unit);
        // SAFETY: only the process that made the chunk writes to it, and no other thread has the
        // chunk yet. It is pinned. If a signal handler makes a child meanwhile, the child also has
        // it pinned and writes the same bytes.
        unsafe { record::write(address, hash, expires, key, value) };
        self.next = next as u64;
        let life = memory.region().chunk(number).load().life();
        // SAFETY: written above, in a chunk that is pinned while `self` lives.
        let record = unsafe { Record::at(address, room) }?;
        Some((Entry::new(hash, number, life, place), record))
    }
}

/// Makes a chunk that is gone or was never made: zeros. Returns `None` if there is none.
pub(super) fn find_gone<'a>(
    memory: &'a SharedVolatile,
    index: &Index,
) -> Result<Option<Empty<'a>>> {
    let (first, all) = (index.chunks(), memory.chunks());
    let hint = index.root().hint.load(Ordering::Relaxed) as usize;
    let begin = if (first..all).contains(&hint) { hint } else { first };
    for number in (begin..all).chain(first..begin) {
        let state = memory.region().chunk(number).load();
        if !matches!(state.kind(), Kind::Fresh | Kind::Purged) {
            continue;
        }
        if let SharedPin::ToMake(maker) = memory.pin(number)? {
            index.root().hint.store(number as u32 + 1, Ordering::Relaxed);
            return Ok(Some(Empty::of_zeros(memory, maker)));
        }
    }
    Ok(None)
}

fn all_pinned(call: &'static str) -> Error {
    let why = "every chunk is pinned, by values that the program holds or by processes that write";
    Error::new(ErrorKind::OutOfMemory, call, why, "drop values, or make the cache larger")
}
