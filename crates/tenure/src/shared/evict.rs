//! Which values of a shared cache go when it needs a chunk: S3-FIFO, in steps of chunks.
//!
//! New values are a tenth of the chunks, kept ones the rest, each in the order in which the chunks were opened. The
//! oldest chunk goes. What was asked for meanwhile is written again first, among the kept ones. A chunk that is nearly
//! [dead](super::dead) goes before all others, and before the cache takes more memory.

use super::chunk::Purge;
use super::dead::Look;
use super::entry::{unit, Entry};
use super::parts::Parts;
use super::record::Record;
use super::state::Kind;
use super::writer::{find_gone, Class, Empty};
use super::{list, purge, record, room, stored};
use crate::error::Result;
use crate::sync::{AtomicU64, Ordering};
use std::cell::Cell;
use std::time::Duration;

/// One in so many chunks is of new values.
const NEW_ONE_IN: usize = 10;
/// A new value that was asked for so often is kept, and a kept one stays.
const KEEP_NEW: u32 = 1;
const KEEP_KEPT: u32 = 1;
/// So many chunks are emptied at most with their hot values written again; then one goes with all.
const TRIES: usize = 3;
/// For so many milliseconds it looks for a chunk that nobody has pinned, and for so many where a child was just forked, which
/// may have all chunks pinned until it has run.
const PATIENCE: u32 = 10;
const FORK_PATIENCE: u32 = 500;

/// A value that is to be written again.
struct Hot {
    entry: Entry,
    hash: u64,
    expires: u64,
    hits: u32,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Hot {
    /// Hash, end, key and value.
    fn parts(&self) -> (u64, u64, &[u8], &[u8]) {
        (self.hash, self.expires, &self.key, &self.value)
    }

    /// The index has it there from here on, if it has it still where it was.
    fn is_now(&self, parts: &Parts<'_>, new: Entry) {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let put = |place: &AtomicU64| place.compare_exchange(self.entry.0, new.0, order, failed);
        let moved = parts.index.find(parts.memory, self.hash, |place, entry| {
            (entry == self.entry).then(|| put(place).is_ok())
        });
        if moved != Some(true) {
            parts.count_displaced(new);
        }
    }
}

/// A chunk for new values, pinned, with so many places free. Where there is no empty one, or no memory for one, the oldest
/// gives way. `None`: every chunk is pinned, and stays so for some milliseconds.
pub(super) fn empty_chunk<'a>(parts: &Parts<'a>, need: usize) -> Result<Option<Empty<'a>>> {
    if let Some(chunk) = dead_chunk(parts, need) {
        return Ok(Some(chunk));
    }
    let (mut emptied, mut waited) = (0, 0);
    loop {
        let mut pinned = Vec::new();
        loop {
            let is_short = room::is_short(parts.memory.chunk_size() as u64);
            if !is_short {
                if let Some(chunk) = find_gone(parts.memory, parts.index)? {
                    return Ok(Some(chunk));
                }
            }
            let Some((number, class)) = oldest(parts, &pinned) else { break };
            let least = match class {
                Class::New => KEEP_NEW,
                Class::Kept => KEEP_KEPT,
            };
            let hot = if emptied < TRIES { values(parts, number, least) } else { Vec::new() };
            let spare = Cell::new(None);
            match empty(parts, number, is_short, &spare) {
                Purge::Done => emptied += 1,
                Purge::Pinned | Purge::NotIntact => {
                    pinned.push(number);
                    continue;
                }
                // The kernel takes nothing, so emptying others frees no memory either.
                Purge::Refused => break,
            }
            write_again(parts, hot, &spare);
            if let Some(chunk) = spare.take() {
                return Ok(Some(chunk));
            }
            if emptied > TRIES {
                break;
            }
        }
        // Where memory is short, making it purges what is left.
        if let Some(chunk) = find_gone(parts.memory, parts.index)? {
            return Ok(Some(chunk));
        }
        // Readers pin a chunk for a moment. In a small cache that may be all of them.
        let is_forking = parts.memory.region().forks().is_none();
        if waited >= if is_forking { FORK_PATIENCE } else { PATIENCE } {
            return Ok(None);
        }
        if waited == 0 {
            // Those that have them pinned may have died, and no worker have got to look yet.
            list::look_who_lives(parts.memory.region());
        }
        waited += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A chunk that was nearly dead, with what is left of its values, and so many places free. `None`: there is none now.
fn dead_chunk<'a>(parts: &Parts<'a>, need: usize) -> Option<Empty<'a>> {
    let memory = parts.memory;
    let (bytes, unit) = (memory.chunk_size(), unit(memory.chunk_size()));
    parts.index.root().dead.find(|number| {
        if !(parts.index.chunks()..memory.chunks()).contains(&number) {
            return Look::Forget;
        }
        let chunk = memory.region().chunk(number);
        let state = chunk.load();
        match state.kind() {
            Kind::Intact if chunk.is_nearly_dead() => {}
            Kind::Checked => return Look::Keep,
            _ => return Look::Forget,
        }
        if !chunk.has_dead(bytes, need) || chunk.is_pinned() {
            return Look::Keep;
        }
        let left = if chunk.is_dead() { Vec::new() } else { values(parts, number, 0) };
        let places = |value: &Hot| record::len_of(&value.key, value.value.len()).div_ceil(unit);
        if left.iter().map(places).sum::<usize>() + need >= bytes / unit {
            return Look::Keep;
        }
        let Ok(maker) = memory.remake(number) else { return Look::Keep };
        if chunk.load().life() != state.life() {
            // Another process has used it meanwhile.
            drop(maker.finish());
            return Look::Forget;
        }
        let mut empty = Empty::anew(memory, maker);
        for value in left {
            let Some((entry, record)) = empty.write(memory, value.parts()) else { break };
            record.set_hits(value.hits);
            value.is_now(parts, entry);
        }
        Look::Used(empty)
    })
}

