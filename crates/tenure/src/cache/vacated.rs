//! Notes of places that no key leads to any more, for [`reuse`](super::reuse).

use super::place::Place;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// How many places are noted of each lane. More than one: threads may have the segments of some pinned just now.
const PLACES: usize = 8;

/// Where values were that threads of a lane have overwritten.
pub(super) struct Vacated {
    notes: [Note; PLACES],
    /// The note that is written next where all are in use.
    next: AtomicU32,
}

/// A place without a value.
struct Note {
    /// See [`Place`]; 0: there is none.
    place: AtomicU64,
    /// The bytes that it is good for, if the value was as long as the one that overwrote it. Only a hint: the value's
    /// header tells.
    need: AtomicU64,
}

impl Vacated {
    pub fn new() -> Vacated {
        let note = || Note { place: AtomicU64::new(0), need: AtomicU64::new(0) };
        Vacated { notes: std::array::from_fn(|_| note()), next: AtomicU32::new(0) }
    }

    /// Notes a place of perhaps `need` bytes that no key leads to any more. Another one may be forgotten: it is
    /// found when its segment is emptied.
    pub fn put(&self, place: Place, need: usize) {
        let free = self.notes.iter().find(|note| note.place.load(Ordering::Relaxed) == 0);
        let note = free.unwrap_or_else(|| {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            &self.notes[next as usize % self.notes.len()]
        });
        note.need.store(need as u64, Ordering::Relaxed);
        // Release: the thread that takes it sees that the key leads elsewhere.
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

    /// Takes one of the places of `need` bytes that `look` finds good. The segment may have changed since the look.
    pub fn take(&self, need: usize, look: impl Fn(Place) -> Good) -> Option<Place> {
        self.notes.iter().find_map(|note| {
            if note.need.load(Ordering::Relaxed) != need as u64 {
                return None;
            }
            let place = Place::decode(note.place.load(Ordering::Relaxed))?;
            let good = look(place);
            // Acquire: see `put`. The exchange: no other thread has the place.
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
