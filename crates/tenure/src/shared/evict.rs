//! Which values of a shared cache go when it needs a chunk: S3-FIFO, in steps of chunks.
//!
//! New values have a tenth of the chunks, and kept values have the rest. Each class keeps the order
//! in which its chunks were opened, and its oldest chunk goes. Values that were used meanwhile are
//! first written again, among the kept ones. A chunk that is nearly [dead](super::dead) goes before
//! all others, and before the cache takes more memory.

use super::chunk::Purge;
use super::dead::Look;
use super::entry::{unit, Entry};
use super::parts::Parts;
use super::record::{Origin, Record};
use super::state::Kind;
use super::writer::{find_gone, Class, Empty};
use super::{list, purge, record, room, stored};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering};
use std::cell::Cell;
use std::time::Duration;

/// One in this many chunks has new values.
const NEW_ONE_IN: usize = 10;
/// A new value with this many uses is kept, and a kept value with this many stays.
const KEEP_NEW: u32 = 1;
const KEEP_KEPT: u32 = 1;
/// At most this many chunks are emptied with their used values written again. Then a chunk goes
/// with all its values.
const TRIES: usize = 3;
/// For this many milliseconds the cache looks for an unpinned chunk. The second limit applies after
/// a fork: the child may have all chunks pinned until it has run.
const PATIENCE: u32 = 10;
const FORK_PATIENCE: u32 = 500;

/// A value that will be written again.
struct Hot {
    entry: Entry,
    hash: u64,
    expires: u64,
    hits: u32,
    origin: Origin,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Hot {
    /// Returns hash, end, key and value.
    fn parts(&self) -> (u64, u64, &[u8], &[u8]) {
        (self.hash, self.expires, &self.key, &self.value)
    }

    /// Makes the index lead to the new place, if it still leads to the old one.
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

/// Returns a chunk for new values, pinned, with this many places free. If there is no empty chunk,
/// or no memory for one, the oldest chunk goes. Returns `None` if every chunk stays pinned for some
/// milliseconds.
///
/// # Errors
/// The kernel has refused memory, and every chunk that has some stays pinned.
pub(super) fn empty_chunk<'a>(parts: &Parts<'a>, need: usize) -> Result<Option<Empty<'a>>> {
    if let Some(chunk) = dead_chunk(parts, need) {
        return Ok(Some(chunk));
    }
    let (mut emptied, mut waited) = (0, 0);
    // After the kernel has refused memory, the cache asks for no more: a chunk that is emptied keeps
    // its own.
    let mut refused = None;
    loop {
        let mut pinned = Vec::new();
        loop {
            let is_short = refused.is_none() && room::is_short(parts.memory.chunk_size() as u64);
            if !is_short {
                if let Some(chunk) = make_gone(parts, &mut refused) {
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
                // The kernel takes no memory, so emptying other chunks frees none either.
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
        // If memory is short, making the chunk purges others.
        if refused.is_none() {
            if let Some(chunk) = make_gone(parts, &mut refused) {
                return Ok(Some(chunk));
            }
            if refused.is_some() {
                continue;
            }
        }
        // Readers pin a chunk for a moment. In a small cache they may have all chunks pinned.
        let is_forking = parts.memory.region().forks().is_none();
        if waited >= if is_forking { FORK_PATIENCE } else { PATIENCE } {
            return refused.map_or(Ok(None), Err);
        }
        if waited == 0 {
            // The processes that have chunks pinned may have died, and no worker may have looked
            // yet.
            list::look_who_lives(parts.memory.region());
        }
        waited += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// As [`find_gone`], unless the kernel has `refused` memory.
fn make_gone<'a>(parts: &Parts<'a>, refused: &mut Option<Error>) -> Option<Empty<'a>> {
    if refused.is_some() {
        return None;
    }
    find_gone(parts.memory, parts.index).unwrap_or_else(|error| {
        *refused = Some(error);
        None
    })
}

/// Returns a chunk that was nearly dead, with the rest of its values and this many places free.
/// Returns `None` if there is none now.
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
            record.set_origin(value.origin);
            value.is_now(parts, entry);
        }
        Look::Used(empty)
    })
}

