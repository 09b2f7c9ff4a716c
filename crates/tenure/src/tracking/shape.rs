//! The shape of raw ranges: finds them in a part of memory, cuts and joins them.
//!
//! Every change happens with the map locked and with the claims of all ranges concerned. No thread
//! waits for a claim under the lock: a thread that does not get one releases everything, waits, and
//! begins again. Nothing is allocated or freed under the lock: numbers, memory for claims and the
//! map's memory are made before.

use super::list::List;
use super::map::{IntervalMap, Supplies};
use super::map_lock::MapGuard;
use super::side::{Halves, Side};
use super::slab::Spare;
use super::state::{flag, Claim, RangeId, Tracked, Word};
use super::TRACKING;
use crate::os::page_size;
use crate::range::PageRange;
use crate::sync::yield_now;
use rustix::io::Errno;
use std::sync::atomic::Ordering;

pub(super) fn tracked(id: RangeId) -> &'static Tracked {
    TRACKING.slab.get(id)
}

impl IntervalMap {
    /// Returns the range with exactly these bounds.
    pub fn exact(&self, range: PageRange) -> Option<RangeId> {
        self.starting_at(range.start).filter(|id| tracked(*id).range() == range)
    }

    /// Returns the ranges that overlap `range`, in order.
    pub fn overlapping(&self, range: PageRange) -> impl Iterator<Item = RangeId> + '_ {
        let inside = PageRange { start: range.start + page_size(), end: range.end };
        let first = self.at_or_before(range.start);
        let first = first.filter(|id| tracked(*id).range().end > range.start);
        let rest = (inside.start < inside.end).then(|| self.starting_in(inside));
        first.into_iter().chain(rest.into_iter().flatten())
    }
}

/// Locks the map, with room for so many more ranges.
///
/// # Errors
/// `ENOMEM`, here and below.
pub(super) fn lock_with_room(insertions: usize) -> Result<MapGuard, Errno> {
    loop {
        let mut map = TRACKING.map.lock();
        if map.has_room(insertions) {
            return Ok(map);
        }
        let wanted = map.wants(insertions);
        drop(map);
        let supplies = Supplies::make(wanted)?;
        map = TRACKING.map.lock();
        let leftover = map.supply(supplies);
        drop(map);
        drop(leftover);
    }
}

/// Returns the items that `visit` finds in the map, collected without allocating under the lock.
fn collected<T>(visit: impl Fn(&IntervalMap, &mut dyn FnMut(T))) -> Result<List<T>, Errno> {
    let mut list = List::new();
    loop {
        let mut found = 0;
        let map = TRACKING.map.lock();
        visit(&map, &mut |item| {
            found += 1;
            if list.len() < list.capacity() {
                // The list has room.
                let _ = list.push(item);
            }
        });
        drop(map);
        if found == list.len() {
            return Ok(list);
        }
        list.truncate(0);
        list.reserve(found + found / 8)?;
    }
}

/// Returns the ranges that overlap `range`.
pub(super) fn overlapping(range: PageRange) -> Result<List<RangeId>, Errno> {
    collected(|map, each| map.overlapping(range).for_each(each))
}

/// Returns the parts of `range` that belong to no tracked range.
pub(super) fn gaps(range: PageRange) -> Result<List<PageRange>, Errno> {
    collected(|map, each| each_gap(map, range, each))
}

pub(super) fn each_gap(map: &IntervalMap, range: PageRange, mut each: impl FnMut(PageRange)) {
    let mut at = range.start;
    for id in map.overlapping(range) {
        let part = tracked(id).range();
        if part.start > at {
            each(PageRange::new(at, part.start));
        }
        at = at.max(part.end);
    }
    if at < range.end {
        each(PageRange::new(at, range.end));
    }
}

/// Locks the map and claims all ranges that overlap. Also makes everything that
/// [`cut_ends`](Change::cut_ends) needs, unless too many ranges are known.
///
/// # Errors
/// `ENOMEM`, here and below: then there are no claims.
pub(super) fn claimed_to_cut(range: PageRange) -> Result<(MapGuard, Change), Errno> {
    claimed_with(2, range)
}

