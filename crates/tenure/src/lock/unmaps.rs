//! The locks of memory that is unmapped: by tenure, or by a mmap(2) in its place.
//!
//! A signal handler and an allocator may unmap. So nothing here allocates, and a wait for the ledger ends
//! after 1 ms.

use super::forgotten::Unmapping;
use super::ledger::{glance, outside, Ledger, FORGOTTEN, PLACES};
use crate::os::futex::Futex;
use crate::os::{clock, maps, page_size};
use crate::range::PageRange;
use std::time::Duration;

/// Returns whether tenure may know of a lock in the range.
pub(crate) fn may_be_locked(range: PageRange) -> bool {
    glance(|ledger| ledger.parts_in(range).next().is_some(), || PLACES.may_have(range))
        .unwrap_or(false)
}

/// Drops all claims on a range that is being unmapped, so that the next mapping there neither
/// inherits nor loses a lock. One load if nothing was locked through tenure. The ledger may drop the
/// claims when it is next used. (If 4,096 ranges are noted that cut a part or came while a thread had
/// the ledger, the claims stay.)
pub(crate) fn forget_unmapped(range: PageRange) -> Unmapping {
    let mut marked = None;
    let mut mark = |ledger: &mut Ledger| {
        marked = Some(ledger.mark_gone(range));
        false
    };
    let is_busy = glance(&mut mark, || PLACES.may_have(range)) == Some(true);
    if is_busy {
        // That thread may be about to unlock these pages, which must not be the next owner's then.
        glance_soon(|ledger| _ = mark(ledger));
    }
    let (number, is_to_be_noted) = marked.unwrap_or((0, is_busy));
    let note = if is_to_be_noted { FORGOTTEN.note(range) } else { None };
    Unmapping { range, number, note }
}

/// The kernel has not unmapped these parts of the range, which are in order: their locks are as before.
/// (Unless a thread has used locks meanwhile: then these pages stay locked until munlock(2).)
pub(crate) fn stays(unmapping: Unmapping, parts: &[PageRange]) {
    let Unmapping { range, number, note } = unmapping;
    let goes = |gone| _ = FORGOTTEN.note(gone);
    let take_back_note = || {
        if note.is_some_and(|note| FORGOTTEN.take_back(note, range)) {
            outside(parts, range, goes);
        }
    };
    // With a note alone this needs no ledger, which this thread may have: a signal handler unmaps, too.
    if number == 0 && (note.is_none() || parts.iter().all(|part| maps::is_mapped(*part))) {
        return take_back_note();
    }
    // If the ledger stays busy, the claims go: better than claims on what comes into a hole.
    glance_soon(|ledger| {
        take_back_note();
        if number > 0 {
            ledger.stays(parts, number, goes);
        }
        // A mmap(2) may fail when the old mapping is gone: for huge pages, for a file that refuses, and
        // before Linux 6.12 at the limit of memory.
        parts.iter().for_each(|part| forget_holes_in(ledger, *part));
    });
}

/// Drops the claims on memory of the range that is not mapped, unless a thread has the ledger for long.
#[cold]
pub(super) fn forget_holes(range: PageRange) {
    if may_be_locked(range) {
        glance_soon(|ledger| forget_holes_in(ledger, range));
    }
}

/// With the ledger: otherwise another thread could map and lock memory in a hole that was just found.
fn forget_holes_in(ledger: &mut Ledger, range: PageRange) {
    let mut at = range.start;
    while at < range.end {
        let rest = PageRange::new(at, range.end);
        let Some((start, end, _)) = ledger.parts_in(rest).next() else { return };
        let part = PageRange::new(start.max(at), end.min(range.end));
        each_hole(part, |hole| {
            let (_, cuts) = ledger.mark_gone(hole);
            if cuts {
                FORGOTTEN.note(hole);
            }
        });
        at = part.end;
    }
}

fn each_hole(range: PageRange, mut hole: impl FnMut(PageRange)) {
    if maps::is_mapped(range) {
        return;
    }
    let mut at = range.start;
    let mut next_mapping = |start: usize, end: usize| {
        if at < start {
            hole(PageRange::new(at, start));
        }
        at = at.max(end);
    };
    let listed = maps::each_mapping(range, |mapping| next_mapping(mapping.start, mapping.end));
    if listed.is_err() {
        // No descriptor is free, or there is no /proc: 130 ns for each page. Pages behind the most of
        // them count as a hole: they stay locked, if they are mapped.
        const MOST: usize = 8192;
        let pages = range.pieces(page_size()).take(MOST).filter(|page| maps::is_mapped(*page));
        pages.for_each(|page| next_mapping(page.start, page.end));
    }
    next_mapping(range.end, range.end);
}

/// As [`glance`], but asks again while a thread has the ledger, for about 1 ms. If the ledger is still
/// busy, its thread takes long, or it is this one, and a signal handler asks. No system call but futex(2),
/// which each lock needs: a filter may kill for others, as sched_yield(2).
fn glance_soon(mut look: impl FnMut(&mut Ledger)) {
    const LONGEST: Duration = Duration::from_millis(1);
    /// Most threads have the ledger for less.
    const AWAKE: Duration = Duration::from_micros(10);
    const NAP: Duration = Duration::from_micros(20);
    let mut looked = |ledger: &mut Ledger| {
        look(ledger);
        true
    };
    let (nobody_wakes, begun) = (Futex::new(0), clock::monotonic());
    while glance(&mut looked, || false) == Some(false) {
        let waited = clock::monotonic().saturating_sub(begun);
        if waited >= LONGEST {
            return;
        } else if waited >= AWAKE {
            nobody_wakes.wait(0, Some(NAP));
        } else {
            std::hint::spin_loop();
        }
    }
}
