//! Which chunks of a shared cache are nearly dead: what they held was overwritten, taken out, or is over. Such a chunk is
//! used again before the cache takes more memory. Of several it is the one that died last: a processor may still have it in
//! its cache.
//!
//! A chunk's record counts how much of it is dead, and the cache's root notes the numbers of such chunks. Both are hints.
//! A process that is killed may leave a count too small, and where the root has no room a number takes another one's place. Then
//! the chunk goes when it is the oldest.

use super::chunk::Chunk;
use super::entry::unit;
use crate::sync::{AtomicU32, Ordering};

/// All of a chunk. Its first place, which has no value, is dead from the beginning.
const ALL: u16 = u16::MAX;
/// From here on a chunk is used again. The rest, at most an eighth of its bytes, is written again first.
const NEARLY_ALL: u16 = ALL - ALL / 8;
/// So many chunks are noted at a time.
const NOTED: usize = 64;

impl Chunk<'_> {
    /// It has new values only, from its first place on.
    pub fn begin_to_live(&self, bytes: usize) {
        self.dead.store((part(bytes, 1) - 1) as u16, Ordering::Relaxed);
    }

    pub fn is_nearly_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) >= NEARLY_ALL
    }

    /// Whether so many places are dead.
    pub fn has_dead(&self, bytes: usize, places: usize) -> bool {
        usize::from(self.dead.load(Ordering::Relaxed)) >= part(bytes, places)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) == ALL
    }
}

/// So many places of a chunk of `bytes` bytes, in 65,536ths of it.
fn part(bytes: usize, places: usize) -> usize {
    places * unit(bytes) * (usize::from(ALL) + 1) / bytes
}

/// The numbers of chunks that are nearly dead, and one. 0: none.
#[repr(transparent)]
pub(super) struct DeadChunks([AtomicU32; NOTED]);

/// What to do with a number that was noted.
pub(super) enum Look<R> {
    /// It is not nearly dead any more.
    Forget,
    /// It cannot be used now.
    Keep,
    Used(R),
}

impl DeadChunks {
    /// So many places of a chunk of `bytes` bytes are dead from here on. The caller has it pinned, in their life of it.
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
        // Those that are noted are perhaps of no use to anybody: pinned for long, or too full for what is put in.
        self.0[number as usize % NOTED].store(number, Ordering::Relaxed);
    }

    /// Calls `look` with each number, the latest first, until it has used one.
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
        // Those that came when there was no room any more have others' places.
        assert_eq!((noted.find(small), noted.find(Look::Used)), (Some(0), None));
        (0..9).for_each(|number| noted.note(number));
        assert_eq!((noted.find(small), noted.find(Look::Used)), (Some(8), Some(7)));
    }
}