fn claimed_with(spares: usize, range: PageRange) -> Result<(MapGuard, Change), Errno> {
    loop {
        let known = overlapping(range)?.len();
        let mut change = match Change::new(known, spares)? {
            Some(change) => change,
            None => Change::new(known, 0)?.expect("a change that needs no numbers"),
        };
        match change.claim_to_cut(lock_with_room(spares)?, spares, range) {
            Ok(map) => return Ok((map, change)),
            Err(waiting) => {
                drop(change);
                waiting.wait()?;
            }
        }
    }
}

/// Claims all ranges that overlap.
pub(super) fn claimed(range: PageRange) -> Result<List<Claim>, Errno> {
    let (map, change) = claimed_with(0, range)?;
    drop(map);
    Ok(change.claims)
}

/// Claims the marked ranges inside `range`, cut at its ends. `None`: the limit on ranges is
/// reached.
pub(super) fn claim_marked(range: PageRange) -> Result<Option<List<Claim>>, Errno> {
    let marked = |claim: &Claim| claim.word().pins() == 0;
    let (mut map, mut change) = claimed_to_cut(range)?;
    let can_cut = change.can_cut_ends();
    if can_cut {
        change.cut_ends(&mut map, range, marked);
    }
    let surplus = map.surplus();
    drop(map);
    drop(surplus);
    change.claims.retain(marked);
    Ok(can_cut.then_some(change.claims))
}

/// The indices of the cut at the start of a part of memory, and of the one at its end.
const LOWER: usize = 0;
const UPPER: usize = 1;

/// The claims and numbers of one change, with room made beforehand.
pub(super) struct Change {
    pub claims: List<Claim>,
    /// Claims of ranges that were joined to others or forgotten. They are freed outside the lock.
    pub done: List<Claim>,
    pub spares: List<Spare>,
    /// The side data for the cuts at the start and at the end; after the cuts, the memory that is
    /// freed outside the lock.
    halves: [Halves; 2],
}

impl Change {
    /// `None`: there are no more numbers.
    pub fn new(ranges: usize, spares: usize) -> Result<Option<Change>, Errno> {
        let most = ranges + spares;
        let mut change = Change {
            claims: List::with_room(most)?,
            done: List::with_room(most)?,
            spares: List::with_room(spares)?,
            halves: Default::default(),
        };
        for _ in 0..spares {
            let Some(spare) = TRACKING.slab.spare() else { return Ok(None) };
            change.spares.push(spare)?;
        }
        Ok(Some(change))
    }

    /// Claims all ranges that overlap, and makes the side data that [`cut_ends`](Change::cut_ends)
    /// needs. `Err`: the caller releases the claims, and waits for this.
    pub fn claim_to_cut(
        &mut self,
        map: MapGuard,
        insertions: usize,
        range: PageRange,
    ) -> Result<MapGuard, Waiting> {
        self.claim_overlapping(&map, range)?;
        let ends = [self.claims.first(), self.claims.last()];
        let plain = ends.into_iter().flatten().all(|claim| claim.known_side().is_none());
        if plain || !self.can_cut_ends() {
            return Ok(map);
        }
        drop(map);
        self.halve_ends(range).map_err(|_| Waiting::Memory)?;
        // A thread with claims does not wait for the map, because a fork holds it while it waits
        // for claims.
        let same = |map: &MapGuard| {
            map.has_room(insertions) && map.overlapping(range).eq(self.claims.iter().map(Claim::id))
        };
        TRACKING.map.try_lock().filter(same).ok_or(Waiting::Other)
    }

    /// Makes the halves for the upper cut, and for the lower cut. If both cut one range, the lower
    /// cut divides the part that the upper cut leaves.
    fn halve_ends(&mut self, range: PageRange) -> Result<(), Errno> {
        let [lower, upper] = &mut self.halves;
        let halved = |claim: &Claim, side: &Side, at: usize| {
            Halves::of(side, at, (at - claim.range().start) / page_size())
        };
        let last = self.claims.last().filter(|last| last.range().end > range.end);
        if let Some((last, side)) = last.and_then(|last| Some((last, last.known_side()?))) {
            *upper = halved(last, side, range.end)?;
        }
        let first = self.claims.first().filter(|first| first.range().start < range.start);
        if let Some(first) = first {
            let left = upper.lower.as_deref().filter(|_| self.claims.len() == 1);
            if let Some(side) = left.or(first.known_side()) {
                *lower = halved(first, side, range.start)?;
            }
        }
        Ok(())
    }

