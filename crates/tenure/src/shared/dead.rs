//! Which chunks of a shared cache are nearly dead: their values were overwritten, removed, or are
//! over. The cache uses such a chunk again before it takes more memory. It takes the chunk that
//! died last: a processor may still have it in its cache.
//!
//! A chunk's record counts how much of it is dead, and the cache's root notes the numbers of such
//! chunks. Both are hints. A killed process may leave a count too small, and a full root replaces a
//! number by another one. Then the chunk goes when it is the oldest.

use super::chunk::Chunk;
use super::entry::unit;
use crate::sync::{AtomicU32, Ordering};

/// A whole chunk. Its first place has no value and is dead from the beginning.
const ALL: u16 = u16::MAX;
/// From here on the cache uses a chunk again. It first writes the rest, at most an eighth of its
/// bytes, again.
const NEARLY_ALL: u16 = ALL - ALL / 8;
/// The root notes this many chunks at a time.
const NOTED: usize = 64;

impl Chunk<'_> {
    /// The chunk has only new values, from its first place on.
    pub fn begin_to_live(&self, bytes: usize) {
        self.dead.store((part(bytes, 1) - 1) as u16, Ordering::Relaxed);
    }

    pub fn is_nearly_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) >= NEARLY_ALL
    }

    /// Returns whether this many places are dead.
    pub fn has_dead(&self, bytes: usize, places: usize) -> bool {
        usize::from(self.dead.load(Ordering::Relaxed)) >= part(bytes, places)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) == ALL
    }
}

/// Returns this many places of a chunk of `bytes` bytes, in 65,536ths of the chunk.
fn part(bytes: usize, places: usize) -> usize {
    places * unit(bytes) * (usize::from(ALL) + 1) / bytes
}

/// The numbers of nearly dead chunks, plus one. 0: none.
#[repr(transparent)]
pub(super) struct DeadChunks([AtomicU32; NOTED]);

/// What the search does with a noted number.
pub(super) enum Look<R> {
    /// It is not nearly dead any more.
    Forget,
    /// It cannot be used now.
    Keep,
    Used(R),
}

impl DeadChunks {
    /// Counts this many dead places of a chunk of `bytes` bytes. The caller has the chunk pinned,
    /// in the life in which the places died.
    pub fn count(&self, chunk: Chunk<'_>, number: usize, bytes: usize, places: usize) {
        let more = u16::try_from(part(bytes, places)).unwrap_or(ALL);
        let add = |dead: u16| Some(dead.saturating_add(more));
        let _ = chunk.dead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        if chunk.is_nearly_dead() {
            self.note(number);
        }
    }

    fn note(&self, number: usize) {
        let number = number as u32 + 1;
        for place in &self.0 {
            match place.load(Ordering::Relaxed) {
                0 => {
                    let (to, order) = (number, Ordering::Relaxed);
                    if place.compare_exchange(0, to, order, order).is_ok() {
                        return;
                    }
                }
                there if there == number => return,
                _ => {}
            }
        }
        // The noted chunks may be useless: pinned for long, or too full for the new values.
        self.0[number as usize % NOTED].store(number, Ordering::Relaxed);
    }

    /// Calls `look` with each number, the latest first, until `look` has used one.
    pub fn find<R>(&self, mut look: impl FnMut(usize) -> Look<R>) -> Option<R> {
        for place in self.0.iter().rev() {
            let there = place.load(Ordering::Relaxed);
            let Some(number) = there.checked_sub(1) else { continue };
            let used = match look(number as usize) {
                Look::Keep => continue,
                Look::Forget => None,
                Look::Used(used) => Some(used),
            };
            let _ = place.compare_exchange(there, 0, Ordering::Relaxed, Ordering::Relaxed);
            if used.is_some() {
                return used;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU16, AtomicU64, AtomicU8};

    #[test]
    fn all_places_of_a_chunk_are_all_of_it() {
        let (state, used) = (AtomicU64::new(0), AtomicU32::new(0));
        let (priority, dead) = (AtomicU8::new(0), AtomicU16::new(7));
        let chunk =
            Chunk { state: &state, used: &used, priority: &priority, dead: &dead, pins: &[] };
        let noted = DeadChunks([const { AtomicU32::new(0) }; NOTED]);
        for bytes in [16 << 10, 64 << 10, 1 << 20, 16 << 20] {
            let places = bytes / unit(bytes);
            chunk.begin_to_live(bytes);
            noted.count(chunk, 3, bytes, places / 8 * 7 - 1);
            assert!(!chunk.is_nearly_dead(), "{bytes}");
            assert!(noted.find(Look::Used).is_none());
            noted.count(chunk, 3, bytes, 1);
            assert!(chunk.is_nearly_dead() && !chunk.is_dead(), "{bytes}");
            noted.count(chunk, 3, bytes, places / 8 - 1);
            assert!(chunk.is_dead() && chunk.has_dead(bytes, places - 1), "{bytes}");
            assert_eq!((noted.find(Look::Used), noted.find(Look::Used)), (Some(3), None));
        }
    }

    #[test]
    fn the_last_noted_is_found_first() {
        let noted = DeadChunks([const { AtomicU32::new(0) }; NOTED]);
        (0..100).for_each(|number| noted.note(number));
        assert_eq!(noted.find(Look::Used), Some(NOTED - 1));
        let even = |number: usize| if number % 2 == 0 { Look::Used(number) } else { Look::Keep };
        assert_eq!(noted.find(even), Some(NOTED - 2));
        let small = |number: usize| if number < 9 { Look::Used(number) } else { Look::Forget };
        // Numbers that came when all places were taken have replaced others.
        assert_eq!((noted.find(small), noted.find(Look::Used)), (Some(0), None));
        (0..9).for_each(|number| noted.note(number));
        assert_eq!((noted.find(small), noted.find(Look::Used)), (Some(8), Some(7)));
    }
}
