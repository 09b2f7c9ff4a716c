//! The claims on this process's pages, by address.
//!
//! Only claims that the kernel cannot remember count: guards, and pages that were locked in both
//! ways without a guard. All other locks are as smaps shows them. The ledger keeps as a hint that
//! tenure made such a lock, so that a repeated call reads no smaps.

#![allow(unsafe_code, reason = "keeps one ledger for each process, by pointer")]

use super::claims::Claims;
use super::forgotten::{Forgotten, Places};
use super::When;
use crate::os::generation;
use crate::range::PageRange;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// See the head of the module.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Start of each part, with its end and its claims; plain claims are hints.
    parts: BTreeMap<usize, (usize, Claims)>,
    /// The last `mlockall` setting for future mappings, if the call went through tenure.
    pub future: Option<When>,
    /// A part may be [owed](Claims::owed).
    pub owes: bool,
    /// A part may be [gone](Claims::gone).
    has_gone: bool,
    /// The number of the last unmap that made a part go.
    unmaps: u32,
    /// It was open before.
    is_begun: bool,
    /// The number of guards.
    guards: usize,
    /// How often a part of a guard's range was unmapped.
    clock: u64,
    /// Unmapped ranges, while guards from before exist: these guards have no claim on the mapping
    /// that is there now.
    unmapped: Vec<Unmapped>,
}

/// Memory that was unmapped while guards held it.
#[derive(Clone, Copy, Debug)]
struct Unmapped {
    range: PageRange,
    when: u64,
    /// How many of those guards are left. Each of them covers the whole range.
    guards: u32,
}

/// A process's ledger. A child gets a new one at its first use, because it has inherited no lock.
/// The parent's ledger is not touched, because another thread may have held it over the fork.
struct Home {
    generation: u64,
    ledger: Mutex<Ledger>,
}

/// For the whole process: locks are on the pages of a process, whichever thread makes them. Null
/// before the first use.
static HOME: AtomicPtr<Home> = AtomicPtr::new(std::ptr::null_mut());

fn home() -> &'static Home {
    let generation = generation::current();
    let mut at = HOME.load(Ordering::Acquire);
    loop {
        // SAFETY: a stored pointer comes from a box that was leaked below and is never freed.
        if let Some(home) = unsafe { at.as_ref() } {
            if home.generation == generation {
                return home;
            }
        }
        let new = Box::into_raw(Box::new(Home { generation, ledger: Mutex::default() }));
        match HOME.compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just leaked, and never freed once it is stored.
            Ok(_) => return unsafe { &*new },
            Err(other) => {
                // SAFETY: the pointer was not stored, so only this call has it.
                drop(unsafe { Box::from_raw(new) });
                at = other;
            }
        }
    }
}

/// For the whole process, as [`HOME`] is.
pub(super) static FORGOTTEN: Forgotten = Forgotten::new();
/// For the whole process, as [`HOME`] is.
pub(super) static PLACES: Places = Places::new();

/// Returns this process's ledger. Its lock orders all changes that tenure makes to locks.
pub(super) fn open() -> MutexGuard<'static, Ledger> {
    let mut ledger = home().ledger.lock().unwrap_or_else(PoisonError::into_inner);
    if !std::mem::replace(&mut ledger.is_begun, true) {
        // What the parent has noted is not the child's.
        FORGOTTEN.clear();
        PLACES.clear();
    }
    ledger.forget_all_gone();
    FORGOTTEN.take_all(|range| ledger.forget_unmapped(range));
    if ledger.parts.is_empty() {
        PLACES.clear();
    }
    ledger
}

/// Returns the ledger of that generation; `None` in a child, which has none of its parent's claims.
pub(super) fn open_if(generation: u64) -> Option<MutexGuard<'static, Ledger>> {
    (generation::current() == generation).then(open)
}

