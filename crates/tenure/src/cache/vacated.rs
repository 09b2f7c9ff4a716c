//! Notes of places that no key leads to any more, for [`reuse`](super::reuse).

use super::place::Place;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// How many places each lane notes. More than one, because other threads may have some of the
/// segments pinned.
const PLACES: usize = 8;

/// Places of values that a lane's threads have overwritten.
pub(super) struct Vacated {
    notes: [Note; PLACES],
    /// The note that is written next if all are in use.
    next: AtomicU32,
}

/// A place without a value.
struct Note {
    /// See [`Place`]; 0: there is none.
    place: AtomicU64,
    /// The bytes that the place has, if its value was as long as the one that overwrote it. This is
    /// only a hint: the value's header decides.
    need: AtomicU64,
}

impl Vacated {
    pub fn new() -> Vacated {
        let note = || Note { place: AtomicU64::new(0), need: AtomicU64::new(0) };
        Vacated { notes: std::array::from_fn(|_| note()), next: AtomicU32::new(0) }
    }

    /// Notes a place of perhaps `need` bytes that no key leads to any more. The call may forget
    /// another place: the cache finds that one when it empties the segment.
    pub fn put(&self, place: Place, need: usize) {
        let free = self.notes.iter().find(|note| note.place.load(Ordering::Relaxed) == 0);
        let note = free.unwrap_or_else(|| {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            &self.notes[next as usize % self.notes.len()]
        });
        note.need.store(need as u64, Ordering::Relaxed);
        // Release: the thread that takes the note sees that the key leads elsewhere.
        note.place.store(place.0, Ordering::Release);
    }

    /// Forgets the places in a segment.
    pub fn forget(&self, segment: u32) {
        for note in &self.notes {
            let of_segment = |place: u64| Place(place).segment() == segment;
            let forget = |place: u64| of_segment(place).then_some(0);
            let _ = note.place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, forget);
        }
    }

    /// Takes one of the places of `need` bytes that `look` finds good. The segment may have changed
    /// since `look`.
    pub fn take(&self, need: usize, look: impl Fn(Place) -> Good) -> Option<Place> {
        self.notes.iter().find_map(|note| {
            if note.need.load(Ordering::Relaxed) != need as u64 {
                return None;
            }
            let place = Place::decode(note.place.load(Ordering::Relaxed))?;
            let good = look(place);
            // Acquire: see `put`. The exchange ensures that no other thread has the place.
            let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
            let taken = good != Good::NotNow
                && note.place.compare_exchange(place.0, 0, order, failed).is_ok();
            (taken && good == Good::Yes).then_some(place)
        })
    }
}

/// Whether a value may be put at a place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Good {
    Yes,
    NotNow,
    Never,
}
