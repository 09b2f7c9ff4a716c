//! Raw ranges: memory that the program has mapped itself.
//!
//! A raw range has one pin while it is not volatile, and none while it is marked. Every change of shape
//! happens with the map locked and the claims of all ranges concerned; claims are never waited for under
//! the lock: who does not get one releases everything, waits, and begins again.

use super::map::{IntervalMap, Supplies};
use super::offer::{self, Refusal};
use super::settle;
use super::side::joined;
use super::slab::Spare;
use super::state::{flag, Claim, RangeId, Tracked, Word};
use super::{backpressure, claims, detection, revive, settings, TRACKING};
use crate::os::maps::{self, Unfit};
use crate::os::page_size;
use crate::range::PageRange;
use crate::runtime::lock::Guard;
use crate::runtime::{services, worker};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// Why a range could not be marked.
pub(crate) enum Unmarkable {
    Unfit(Unfit),
    /// 2^25 ranges are known.
    Full,
}

/// Why a range could not be unmarked.
pub(crate) enum Failed {
    /// Nothing is mapped at this address.
    Hole(usize),
    Kernel(Errno),
}

fn tracked(id: RangeId) -> &'static Tracked {
    TRACKING.slab.get(id)
}

/// Whether any raw range is known. One load.
pub(crate) fn any() -> bool {
    TRACKING.raw.load(Ordering::Acquire) > 0
}

impl IntervalMap {
    /// The range that is exactly this one.
    fn exact(&self, range: PageRange) -> Option<RangeId> {
        self.starting_at(range.start).filter(|id| tracked(*id).range() == range)
    }

    /// The ranges that overlap `range`, in order.
    fn overlapping(&self, range: PageRange) -> impl Iterator<Item = RangeId> + '_ {
        let inside = PageRange { start: range.start + page_size(), end: range.end };
        let first = self.at_or_before(range.start);
        let first = first.filter(|id| tracked(*id).range().end > range.start);
        let rest = (inside.start < inside.end).then(|| self.starting_in(inside));
        first.into_iter().chain(rest.into_iter().flatten())
    }
}

/// The locked map, with room for so many more ranges.
fn lock_with_room(insertions: usize) -> Guard<'static, IntervalMap> {
    loop {
        let mut map = TRACKING.map.lock();
        if map.has_room(insertions) {
            return map;
        }
        let wanted = map.wants(insertions);
        drop(map);
        let supplies = Supplies::make(wanted);
        map = TRACKING.map.lock();
        let leftover = map.supply(supplies);
        drop(map);
        drop(leftover);
    }
}

/// The ranges that overlap `range`. Collected without allocating under the lock.
fn overlapping(range: PageRange) -> Vec<RangeId> {
    let mut ids = Vec::with_capacity(8);
    loop {
        let map = TRACKING.map.lock();
        let wanted = map.overlapping(range).count();
        if wanted <= ids.capacity() {
            ids.extend(map.overlapping(range));
            return ids;
        }
        drop(map);
        ids.reserve(wanted + wanted / 8);
    }
}

/// The parts of `range` that belong to no tracked range.
fn gaps(range: PageRange) -> Vec<PageRange> {
    let mut gaps = Vec::new();
    loop {
        let map = TRACKING.map.lock();
        let most = map.overlapping(range).count() + 1;
        if most <= gaps.capacity() {
            each_gap(&map, range, |gap| gaps.push(gap));
            return gaps;
        }
        drop(map);
        gaps.reserve(most + most / 8);
    }
}