/// Returns what `look` finds in the ledger; `None` if this process has none yet, and `busy` if a
/// thread has it. Allocates nothing and does not wait.
pub(super) fn glance<R>(
    look: impl FnOnce(&mut Ledger) -> R,
    busy: impl FnOnce() -> R,
) -> Option<R> {
    // SAFETY: the pointer is null, or a `Home` that was leaked before it was stored and is never
    // freed.
    let home = unsafe { HOME.load(Ordering::Acquire).as_ref() }?;
    (home.generation == generation::current()).then(|| match home.ledger.try_lock() {
        Ok(mut ledger) => look(&mut ledger),
        Err(TryLockError::Poisoned(poisoned)) => look(&mut poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => busy(),
    })
}

/// Calls `gone` for what a range has outside the parts that stay.
pub(super) fn outside(stays: &[PageRange], range: PageRange, mut gone: impl FnMut(PageRange)) {
    let mut at = range.start;
    for part in stays.iter().filter(|part| part.end > range.start && part.start < range.end) {
        if at < part.start {
            gone(PageRange::new(at, part.start));
        }
        at = part.end;
    }
    if at < range.end {
        gone(PageRange::new(at, range.end));
    }
}

impl Ledger {
    /// Adds a guard. Returns the time, for [`Ledger::still`].
    pub fn guard_comes(&mut self) -> u64 {
        self.guards += 1;
        self.clock
    }

    /// Removes the guard of this range that was added at that time.
    pub fn guard_goes(&mut self, range: PageRange, since: u64) {
        self.guards = self.guards.saturating_sub(1);
        if self.guards == 0 {
            self.unmapped.clear();
        }
        // In the order of time: a guard counts for an unmapped range with the parts that it still had
        // then.
        let mut parts = Parts::of(range);
        let mut before = std::mem::take(&mut self.unmapped);
        before.sort_by_key(|gone| gone.when);
        for gone in before {
            if gone.when <= since {
                self.unmapped.push(gone);
                continue;
            }
            let mut others = Parts::of(gone.range);
            for range in parts.cut_out(gone.range) {
                others.cut_out(range);
                if gone.guards > 1 {
                    self.unmapped.push(Unmapped { range, guards: gone.guards - 1, ..gone });
                }
            }
            self.unmapped.extend(others.all().map(|range| Unmapped { range, ..gone }));
        }
    }

    /// Returns the parts of a guard's range that have not been unmapped since it was added.
    pub fn still(&self, range: PageRange, since: u64) -> Vec<PageRange> {
        let mut parts = Parts::of(range);
        for gone in self.unmapped.iter().filter(|gone| gone.when > since) {
            parts.cut_out(gone.range);
        }
        parts.all().collect()
    }

    /// Returns the parts that reach into the range and are not gone, with their ends and claims.
    pub fn parts_in(&self, range: PageRange) -> impl Iterator<Item = (usize, usize, &Claims)> {
        let before = self.parts.range(..range.start).next_back();
        let before = before.filter(move |(_, (end, _))| *end > range.start);
        let inside = self.parts.range(range.start..range.end);
        let all = before.into_iter().chain(inside).map(|(start, (end, of))| (*start, *end, of));
        all.filter(|(_, _, claims)| claims.gone == 0)
    }

    /// Marks the parts that are inside the range as gone. Returns the number of the mark, and whether
    /// the range also cuts a part, which this does not change. Allocates nothing.
    pub fn mark_gone(&mut self, range: PageRange) -> (u32, bool) {
        let cuts =
            self.parts_in(range).any(|(start, end, _)| start < range.start || end > range.end);
        self.unmaps = self.unmaps.wrapping_add(1).max(1);
        for (_, (end, claims)) in self.parts.range_mut(range.start..range.end) {
            if *end <= range.end && claims.gone == 0 {
                (claims.gone, self.has_gone) = (self.unmaps, true);
            }
        }
        (self.unmaps, cuts)
    }

    /// Takes the mark of this number from what stays. Calls `gone` for the rest of its parts. Allocates
    /// nothing.
    pub fn stays(&mut self, stays: &[PageRange], number: u32, mut gone: impl FnMut(PageRange)) {
        for (start, (end, claims)) in &mut self.parts {
            let reaches_in = |part: &PageRange| part.start < *end && *start < part.end;
            if claims.gone == number && stays.iter().any(reaches_in) {
                claims.gone = 0;
                outside(stays, PageRange::new(*start, *end), &mut gone);
            }
        }
    }

    /// Drops the claims on the parts that are gone.
    fn forget_all_gone(&mut self) {
        if !std::mem::take(&mut self.has_gone) {
            return;
        }
        let gone = self.parts.iter().filter(|(_, (_, claims))| claims.gone != 0);
        let gone: Vec<_> = gone.map(|(start, (end, _))| PageRange::new(*start, *end)).collect();
        gone.into_iter().for_each(|range| self.forget_unmapped(range));
    }

    /// Drops all claims on a range that is being unmapped.
    pub fn forget_unmapped(&mut self, range: PageRange) {
        let before = self.parts.range(..range.start).next_back();
        let reaches_in = before.is_some_and(|(_, (end, _))| *end > range.start);
        if !reaches_in && self.parts.range(range.start..range.end).next().is_none() {
            return;
        }
        let held = |(part, claims): (PageRange, Option<Claims>)| {
            claims.map(|claims| (part, claims.now + claims.on_fault)).filter(|held| held.1 > 0)
        };
        let held: Vec<(PageRange, u32)> = self.pieces(range).into_iter().filter_map(held).collect();
        if !held.is_empty() {
            self.clock += 1;
            let when = self.clock;
            let gone = |(range, guards)| Unmapped { range, when, guards };
            self.unmapped.extend(held.into_iter().map(gone));
        }
        self.set(range, Claims::default());
    }

    /// Returns the range's parts in order, cut where the claims differ; `None`: only the kernel's
    /// flags describe the part.
    pub fn pieces(&self, range: PageRange) -> Vec<(PageRange, Option<Claims>)> {
        let before = self.parts.range(..range.start).next_back();
        let inside = self.parts.range(range.start..range.end);
        let mut pieces = Vec::new();
        let mut at = range.start;
        for (start, (end, claims)) in before.into_iter().chain(inside) {
            let (start, end) = ((*start).max(range.start), (*end).min(range.end));
            if start >= end {
                continue; // the previous part ends before the range
            }
            if start > at {
                pieces.push((PageRange::new(at, start), None));
            }
            let counts = (!claims.is_plain()).then_some(*claims);
            pieces.push((PageRange::new(start, end), counts));
            at = end;
        }
        if at < range.end {
            pieces.push((PageRange::new(at, range.end), None));
        }
        pieces
    }

    /// Returns the parts of the range whose lock the kernel refused to lower.
    pub fn owed(&self, range: PageRange) -> Vec<(PageRange, Claims)> {
        let parts = self.parts_in(range).filter(|(_, _, claims)| claims.owed);
        let inside = |(start, end, claims): (usize, usize, &Claims)| {
            (PageRange::new(start.max(range.start), end.min(range.end)), *claims)
        };
        parts.map(inside).collect()
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.parts.values().all(|(_, claims)| claims.is_plain())
    }

    /// Returns whether an uncounted call locked all of the range in this way, according to the
    /// hints.
    pub fn was_asked(&self, range: PageRange, when: When) -> bool {
        let before = self.parts.range(..range.start).next_back();
        let inside = self.parts.range(range.start..range.end);
        let mut at = range.start;
        for (start, (end, claims)) in before.into_iter().chain(inside) {
            if *end > at {
                if *start > at || !claims.base.has(when) {
                    return false;
                }
                at = *end;
            }
        }
        at >= range.end
    }

    #[cfg(test)]
    fn all(&self) -> Vec<(PageRange, Claims)> {
        self.parts.iter().map(|(s, (e, claims))| (PageRange::new(*s, *e), *claims)).collect()
    }

    /// Replaces the claims of the range by `claims`.
    pub fn set(&mut self, range: PageRange, claims: Claims) {
        self.cut(range.start);
        self.cut(range.end);
        let inside: Vec<usize> =
            self.parts.range(range.start..range.end).map(|(start, _)| *start).collect();
        for start in inside {
            self.parts.remove(&start);
        }
        if claims == Claims::default() {
            return;
        }
        PLACES.add(range);
        let (mut start, mut end) = (range.start, range.end);
        // Neighbours of one state become one part, so that the ledger stays as small as the claims.
        if let Some((left, (left_end, other))) = self.parts.range(..start).next_back() {
            if *left_end == start && *other == claims {
                start = *left;
            }
        }
        if let Some((right_end, other)) = self.parts.get(&end).copied() {
            if other == claims {
                self.parts.remove(&end);
                end = right_end;
            }
        }
        self.parts.insert(start, (end, claims));
    }

    fn cut(&mut self, at: usize) {
        if let Some((start, (end, claims))) = self.parts.range_mut(..at).next_back() {
            if *end > at {
                let (right_end, claims) = (*end, *claims);
                debug_assert!(*start < at);
                *end = at;
                self.parts.insert(at, (right_end, claims));
            }
        }
    }
}

/// Parts of a range: their ends, by their starts.
struct Parts(BTreeMap<usize, usize>);

impl Parts {
    fn of(range: PageRange) -> Parts {
        Parts(BTreeMap::from([(range.start, range.end)]))
    }

    fn all(self) -> impl Iterator<Item = PageRange> {
        self.0.into_iter().map(|(start, end)| PageRange::new(start, end))
    }

    /// Takes a range out of the parts, and returns the pieces of it that were there.
    fn cut_out(&mut self, range: PageRange) -> Vec<PageRange> {
        let before = self.0.range(..range.start).next_back().filter(|(_, end)| **end > range.start);
        let touched = before.into_iter().chain(self.0.range(range.start..range.end));
        let touched: Vec<_> = touched.map(|(start, end)| (*start, *end)).collect();
        let mut pieces = Vec::with_capacity(touched.len());
        for (start, end) in touched {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if end > range.end {
                self.0.insert(range.end, end);
            }
            pieces.push(PageRange::new(start.max(range.start), end.min(range.end)));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kinds;
    use super::*;
    use crate::os::page_size;

    fn pages(from: usize, to: usize) -> PageRange {
        PageRange::new(from * page_size(), to * page_size())
    }

    #[test]
    fn a_guard_has_no_claim_on_what_is_mapped_after_it() {
        let mut ledger = Ledger::default();
        let one = Claims::default().taken(When::Now);
        let since = ledger.guard_comes();
        ledger.set(pages(10, 20), one);
        ledger.forget_unmapped(pages(30, 40));
        assert_eq!(ledger.still(pages(10, 20), since), [pages(10, 20)]);
        ledger.forget_unmapped(pages(12, 15));
        assert_eq!(ledger.still(pages(10, 20), since), [pages(10, 12), pages(15, 20)]);
        // A later guard on the new mapping there keeps its claim.
        let later = ledger.guard_comes();
        assert_eq!(ledger.still(pages(11, 16), later), [pages(11, 16)]);
        assert_eq!(ledger.pieces(pages(12, 15)), [(pages(12, 15), None)]);
        ledger.guard_goes(pages(11, 16), later);
        ledger.guard_goes(pages(10, 20), since);
        assert!(ledger.unmapped.is_empty());
    }

    #[test]
    fn what_was_unmapped_is_forgotten_with_the_last_guard_of_it() {
        let mut ledger = Ledger::default();
        let one = Claims::default().taken(When::Now);
        let two = one.taken(When::OnFault);
        let keys = (pages(900, 901), ledger.guard_comes());
        ledger.set(keys.0, one);
        for _ in 0..100 {
            let since = ledger.guard_comes();
            ledger.set(pages(10, 20), one);
            ledger.forget_unmapped(pages(10, 20));
            assert_eq!(ledger.still(pages(10, 20), since), []);
            ledger.guard_goes(pages(10, 20), since);
            assert!(ledger.unmapped.is_empty());
        }
        // Three guards that overlap, one of them over a hole; and a new guard on the next mapping
        // there.
        let (left, both, right) = (pages(10, 16), pages(12, 20), pages(20, 24));
        let since = [ledger.guard_comes(), ledger.guard_comes(), ledger.guard_comes()];
        ledger.set(pages(10, 12), one);
        ledger.set(pages(12, 16), two);
        ledger.set(pages(16, 24), one);
        ledger.forget_unmapped(pages(11, 23));
        let later = ledger.guard_comes();
        ledger.set(pages(11, 23), one);
        ledger.guard_goes(both, since[1]);
        assert_eq!(ledger.still(left, since[0]), [pages(10, 11)]);
        assert_eq!(ledger.still(right, since[2]), [pages(23, 24)]);
        ledger.guard_goes(left, since[0]);
        assert_eq!(ledger.still(right, since[2]), [pages(23, 24)]);
        assert_eq!(ledger.still(pages(11, 23), later), [pages(11, 23)]);
        ledger.guard_goes(right, since[2]);
        assert!(ledger.unmapped.is_empty());
    }

    /// A guard that had lost its range before another guard of the next mapping there lost it, too.
    #[test]
    fn a_guard_that_has_lost_its_range_counts_once() {
        let mut ledger = Ledger::default();
        let (range, one) = (pages(10, 20), Claims::default().taken(When::Now));
        let guard = |ledger: &mut Ledger| {
            let since = ledger.guard_comes();
            ledger.set(range, one);
            ledger.forget_unmapped(range);
            since
        };
        let (first, second) = (guard(&mut ledger), guard(&mut ledger));
        let third = ledger.guard_comes();
        ledger.set(range, one);
        ledger.guard_goes(range, first);
        assert_eq!(ledger.still(range, second), []);
        assert_eq!(ledger.still(range, third), [range]);
        ledger.guard_goes(range, second);
        assert!(ledger.unmapped.is_empty());
    }

    #[test]
    fn what_goes_is_marked_where_it_is_and_a_cut_is_noted() {
        let mut ledger = Ledger::default();
        let one = Claims::default().taken(When::Now);
        ledger.set(pages(10, 20), one);
        ledger.set(pages(30, 40), one.taken(When::Now));
        assert!(!ledger.mark_gone(pages(20, 30)).1 && !ledger.has_gone);
        let (number, cuts) = ledger.mark_gone(pages(5, 20));
        assert!(!cuts);
        assert!(ledger.mark_gone(pages(25, 35)).1, "it cuts the second part");
        let knows = |ledger: &Ledger, range| ledger.parts_in(range).next().is_some();
        assert!(!knows(&ledger, pages(0, 30)) && knows(&ledger, pages(29, 31)));
        let (later, cuts) = ledger.mark_gone(pages(5, 20));
        assert!(!cuts, "what is gone is not cut");
        ledger.stays(&[pages(5, 20)], later, |_| unreachable!());
        assert!(!knows(&ledger, pages(0, 30)), "an earlier unmap took it");
        let mut rest = Vec::new();
        let stays = [pages(5, 8), pages(12, 15), pages(17, 18)];
        ledger.stays(&stays, number, |gone| rest.push(gone));
        assert_eq!(rest, [pages(10, 12), pages(15, 17), pages(18, 20)]);
        assert!(knows(&ledger, pages(12, 13)));
        ledger.mark_gone(pages(5, 20));
        ledger.forget_all_gone();
        assert_eq!(ledger.all(), [(pages(30, 40), one.taken(When::Now))]);
        assert!(!ledger.has_gone);
    }

    #[test]
    fn parts_are_cut_joined_and_forgotten() {
        let mut ledger = Ledger::default();
        let one = Claims::default().taken(When::Now);
        let two = one.taken(When::OnFault);
        ledger.set(pages(10, 20), one);
        ledger.set(pages(12, 15), two);
        assert_eq!(
            ledger.pieces(pages(8, 16)),
            [
                (pages(8, 10), None),
                (pages(10, 12), Some(one)),
                (pages(12, 15), Some(two)),
                (pages(15, 16), Some(one)),
            ]
        );
        ledger.set(pages(12, 15), one);
        assert_eq!(ledger.all(), [(pages(10, 20), one)]);
        ledger.set(pages(20, 22), one);
        ledger.set(pages(5, 10), one);
        assert_eq!(ledger.all(), [(pages(5, 22), one)]);
        ledger.set(pages(6, 7), Claims::default());
        assert_eq!(ledger.all(), [(pages(5, 6), one), (pages(7, 22), one)]);
        ledger.set(pages(0, 100), Claims::default());
        assert!(ledger.all().is_empty());
        // A plain claim is a hint: it does not count, and a repeated call finds it.
        let plain = Claims { base: Kinds { now: false, on_fault: true }, ..Claims::default() };
        ledger.set(pages(3, 6), plain);
        ledger.set(pages(6, 7), Claims { base: Kinds::ALL, ..Claims::default() });
        assert_eq!(ledger.pieces(pages(3, 6)), [(pages(3, 6), None)]);
        assert!(!ledger.is_empty());
        assert!(ledger.was_asked(pages(4, 7), When::OnFault));
        assert!(!ledger.was_asked(pages(4, 7), When::Now));
        assert!(!ledger.was_asked(pages(2, 4), When::OnFault));
        assert!(!ledger.was_asked(pages(6, 8), When::OnFault));
    }
}