/// Takes a chunk's values away. Its memory is given back where memory is short; else the chunk is the `spare` one.
fn empty<'a>(
    parts: &Parts<'a>,
    chunk: usize,
    is_short: bool,
    spare: &Cell<Option<Empty<'a>>>,
) -> Purge {
    let region = parts.memory.region();
    if is_short {
        return purge::purge(region, chunk);
    }
    let Ok(maker) = parts.memory.remake(chunk) else { return Purge::Pinned };
    // Its memory stays: giving it back and making it again takes longer than filling it.
    spare.set(Some(Empty::anew(parts.memory, maker)));
    Purge::Done
}

/// The chunk that goes next, but for some.
fn oldest(parts: &Parts<'_>, but: &[usize]) -> Option<(usize, Class)> {
    let region = parts.memory.region();
    let kept = stored(Class::Kept.priority());
    let now = region.facts().tick.load(Ordering::Relaxed);
    let (mut new, mut all) = (0, 0);
    let mut oldest: [Option<(u32, usize)>; 2] = [None; 2];
    for number in parts.index.chunks()..parts.memory.chunks() {
        let chunk = region.chunk(number);
        if chunk.load().kind() != Kind::Intact {
            continue;
        }
        let is_kept = chunk.priority.load(Ordering::Relaxed) == kept;
        all += 1;
        new += usize::from(!is_kept);
        if !chunk.is_pinned() && !but.contains(&number) {
            if chunk.is_nearly_dead() {
                return Some((number, if is_kept { Class::Kept } else { Class::New }));
            }
            let age = now.wrapping_sub(chunk.used.load(Ordering::Relaxed));
            let oldest = &mut oldest[usize::from(is_kept)];
            *oldest = (*oldest).max(Some((age, number)));
        }
    }
    let of = |class: Class| oldest[class as usize].map(|(_, number)| (number, class));
    match new * NEW_ONE_IN > all {
        true => of(Class::New).or_else(|| of(Class::Kept)),
        false => of(Class::Kept).or_else(|| of(Class::New)),
    }
}

/// Writes values among the kept ones, in `spare` where another chunk is needed for them.
fn write_again<'a>(parts: &Parts<'a>, hot: Vec<Hot>, spare: &Cell<Option<Empty<'a>>>) {
    for hot in hot {
        let gone = |_| match spare.take() {
            Some(chunk) => Ok(Some(chunk)),
            None => find_gone(parts.memory, parts.index),
        };
        let written = parts.writer.write(
            "SharedCache::insert",
            parts.memory,
            parts.index,
            Class::Kept,
            hot.parts(),
            gone,
        );
        let Ok(written) = written else { return };
        if let Some(record) = written.record() {
            record.set_hits(hot.hits.saturating_sub(1));
        }
        hot.is_now(parts, written.entry);
    }
}

/// The values of a chunk that were asked for at least so often, and that the index still has there. Behind the last record
/// there are zeros, or what is left of another life of the chunk, which the index does not name.
fn values(parts: &Parts<'_>, chunk: usize, least: u32) -> Vec<Hot> {
    let mut hot = Vec::new();
    let Ok(Some(_pin)) = parts.memory.read(chunk) else { return hot };
    let life = parts.memory.region().chunk(chunk).load().life();
    let unit = unit(parts.memory.chunk_size());
    let mut place = 1;
    while let Some(record) = parts.record(chunk, place).filter(|record| !record.is_none()) {
        let entry = Entry::new(record.hash(), chunk, life, place);
        if record.hits() >= least && is_named(parts, &record, entry) {
            hot.push(Hot {
                entry,
                hash: record.hash(),
                expires: record.expires(),
                hits: record.hits(),
                key: record.key().to_vec(),
                value: record.value().to_vec(),
            });
        }
        place += record.len().div_ceil(unit);
    }
    hot
}

/// Whether the index names just this record: bytes that a killed writer left are none.
fn is_named(parts: &Parts<'_>, record: &Record<'_>, entry: Entry) -> bool {
    let named = |_: &_, there: Entry| (there == entry).then_some(());
    parts.index.find(parts.memory, record.hash(), named).is_some()
}