fn each_gap(map: &IntervalMap, range: PageRange, mut each: impl FnMut(PageRange)) {
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

/// Claims and numbers that one change uses, with room made beforehand.
struct Change {
    claims: Vec<Claim>,
    /// Claims of ranges that were joined to others or forgotten: freed outside of the lock.
    done: Vec<Claim>,
    spares: Vec<Spare>,
}

impl Change {
    fn new(ranges: usize, spares: usize) -> Option<Change> {
        let most = ranges + spares;
        let mut change = Change {
            claims: Vec::with_capacity(most),
            done: Vec::with_capacity(most),
            spares: Vec::with_capacity(spares),
        };
        for _ in 0..spares {
            change.spares.push(TRACKING.slab.spare()?);
        }
        Some(change)
    }

    /// Claims all ranges that overlap. `Err`: another thread has the claim of this one; what was claimed is
    /// to be released.
    fn claim_overlapping(&mut self, map: &IntervalMap, range: PageRange) -> Result<(), Waiting> {
        for id in map.overlapping(range) {
            if self.claims.len() == self.claims.capacity() {
                return Err(Waiting::MoreRoom);
            }
            match TRACKING.claims.try_claim(id, tracked(id), |_| true) {
                Some(claim) => self.claims.push(claim),
                None => return Err(Waiting::Claim(id)),
            }
        }
        Ok(())
    }

    /// Cuts the claimed range at `number` in two; the upper part comes after it among the claims.
    fn cut(&mut self, map: &mut IntervalMap, number: usize, at: usize) {
        let spare = self.spares.pop().expect("a spare number for each cut");
        let upper = self.claims[number].split(at, spare.take(), page_size());
        map.insert(at, upper.id());
        TRACKING.raw.fetch_add(1, Ordering::AcqRel);
        self.claims.insert(number + 1, upper);
    }

    /// Cuts the first and the last claimed range to their parts inside `range`, if `wanted` holds of them;
    /// the parts outside are not touched any more.
    fn cut_ends(
        &mut self,
        map: &mut IntervalMap,
        range: PageRange,
        wanted: impl Fn(&Claim) -> bool,
    ) {
        let first = self.claims.first().filter(|claim| wanted(claim)).map(Claim::range);
        if first.is_some_and(|first| first.start < range.start) {
            self.cut(map, 0, range.start);
            let outside = self.claims.remove(0);
            drop(outside);
        }
        let last = self.claims.last().filter(|claim| wanted(claim)).map(Claim::range);
        if last.is_some_and(|last| last.end > range.end) {
            self.cut(map, self.claims.len() - 1, range.end);
            let outside = self.claims.pop();
            drop(outside);
        }
    }

    /// Takes the claimed ranges out of the map; they are freed later.
    fn forget_all(&mut self, map: &mut IntervalMap) {
        for claim in &self.claims {
            map.remove(claim.range().start, claim.id());
            TRACKING.raw.fetch_sub(1, Ordering::AcqRel);
        }
        std::mem::swap(&mut self.claims, &mut self.done);
    }

    /// Joins neighbours of one state and priority among the claimed ranges.
    fn join_neighbours(&mut self, map: &mut IntervalMap) {
        // In one pass: there may be a hundred thousand, and the map is locked. What was absorbed gathers
        // behind what is kept.
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
        if kept + 1 < self.claims.len() {
            self.done.extend(self.claims.drain(kept + 1..));
        }
    }

    /// Ends everything, outside of the lock.
    fn finish(self) {
        for claim in self.done {
            TRACKING.slab.free(claim);
        }
    }
}

/// What a change has to wait for, outside of the lock.
enum Waiting {
    Claim(RangeId),
    MoreRoom,
}

impl Waiting {
    fn wait(self) {
        if let Waiting::Claim(id) = self {
            TRACKING.claims.wait(id, tracked(id));
        }
    }
}

/// Not offered, nothing lost, nothing left over: nothing of it needs side data.
fn may_join(low: &Claim, high: &Claim) -> bool {
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

/// Marks a range that is known as exactly this, if its state allows it without waiting.
#[inline]
pub(crate) fn try_mark(id: RangeId, range: PageRange) -> bool {
    let tracked = tracked(id);
    loop {
        // The word first: if the range became another one since, the exchange below fails.
        let word = tracked.load();
        let other = word.has(Word::FREE | Word::CLAIMED | Word::UNCLEAN) || !word.has(Word::RAW);
        if other || tracked.range() != range || settings::purge_always() {
            return false;
        }
        if word.pins() == 0 {
            return tracked.load() == word;
        }
        if word.has(Word::OFFERED) {
            return false;
        }
        if tracked.try_mark(word) {
            return true;
        }
    }
}

/// Marks a range. Returns its number if it is known as exactly this range now.
pub(crate) fn mark(range: PageRange, priority: Option<u8>) -> Result<Option<RangeId>, Unmarkable> {
    {
        let map = TRACKING.map.lock();
        if let Some(id) = map.exact(range) {
            drop(map);
            // It may have become another range since: then this is one more change of priority that the
            // program did not ask for, and the way below does the rest.
            if priority.is_none() && try_mark(id, range) {
                return Ok(Some(id));
            }
        }
    }
    loop {
        let unknown = gaps(range);
        for gap in &unknown {
            maps::check_volatile(*gap).map_err(Unmarkable::Unfit)?;
        }
        let known = overlapping(range).len();
        let Some(mut change) = Change::new(known, unknown.len() + 2) else {
            return Err(Unmarkable::Full);
        };
        let mut map = lock_with_room(unknown.len() + 2);
        let mut same = unknown.iter();
        let mut changed = false;
        each_gap(&map, range, |gap| changed |= same.next() != Some(&gap));
        if changed || same.next().is_some() {
            continue;
        }
        if let Err(waiting) = change.claim_overlapping(&map, range) {
            drop(map);
            drop(change);
            waiting.wait();
            continue;
        }
        // What is marked beyond the range already stays one with it; what is not is cut off.
        change.cut_ends(&mut map, range, |claim| claim.word().pins() > 0);
        let level = priority.unwrap_or(settings::Priority::DEFAULT.level());
        for gap in &unknown {
            let spare = change.spares.pop().expect("a spare number for each gap");
            let claim = spare.begin(&TRACKING.claims, *gap, 0, Word::RAW, level);
            map.insert(gap.start, claim.id());
            TRACKING.raw.fetch_add(1, Ordering::AcqRel);
            backpressure::count(gap.len() as u64);
            change.claims.push(claim);
        }
        change.claims.sort_unstable_by_key(|claim| claim.range().start);
        for claim in &mut change.claims {
            claim.mark();
            if let Some(priority) = priority {
                claim.tracked().priority.store(priority, Ordering::Relaxed);
            }
        }
        change.join_neighbours(&mut map);
        let exact = map.exact(range);
        let surplus = map.surplus();
        drop(map);
        drop(surplus);
        change.finish();
        super::stir();
        return Ok(exact);
    }
}

/// What an unmark of a range that is known as exactly this can do at once.
pub(crate) enum Fast {
    /// It is not volatile, and all of it is there.
    Done,
    /// The caller has pinned it, and its pages are to be taken back.
    Settle,
    /// It is another range by now, or another thread is at it.
    Slow,
}

#[inline]
pub(crate) fn try_unmark(id: RangeId, range: PageRange) -> Fast {
    let tracked = tracked(id);
    loop {
        let word = tracked.load();
        if word.has(Word::FREE | Word::CLAIMED) || !word.has(Word::RAW) || tracked.range() != range
        {
            return Fast::Slow;
        }
        if word.pins() > 0 {
            // Unmarked already; if another thread is taking it back, this one waits with it.
            return if word.plain() && tracked.rely(word) { Fast::Done } else { Fast::Slow };
        }
        if tracked.try_unmark(word) {
            return if word.plain() { Fast::Done } else { Fast::Settle };
        }
    }
}

/// Takes the pages of one range back that the caller has just pinned; returns what was lost. `Ok(None)`: it
/// is another range by now, so [`unmark`] is to be called.
pub(crate) fn settle_exact(
    id: RangeId,
    range: PageRange,
) -> Result<Option<Vec<PageRange>>, Failed> {
    let wanted =
        |word: Word| word.has(Word::RAW) && word.has(Word::OFFERED | Word::UNCLEAN | Word::LOST);
    let mut lost = None;
    let settled = settle::settle(id, tracked(id), &wanted, &mut |claim, mut gone| {
        // Marked again meanwhile, perhaps by another unmark of it that failed.
        if claim.range() != range || claim.word().pins() == 0 {
            keep_losses(claim, gone);
            return;
        }
        if claim.word().has(Word::LOST) {
            let before = std::mem::take(&mut claim.side_mut().losses);
            gone = if before.is_empty() { vec![range] } else { joined(before, gone) };
            claim.not_lost();
        }
        lost = Some(gone);
    });
    match settled {
        Ok(()) => Ok(lost),
        Err(errno) => {
            remark(&[Pinned { id, range, uses: None }]);
            Err(Failed::Kernel(errno))
        }
    }
}

fn keep_losses(claim: &mut Claim, gone: Vec<PageRange>) {
    if !gone.is_empty() {
        let whole = claim.word().has(Word::LOST) && claim.side_mut().losses.is_empty();
        if !whole {
            let side = claim.side_mut();
            side.losses = joined(std::mem::take(&mut side.losses), gone);
        }
        claim.lost();
    }
}

/// A range that a call has pinned.
struct Pinned {
    id: RangeId,
    range: PageRange,
    /// The use counter since then, if nobody else has counted on the pin.
    uses: Option<u32>,
}

/// Marks again what a failed unmark had pinned, unless another call may have been told that it is not volatile.
/// A range that has changed its shape since stays unmarked too: more is not volatile then than was asked for,
/// which harms nobody.
fn remark(pinned: &[Pinned]) {
    for Pinned { id, range, uses } in pinned {
        let tracked = tracked(*id);
        let same = |word: Word| {
            word.has(Word::RAW)
                && !word.has(Word::FREE)
                && word.pins() > 0
                && tracked.range() == *range
        };
        let mut word = tracked.load();
        while same(word) && *uses == Some(word.uses()) && !tracked.try_mark(word) {
            word = tracked.load();
        }
        // Nobody is told so while it is offered; who waits for its pages pins it anew.
        let offered = |word: Word| same(word) && word.has(Word::OFFERED | Word::CLAIMED);
        if let Some(mut claim) = claims().claim(*id, tracked, offered) {
            if claim.is_offered() && claim.range() == *range {
                claim.mark();
            }
        }
    }
}

/// Makes the range non-volatile: when it returns, all pages of it are there, whichever thread took them
/// back. Returns what was lost of it and had not been reported. On an error the range is as volatile as
/// before, and what was found lost is kept for the next call.
pub(crate) fn unmark(range: PageRange) -> Result<Vec<PageRange>, Failed> {
    let unknown = gaps(range);
    for gap in &unknown {
        if let Ok(Some(at)) = maps::first_hole(*gap) {
            return Err(Failed::Hole(at));
        }
    }
    settle::before_taking_back();
    let mut pinned = Vec::new();
    loop {
        let known = pin_all(range, &mut pinned);
        // As in `settle`: without a claim, what waits to be unmapped goes first.
        let short = |errno: &Errno| *errno == Errno::NOMEM;
        let mut taken = services::retry(|| take_back(&known), short);
        if matches!(&taken, Err(errno) if detection::is_closed(*errno)) {
            // The background thread has a descriptor that the program cannot close.
            taken = worker::on_worker(|| take_back(&known)).unwrap_or(taken);
        }
        match taken {
            // What was lost is taken when nothing is left to do: another thread that unmarks meanwhile
            // either hears of it or waits for it.
            Ok(0) if all_there(range) => return Ok(take_losses(range)),
            // Another thread may have cut or marked a range meanwhile: once more.
            Ok(bytes) => {
                if bytes > 0 {
                    super::stir();
                    backpressure::exposed(bytes);
                }
            }
            Err(errno) => {
                remark(&pinned);
                return Err(Failed::Kernel(errno));
            }
        }
    }
}

/// Takes all of these ranges back, or none: as long as one of them fails, all stay offered and watched. What
/// is gone is recorded. Returns how many bytes came back.
fn take_back(ids: &[RangeId]) -> Result<u64, Errno> {
    let wanted = |word: Word| {
        word.has(Word::RAW) && word.pins() > 0 && word.has(Word::OFFERED | Word::UNCLEAN)
    };
    // In the order of their addresses.
    let claims = ids.iter().filter_map(|id| claims().claim(*id, tracked(*id), wanted));
    let mut claims: Vec<Claim> = claims.collect();
    let mut gone = Vec::with_capacity(claims.len());
    for claim in &mut claims {
        gone.push(revive::keep_pages(claim)?);
    }
    let mut bytes = 0;
    for number in 0..claims.len() {
        let claim = &mut claims[number];
        let offered = claim.is_offered();
        match revive::complete(claim, std::mem::take(&mut gone[number])) {
            Ok(now_gone) => {
                if offered {
                    bytes += claim.range().len() as u64;
                }
                gone[number] = now_gone;
            }
            Err(errno) => {
                for (claim, gone) in claims.iter_mut().zip(gone).take(number) {
                    if !gone.is_empty() && revive::undo(claim).is_err() {
                        keep_losses(claim, gone);
                    }
                }
                return Err(errno);
            }
        }
    }
    for (claim, gone) in claims.iter_mut().zip(gone) {
        keep_losses(claim, gone);
    }
    Ok(bytes)
}

/// Whether no part of the range is volatile or offered.
fn all_there(range: PageRange) -> bool {
    let map = TRACKING.map.lock();
    let unfinished = Word::OFFERED | Word::UNCLEAN;
    let there = map.overlapping(range).all(|id| {
        let word = tracked(id).load();
        word.pins() > 0 && !word.has(unfinished)
    });
    there
}

/// Takes what is recorded as lost inside `range`: each loss goes to one caller.
fn take_losses(range: PageRange) -> Vec<PageRange> {
    let mut lost = Vec::new();
    for id in overlapping(range) {
        let recorded = |word: Word| word.has(Word::RAW) && word.has(Word::LOST);
        if let Some(mut claim) = claims().claim(id, tracked(id), recorded) {
            take_recorded(&mut claim, range, &mut lost);
        }
    }
    joined(lost, Vec::new())
}

/// Pins every marked range that overlaps, cut to `range`; returns all that overlap.
fn pin_all(range: PageRange, pinned: &mut Vec<Pinned>) -> Vec<RangeId> {
    loop {
        let known = overlapping(range);
        pinned.reserve(known.len() + 2);
        let mut change = Change::new(2, 2);
        let mut map = lock_with_room(2);
        if !map.overlapping(range).eq(known.iter().copied()) {
            continue;
        }
        let ends = [known.first().copied(), known.last().copied()].into_iter().flatten();
        let crossing = ends.filter(|id| {
            let part = tracked(*id).range();
            tracked(*id).load().pins() == 0 && (part.start < range.start || part.end > range.end)
        });
        // Where no more ranges can be known, more than was asked for becomes non-volatile: harmless.
        if let Some(change) = &mut change {
            let mut busy = None;
            let mut last = None;
            for id in crossing.filter(|id| last.replace(*id) != Some(*id)) {
                match TRACKING.claims.try_claim(id, tracked(id), |_| true) {
                    Some(claim) => change.claims.push(claim),
                    None => busy = Some(id),
                }
            }
            if let Some(id) = busy {
                drop(map);
                change.claims.clear();
                Waiting::Claim(id).wait();
                continue;
            }
            if !change.claims.is_empty() {
                change.cut_ends(&mut map, range, |claim| claim.word().pins() == 0);
                let surplus = map.surplus();
                drop(map);
                drop(surplus);
                change.claims.clear();
                // The cut made new ranges: they are looked up anew.
                continue;
            }
        }
        for id in &known {
            pin_marked(*id, pinned);
        }
        drop(map);
        return known;
    }
}

fn pin_marked(id: RangeId, pinned: &mut Vec<Pinned>) {
    let tracked = tracked(id);
    loop {
        let word = tracked.load();
        if word.has(Word::FREE) {
            return;
        }
        if word.pins() > 0 {
            // Of many, one's own are not looked for: on a failure they stay unmarked.
            let few = &pinned[..pinned.len().min(16)];
            let mine = few.iter().any(|p| p.id == id && p.uses == Some(word.uses()));
            if mine || tracked.rely(word) {
                return;
            }
        } else if tracked.try_unmark(word) {
            let uses = Some(word.uses().wrapping_add(1));
            pinned.push(Pinned { id, range: tracked.range(), uses });
            return;
        }
    }
}

/// Takes what is recorded as lost inside `range`: each loss goes to one caller.
fn take_recorded(claim: &mut Claim, range: PageRange, lost: &mut Vec<PageRange>) {
    if !claim.word().has(Word::LOST) {
        return;
    }
    let all = match std::mem::take(&mut claim.side_mut().losses) {
        losses if losses.is_empty() => vec![claim.range()],
        losses => losses,
    };
    let mut kept = Vec::new();
    for extent in all {
        let (start, end) = (extent.start.max(range.start), extent.end.min(range.end));
        if start >= end {
            kept.push(extent);
            continue;
        }
        lost.push(PageRange::new(start, end));
        if extent.start < start {
            kept.push(PageRange::new(extent.start, start));
        }
        if end < extent.end {
            kept.push(PageRange::new(end, extent.end));
        }
    }
    if kept.is_empty() {
        claim.not_lost();
    }
    claim.side_mut().losses = kept;
}

/// Offers what is marked inside `range`, cut at its ends so that nothing beyond is touched; `purge`: and has
/// the kernel discard it. Returns how many bytes are gone. `None`: nothing in it is marked.
///
/// All of it on the background thread and with the claims held from the cut on: nothing is joined to what
/// lies beside the range meanwhile.
pub(crate) fn offer_range(range: PageRange, purge: bool) -> Option<Result<usize, Refusal>> {
    let offer_all = move || {
        let marked = claim_marked(range);
        if marked.is_empty() {
            return None;
        }
        let mut gone = 0;
        for mut claim in marked {
            let offered = match claim.is_offered() {
                true => Ok(()),
                false => settle::offer(&mut claim, true),
            };
            let purged = offered.and_then(|()| match purge {
                true => offer::purge(&mut claim).map_err(Refusal::Kernel),
                false => Ok(0),
            });
            match purged {
                Ok(bytes) => gone += bytes,
                Err(refusal) => return Some(Err(refusal)),
            }
        }
        Some(Ok(gone))
    };
    worker::on_worker(offer_all).unwrap_or(Some(Err(Refusal::Kernel(Errno::AGAIN))))
}

/// The claims of the marked ranges inside `range`, cut at its ends.
fn claim_marked(range: PageRange) -> Vec<Claim> {
    loop {
        let known = overlapping(range).len();
        let Some(mut change) = Change::new(known, 2) else { return Vec::new() };
        let mut map = lock_with_room(2);
        if let Err(waiting) = change.claim_overlapping(&map, range) {
            drop(map);
            drop(change);
            waiting.wait();
            continue;
        }
        change.cut_ends(&mut map, range, |claim| claim.word().pins() == 0);
        drop(map);
        change.claims.retain(|claim| claim.word().pins() == 0);
        return change.claims;
    }
}

/// The range that is known as exactly this.
pub(crate) fn exact(range: PageRange) -> Option<RangeId> {
    TRACKING.map.lock().exact(range)
}

/// Whether any page of the range is marked.
pub(crate) fn is_marked(range: PageRange) -> bool {
    any() && {
        let map = TRACKING.map.lock();
        let marked = map.overlapping(range).any(|id| tracked(id).load().pins() == 0);
        marked
    }
}

/// Drops all that is known of a range, whose pages stay as they are. `true`: a part of it is watched.
pub(crate) fn forget(range: PageRange) -> bool {
    loop {
        let known = overlapping(range).len();
        // Where no more ranges can be known, more than was asked for is forgotten.
        let mut change = match Change::new(known, 2) {
            Some(change) => change,
            None => {
                Change { claims: Vec::with_capacity(known), done: Vec::new(), spares: Vec::new() }
            }
        };
        let mut map = lock_with_room(2);
        if let Err(waiting) = change.claim_overlapping(&map, range) {
            drop(map);
            drop(change);
            waiting.wait();
            continue;
        }
        let can_cut = change.spares.len() == 2;
        change.cut_ends(&mut map, range, |_| can_cut);
        let watched = change.claims.iter().any(|claim| claim.is(flag::WATCHED));
        change.forget_all(&mut map);
        let surplus = map.surplus();
        drop(map);
        drop(surplus);
        change.finish();
        return watched;
    }
}

/// Drops all that is known of a range that is being unmapped, without taking its pages back. Waits for a
/// thread that is at them. `true`: a part is watched by tenure's own userfaultfd, which no event of the
/// kernel's goes to.
pub(super) fn forget_unmapped(range: PageRange) -> bool {
    any() && forget(range)
}

/// Joined ranges stay below this, so that one offer takes a bounded time (1 GiB of base pages: 90 ms,
/// interruptible every 8 MiB).
const LONGEST_JOIN: usize = 1 << 30;
/// So many ranges are joined at once at most.
const MOST_JOINED: usize = 4096;

/// Claims a marked range that a scan has seen, joined with the marked ranges beside it that are as cold: one
/// call offers them, they are watched as one mapping, and huge pages that they share can go whole.
pub(super) fn claim_with_neighbours(id: RangeId, word: Word) -> Option<Claim> {
    let seen = tracked(id);
    let age = seen.age.load(Ordering::Relaxed) / 2;
    let mut change = Change { claims: Vec::new(), done: Vec::new(), spares: Vec::new() };
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
    change.done.reserve(MOST_JOINED);
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
        change.done.push(std::mem::replace(&mut claim, lower));
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
        change.done.push(upper);
    }
    let surplus = map.surplus();
    drop(map);
    drop(surplus);
    change.finish();
    Some(claim)
}

/// Whether a range is marked, not offered, of the priority of `seen`, and as cold. Asked before it is claimed: a
/// claim for nothing counts as a use, and puts its own offer off.
fn fits(id: RangeId, seen: &Tracked, age: u8) -> bool {
    let range = tracked(id);
    let word = range.load();
    word.pins() == 0
        && word.has(Word::RAW)
        && word.plain()
        && !range.is(flag::TORN | flag::SUSPECT)
        && range.priority.load(Ordering::Relaxed) == seen.priority.load(Ordering::Relaxed)
        && range.age.load(Ordering::Relaxed) >= age
}

fn claim_cold(id: RangeId, seen: &Tracked, age: u8, bytes: usize) -> Option<Claim> {
    let short = tracked(id).len() + bytes <= LONGEST_JOIN;
    if !short || !fits(id, seen, age) {
        return None;
    }
    TRACKING.claims.try_claim(id, tracked(id), |word| word.pins() == 0 && word.plain())
}