/// Removes a chunk's values. If memory is short, gives its memory back. Otherwise the chunk becomes
/// the `spare` one.
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

/// Returns the chunk that goes next, except for the chunks in `but`.
fn oldest(parts: &Parts<'_>, but: &[usize]) -> Option<(usize, Class)> {
    let region = parts.memory.region();
    let kept = stored(Class::Kept.priority());
    let now = region.facts().tick.load(Ordering::Relaxed);
    let (mut new, mut all) = (0, 0);
    let mut oldest: [Option<(u32, usize)>; 2] = [None; 2];
    let mut dead = None;
    region.each_recorded(|number| {
        let chunk = region.chunk(number);
        let is_of_index = number < parts.index.chunks();
        if is_of_index || dead.is_some() || chunk.load().kind() != Kind::Intact {
            return;
        }
        let is_kept = chunk.priority.load(Ordering::Relaxed) == kept;
        all += 1;
        new += usize::from(!is_kept);
        if !chunk.is_pinned() && !but.contains(&number) {
            if chunk.is_nearly_dead() {
                dead = Some((number, if is_kept { Class::Kept } else { Class::New }));
            }
            let oldest = &mut oldest[usize::from(is_kept)];
            *oldest = (*oldest).max(Some((chunk.age(now), number)));
        }
    });
    if dead.is_some() {
        return dead;
    }
    let of = |class: Class| oldest[class as usize].map(|(_, number)| (number, class));
    match new * NEW_ONE_IN > all {
        true => of(Class::New).or_else(|| of(Class::Kept)),
        false => of(Class::Kept).or_else(|| of(Class::New)),
    }
}

/// Writes values among the kept ones. If they need another chunk, takes `spare`.
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
            record.set_origin(hot.origin);
        }
        hot.is_now(parts, written.entry);
    }
}

/// Returns the values of a chunk with at least this many uses that have not expired and to which
/// the index still leads. A value that is not yet there for gets is not one of them: its maker has
/// the chunk pinned, or is dead. After the last record come zeros, or remains of another life of the
/// chunk, to which the index does not lead.
fn values(parts: &Parts<'_>, chunk: usize, least: u32) -> Vec<Hot> {
    let mut hot = Vec::new();
    let Ok(Some(_pin)) = parts.memory.read(chunk) else { return hot };
    let life = parts.memory.region().chunk(chunk).load().life();
    let unit = unit(parts.memory.chunk_size());
    let mut place = 1;
    while let Some(record) = parts.record(chunk, place).filter(|record| !record.is_none()) {
        let entry = Entry::new(record.hash(), chunk, life, place);
        let (origin, counts) = (record.origin(), record.hits() >= least && !record.has_expired());
        if counts && origin != Origin::Pending && is_named(parts, &record, entry) {
            hot.push(Hot {
                entry,
                origin,
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

/// Returns whether the index leads to exactly this record. It does not lead to bytes that a killed
/// writer left.
fn is_named(parts: &Parts<'_>, record: &Record<'_>, entry: Entry) -> bool {
    let named = |_: &_, there: Entry| (there == entry).then_some(());
    parts.index.find(parts.memory, record.hash(), named).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::SharedCache;

    #[test]
    fn an_expired_value_is_not_written_again() {
        for (time, stay) in [(Duration::from_secs(3600), 1), (Duration::from_millis(1), 0)] {
            let cache = SharedCache::builder().most(64 << 20).time_to_live(time).build().unwrap();
            cache.insert(b"key", b"value").unwrap();
            std::thread::sleep(Duration::from_millis(5));
            let parts = cache.parts();
            let chunks = parts.index.chunks()..parts.memory.chunks();
            let stays: usize = chunks.map(|chunk| values(&parts, chunk, 0).len()).sum();
            assert_eq!(stays, stay, "{time:?}");
        }
    }
}
