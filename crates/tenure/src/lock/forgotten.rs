//! Ranges that were unmapped since the ledger was last open.
//!
//! A signal handler may unmap memory while its thread has the ledger, and an allocator while the
//! program's code has the allocator's locks. So noting a range takes no lock and no memory. Who opens
//! the ledger next drops the claims on the noted ranges first.

use crate::range::PageRange;
use std::sync::atomic::{AtomicUsize, Ordering};

/// More ranges than there are pages in the usual limit on locked memory (8 MiB). 64 KiB, which take
/// memory only where they are used.
const MOST: usize = 4096;
const FREE: usize = 0;
const BUSY: usize = 1;

/// See the head of the module.
pub(super) struct Forgotten {
    notes: [Note; MOST],
    /// The number of notes. It may be too large for a moment, and is never too small.
    count: AtomicUsize,
}

struct Note {
    /// [`FREE`], [`BUSY`], or the start of a range.
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Forgotten {
    pub const fn new() -> Forgotten {
        Forgotten {
            notes: [const { Note { start: AtomicUsize::new(FREE), end: AtomicUsize::new(0) } };
                MOST],
            count: AtomicUsize::new(0),
        }
    }

    /// Notes a range. `false`: there is no room.
    pub fn note(&self, range: PageRange) -> bool {
        let first = self.count.fetch_add(1, Ordering::SeqCst);
        for at in 0..MOST {
            let note = &self.notes[(first + at) % MOST];
            let taken =
                note.start.compare_exchange(FREE, BUSY, Ordering::SeqCst, Ordering::Relaxed);
            if taken.is_ok() {
                note.end.store(range.end, Ordering::SeqCst);
                note.start.store(range.start, Ordering::SeqCst);
                return true;
            }
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
        false
    }

    /// Returns whether a note would find no room.
    pub fn is_full(&self) -> bool {
        self.count.load(Ordering::SeqCst) >= MOST
    }

    /// Takes all notes out. The caller has the ledger, so no other thread does this.
    pub fn take_all(&self, mut each: impl FnMut(PageRange)) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for note in &self.notes {
            let start = note.start.load(Ordering::SeqCst);
            if start > BUSY {
                let range = PageRange::new(start, note.end.load(Ordering::SeqCst));
                note.start.store(FREE, Ordering::SeqCst);
                self.count.fetch_sub(1, Ordering::SeqCst);
                each(range);
            }
        }
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
            assert!(!FORGOTTEN.is_full());
            assert!((0..number).all(|n| FORGOTTEN.note(page(n))));
            assert_eq!(FORGOTTEN.note(page(number)), number < MOST);
            let mut out = Vec::new();
            FORGOTTEN.take_all(|range| out.push(range.start / page_size() - 1));
            out.sort_unstable();
            assert_eq!(out, (0..MOST.min(number + 1)).collect::<Vec<_>>());
            FORGOTTEN.take_all(|_| unreachable!());
        }
    }
}