    fn claim_overlapping(&mut self, map: &IntervalMap, range: PageRange) -> Result<(), Waiting> {
        for id in map.overlapping(range) {
            if self.claims.len() == self.claims.capacity() {
                return Err(Waiting::Other);
            }
            match TRACKING.claims.try_claim(id, tracked(id), |_| true) {
                // The list has room.
                Some(claim) => _ = self.claims.push(claim),
                None => return Err(Waiting::Claim(id)),
            }
        }
        Ok(())
    }

    /// Cuts the claimed range at index `number` in two. The upper part follows it in the list of
    /// claims.
    fn cut(&mut self, map: &mut IntervalMap, number: usize, at: usize, end: usize) {
        let spare = self.spares.pop().expect("a spare number for each cut");
        let upper = self.claims[number].split(at, spare.take(), &mut self.halves[end]);
        // In this order, for a signal handler that looks for an address of the upper part.
        TRACKING.slab.moved();
        self.claims[number].shorten(at);
        map.insert(at, upper.id());
        TRACKING.raw.fetch_add(1, Ordering::AcqRel);
        // The list has room.
        let _ = self.claims.insert(number + 1, upper);
    }

    /// Returns whether there are numbers for [`cut_ends`](Change::cut_ends).
    pub fn can_cut_ends(&self) -> bool {
        self.spares.len() >= 2
    }

    /// Cuts the first and the last claimed range to their parts inside `range`, if `wanted` holds
    /// for them. The change no longer touches the parts outside.
    pub fn cut_ends(
        &mut self,
        map: &mut IntervalMap,
        range: PageRange,
        wanted: impl Fn(&Claim) -> bool,
    ) {
        let last = self.claims.last().filter(|claim| wanted(claim)).map(Claim::range);
        if last.is_some_and(|last| last.end > range.end) {
            self.cut(map, self.claims.len() - 1, range.end, UPPER);
            let outside = self.claims.pop();
            drop(outside);
        }
        let first = self.claims.first().filter(|claim| wanted(claim)).map(Claim::range);
        if first.is_some_and(|first| first.start < range.start) {
            self.cut(map, 0, range.start, LOWER);
            let outside = self.claims.remove(0);
            drop(outside);
        }
    }

    /// Takes the claimed ranges out of the map; they are freed later.
    pub fn forget_all(&mut self, map: &mut IntervalMap) {
        for claim in self.claims.iter() {
            map.remove(claim.range().start, claim.id());
            TRACKING.raw.fetch_sub(1, Ordering::AcqRel);
        }
        std::mem::swap(&mut self.claims, &mut self.done);
    }

    /// Joins neighbours of equal state and priority among the claimed ranges.
    pub fn join_neighbours(&mut self, map: &mut IntervalMap) {
        // In one pass: there may be a hundred thousand ranges, and the map is locked. Absorbed
        // claims gather behind the kept ones.
        let mut kept = 0;
        for at in 1..self.claims.len() {
            let (low, high) = self.claims.split_at_mut(at);
            if may_join(&low[kept], &high[0]) {
                map.remove(high[0].range().start, high[0].id());
                TRACKING.raw.fetch_sub(1, Ordering::AcqRel);
                low[kept].absorb(&mut high[0]);
            } else {
                kept += 1;
                self.claims.swap(kept, at);
            }
        }
        while kept + 1 < self.claims.len() {
            // The list has room.
            let Some(absorbed) = self.claims.pop() else { break };
            let _ = self.done.push(absorbed);
        }
    }

    /// Ends all claims, outside the lock.
    pub fn finish(self) {
        for claim in self.done {
            TRACKING.slab.free(claim);
        }
    }
}

/// The reason why a change must be tried again, outside the lock.
pub(super) enum Waiting {
    Claim(RangeId),
    /// The ranges have changed, or the map is locked: try again at once.
    Other,
    /// There is no memory, so waiting does not help.
    Memory,
}

impl Waiting {
    /// # Errors
    /// `ENOMEM`: waiting does not help.
    pub fn wait(self) -> Result<(), Errno> {
        match self {
            Waiting::Claim(id) => TRACKING.claims.wait(id, tracked(id)),
            Waiting::Other => yield_now(),
            Waiting::Memory => return Err(Errno::NOMEM),
        }
        Ok(())
    }
}

