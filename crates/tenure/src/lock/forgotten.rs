//! What an unmap leaves for the next use of the ledger.
//!
//! A signal handler may unmap memory while its thread has the ledger, and an allocator while the
//! program's code has the allocator's locks. So an unmap does not allocate, and waits for the ledger for
//! 1 ms at most. If it gets the ledger, it marks the parts that go in it. Otherwise, and for a part of a
//! part, it notes the range here.

use crate::os::HUGE_PAGE;
use crate::range::PageRange;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// More ranges than there are pages in the usual limit on locked memory (8 MiB). 64 KiB, which take
/// memory only where they are used.
const MOST: usize = 4096;
const FREE: usize = 0;
const BUSY: usize = 1;

/// What [`forget_unmapped`](super::forget_unmapped) has done, so that it can be undone.
#[derive(Clone, Copy, Debug)]
#[must_use = "the kernel may not unmap the range"]
pub(crate) struct Unmapping {
    pub(super) range: PageRange,
    /// The number of the mark that it left in the ledger; 0: none.
    pub(super) number: u32,
    /// The place of its note.
    pub(super) note: Option<usize>,
}

/// The noted ranges.
pub(super) struct Forgotten {
    notes: [Note; MOST],
    /// The number of notes. It may be too large for a moment, and is never too small.
    count: AtomicUsize,
    /// How often notes were taken out.
    taken: AtomicUsize,
}

struct Note {
    /// [`FREE`], [`BUSY`], or the start of a range.
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Note {
    fn range(&self) -> Option<PageRange> {
        let start = self.start.load(Ordering::SeqCst);
        // The end may be another note's by now.
        (start > BUSY).then(|| PageRange { start, end: self.end.load(Ordering::SeqCst) })
    }
}

impl Forgotten {
    pub const fn new() -> Forgotten {
        Forgotten {
            notes: [const { Note { start: AtomicUsize::new(FREE), end: AtomicUsize::new(0) } };
                MOST],
            count: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    }

    /// Notes a range, and returns the note's place. `None`: a note has it already, or there is no room.
    pub fn note(&self, range: PageRange) -> Option<usize> {
        let has = |note: &Note| {
            note.range().is_some_and(|noted| noted.start <= range.start && range.end <= noted.end)
        };
        let taken = self.taken.load(Ordering::SeqCst);
        let first = self.count.fetch_add(1, Ordering::SeqCst);
        let is_noted = first > 0 && self.notes.iter().any(has);
        // A note that is taken out meanwhile may have come before this unmap.
        let is_noted = is_noted && self.taken.load(Ordering::SeqCst) == taken;
        for at in 0..if is_noted { 0 } else { MOST } {
            let place = (first + at) % MOST;
            let note = &self.notes[place];
            let taken =
                note.start.compare_exchange(FREE, BUSY, Ordering::SeqCst, Ordering::Relaxed);
            if taken.is_ok() {
                note.end.store(range.end, Ordering::SeqCst);
                note.start.store(range.start, Ordering::SeqCst);
                return Some(place);
            }
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
        None
    }

    /// Takes a note back. `false`: it was taken out.
    pub fn take_back(&self, place: usize, range: PageRange) -> bool {
        self.take(&self.notes[place], |noted| noted == range).is_some()
    }

    /// Takes a note out if its range is `wanted`.
    fn take(&self, note: &Note, wanted: impl Fn(PageRange) -> bool) -> Option<PageRange> {
        let start = note.range().filter(|range| wanted(*range))?.start;
        let (order, failed) = (Ordering::SeqCst, Ordering::Relaxed);
        note.start.compare_exchange(start, BUSY, order, failed).ok()?;
        // No other thread changes it now.
        let range = PageRange { start, end: note.end.load(Ordering::SeqCst) };
        if !wanted(range) {
            note.start.store(start, Ordering::SeqCst);
            return None;
        }
        self.taken.fetch_add(1, Ordering::SeqCst);
        note.start.store(FREE, Ordering::SeqCst);
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(range)
    }

    /// Takes all notes out. The caller has the ledger, so no other thread does this, but one may take a
    /// note back.
    pub fn take_all(&self, mut each: impl FnMut(PageRange)) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.notes.iter().filter_map(|note| self.take(note, |_| true)).for_each(&mut each);
    }

    /// Drops all notes. (If a child's parent forked in the midst of one, its place stays taken.)
    pub fn clear(&self) {
        self.take_all(|_| ());
    }
}

/// Where the ledger may have entries, for a thread that cannot look into it: a bit for each place,
/// which many addresses share.
pub(super) struct Places([AtomicU64; 64]);

const PLACES: usize = 64 * 64;

impl Places {
    pub const fn new() -> Places {
        Places([const { AtomicU64::new(0) }; 64])
    }

    fn numbers(range: PageRange) -> impl Iterator<Item = usize> {
        let (first, last) = (range.start / HUGE_PAGE, (range.end - 1) / HUGE_PAGE);
        // From so many on all places occur.
        (first..=last).take(PLACES).map(|number| number % PLACES)
    }

    pub fn add(&self, range: PageRange) {
        for number in Places::numbers(range) {
            self.0[number / 64].fetch_or(1 << (number % 64), Ordering::SeqCst);
        }
    }

    pub fn may_have(&self, range: PageRange) -> bool {
        let has =
            |number: usize| self.0[number / 64].load(Ordering::SeqCst) & 1 << (number % 64) != 0;
        Places::numbers(range).any(has)
    }

    pub fn clear(&self) {
        // The ledger's lock orders this with `add`.
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::page_size;

    #[test]
    fn as_many_notes_as_there_is_room_for_come_out_once() {
        static FORGOTTEN: Forgotten = Forgotten::new();
        let page = |n: usize| PageRange::new((n + 1) * page_size(), (n + 2) * page_size());
        for round in 0..3 {
            let number = if round == 1 { 10 } else { MOST };
            assert!((0..number).all(|n| FORGOTTEN.note(page(n)).is_some()));
            assert!((0..number).step_by(97).all(|n| FORGOTTEN.note(page(n)).is_none()), "noted");
            assert_eq!(FORGOTTEN.note(page(number)).is_some(), number < MOST);
            let mut out = Vec::new();
            FORGOTTEN.take_all(|range| out.push(range.start / page_size() - 1));
            out.sort_unstable();
            assert_eq!(out, (0..MOST.min(number + 1)).collect::<Vec<_>>());
            FORGOTTEN.take_all(|_| unreachable!());
        }
        let place = FORGOTTEN.note(page(1)).unwrap();
        assert!(!FORGOTTEN.take_back(place, page(2)) && FORGOTTEN.take_back(place, page(1)));
        assert!(!FORGOTTEN.take_back(place, page(1)));
        FORGOTTEN.note(page(1));
        FORGOTTEN.clear();
        FORGOTTEN.take_all(|_| unreachable!());
        assert_eq!(FORGOTTEN.count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_place_is_found_wherever_the_range_ends() {
        let places = Places::new();
        let range = |from: usize, to: usize| PageRange::new(from * HUGE_PAGE, to * HUGE_PAGE);
        places.add(range(10, 12));
        assert!(places.may_have(range(11, 12)) && places.may_have(range(9, 11)));
        assert!(!places.may_have(range(8, 10)) && !places.may_have(range(12, 13)));
        assert!(places.may_have(range(20, 20 + 2 * PLACES)));
        places.clear();
        assert!(!places.may_have(range(0, 3 * PLACES)));
    }
}