/// Returns whether two ranges may be joined: not offered, nothing lost, no rest of a watch, so
/// neither needs side data.
pub(super) fn may_join(low: &Claim, high: &Claim) -> bool {
    let plain = |claim: &Claim| {
        !claim.word().has(Word::OFFERED | Word::LOST | Word::UNCLEAN)
            && !claim.is(flag::TORN | flag::SUSPECT)
    };
    let priority = |claim: &Claim| claim.tracked().priority.load(Ordering::Relaxed);
    low.range().end == high.range().start
        && plain(low)
        && plain(high)
        && priority(low) == priority(high)
        && low.word().pins() == high.word().pins()
}

/// Joined ranges stay below this size, so that one offer takes a bounded time (1 GiB of base pages:
/// 90 ms, interruptible every 8 MiB).
const LONGEST_JOIN: usize = 1 << 30;
/// The most ranges that are joined at once.
const MOST_JOINED: usize = 4096;

/// Claims a marked range that a scan has seen, joined with the neighbouring marked ranges that are
/// as cold. Then one call offers them, they are watched as one mapping, and huge pages that they
/// share can go as a whole.
pub(super) fn claim_with_neighbours(id: RangeId, word: Word) -> Option<Claim> {
    let seen = tracked(id);
    let age = seen.age.load(Ordering::Relaxed) / 2;
    let mut change = Change::new(0, 0).ok()??;
    let mut map = TRACKING.map.lock();
    let alone = {
        let range = seen.range();
        let cold = |id: RangeId| fits(id, seen, age);
        let below =
            map.at_or_before(range.start.saturating_sub(page_size())).filter(|id| cold(*id));
        let above = map.starting_at(range.end).filter(|id| cold(*id));
        below.is_none_or(|id| tracked(id).range().end != range.start) && above.is_none()
    };
    if alone {
        drop(map);
        return TRACKING.claims.try_claim_from(id, seen, word);
    }
    drop(map);
    change.done.reserve(MOST_JOINED).ok()?;
    map = TRACKING.map.lock();
    let mut claim = TRACKING.claims.try_claim_from(id, seen, word)?;
    while change.done.len() < MOST_JOINED {
        let range = claim.range();
        let Some(below) = map.at_or_before(range.start - page_size()) else { break };
        let Some(mut lower) = claim_cold(below, seen, age, range.len()) else { break };
        if !may_join(&lower, &claim) {
            break;
        }
        map.remove(range.start, claim.id());
        lower.absorb(&mut claim);
        TRACKING.raw.fetch_sub(1, Ordering::AcqRel);
        // The list has room, here and below.
        let _ = change.done.push(std::mem::replace(&mut claim, lower));
    }
    while change.done.len() < MOST_JOINED {
        let range = claim.range();
        let Some(above) = map.starting_at(range.end) else { break };
        let Some(mut upper) = claim_cold(above, seen, age, range.len()) else { break };
        if !may_join(&claim, &upper) {
            break;
        }
        map.remove(range.end, upper.id());
        claim.absorb(&mut upper);
        TRACKING.raw.fetch_sub(1, Ordering::AcqRel);
        let _ = change.done.push(upper);
    }
    let surplus = map.surplus();
    drop(map);
    drop(surplus);
    change.finish();
    Some(claim)
}

/// Returns whether a range is marked, not offered, of the priority of `seen`, and as cold. This is
/// checked before the claim: a useless claim counts as a use, and delays the range's own offer.
fn fits(id: RangeId, seen: &Tracked, age: u8) -> bool {
    let range = tracked(id);
    let word = range.load();
    word.pins() == 0
        && word.has(Word::RAW)
        && word.plain()
        && !range.is(flag::TORN | flag::SUSPECT)
        && range.priority.load(Ordering::Relaxed) == seen.priority.load(Ordering::Relaxed)
        && range.marked_age(word) >= age
}

fn claim_cold(id: RangeId, seen: &Tracked, age: u8, bytes: usize) -> Option<Claim> {
    let short = tracked(id).len() + bytes <= LONGEST_JOIN;
    if !short || !fits(id, seen, age) {
        return None;
    }
    TRACKING.claims.try_claim(id, tracked(id), |word| word.pins() == 0 && word.plain())
}
