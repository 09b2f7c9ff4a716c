//! Raw ranges: memory that the program itself has mapped.
//!
//! A raw range has one pin while it is not volatile, and none while it is marked.

use super::forgotten::Forgotten;
use super::offer::{self, Refusal};
use super::settle;
use super::shape::{
    claim_marked, claimed_to_cut, each_gap, gaps, lock_with_room, overlapping, tracked, Change,
};
use super::state::{flag, Claim, RangeId, Word};
use super::{backpressure, changes, detection, settings, TRACKING};
use crate::os::maps::{self, Unfit};
use crate::os::page_size;
use crate::range::PageRange;
use crate::runtime::lock::{may_lock, Rank};
use crate::runtime::{services, worker};
use crate::sync::{own_claims, yield_now};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// The reason why a range could not be marked.
pub(crate) enum Unmarkable {
    Unfit(Unfit),
    /// 2^25 ranges are known, or there is no memory for more.
    Full,
    NoMemory,
}

fn no_memory(_: Errno) -> Unmarkable {
    Unmarkable::NoMemory
}

/// Returns whether any raw range is known. One load.
pub(crate) fn any() -> bool {
    TRACKING.raw.load(Ordering::Acquire) > 0
}

/// Marks a range that is known with exactly these bounds, if its state allows that without waiting,
/// and if there is a background thread to offer it. There is none in a new child, or after the
/// thread was ended.
#[inline]
pub(crate) fn try_mark(id: RangeId, range: PageRange) -> bool {
    if !worker::running() {
        return false;
    }
    let tracked = tracked(id);
    loop {
        // The word is read first: if the range has become another one since, the exchange below
        // fails.
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

/// Marks a range. Returns its number if it is now known with exactly these bounds.
pub(crate) fn mark(range: PageRange, priority: Option<u8>) -> Result<Option<RangeId>, Unmarkable> {
    {
        let map = TRACKING.map.lock();
        if let Some(id) = map.exact(range) {
            drop(map);
            // The number may belong to another range since. Then this is one more change of
            // priority that the program did not ask for, and the code below does the rest.
            if priority.is_none() && try_mark(id, range) {
                return Ok(Some(id));
            }
        }
    }
    loop {
        let unknown = gaps(range).map_err(no_memory)?;
        maps::check_all_volatile(&unknown).map_err(Unmarkable::Unfit)?;
        // If nothing is known, there are no ends to cut. Only `unknown` shows that, because only it
        // is checked again below. Ranges that were known beside the gaps a moment later may have
        // gone, and come back with ends.
        let (known, cuts) = match *unknown == [range] {
            true => (0, 0),
            false => (overlapping(range).map_err(no_memory)?.len(), 2),
        };
        let numbers = unknown.len() + cuts;
        let change = Change::new(known, numbers).map_err(no_memory)?;
        let mut change = change.ok_or(Unmarkable::Full)?;
        let map = lock_with_room(numbers).map_err(no_memory)?;
        let mut map = match change.claim_to_cut(map, numbers, range) {
            Ok(map) => map,
            Err(waiting) => {
                drop(change);
                waiting.wait().map_err(no_memory)?;
                continue;
            }
        };
        let mut same = unknown.iter();
        let mut changed = false;
        each_gap(&map, range, |gap| changed |= same.next() != Some(&gap));
        if changed || same.next().is_some() {
            continue;
        }
        // A marked part beyond the range stays one with it; an unmarked part is cut off.
        change.cut_ends(&mut map, range, |claim| claim.word().pins() > 0);
        let level = priority.unwrap_or(settings::Priority::DEFAULT.level());
        for gap in unknown.iter() {
            let spare = change.spares.pop().expect("a spare number for each gap");
            let mut claim = spare.begin(&TRACKING.claims, *gap, 0, Word::RAW, level);
            if is_unknown_lost() {
                claim.lost();
            }
            map.insert(gap.start, claim.id());
            TRACKING.raw.fetch_add(1, Ordering::AcqRel);
            backpressure::count(gap.len() as u64);
            // The list has room.
            let _ = change.claims.push(claim);
        }
        change.claims.sort_unstable_by_key(|claim| claim.range().start);
        for claim in change.claims.iter_mut() {
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
        super::wake::stir();
        return Ok(exact);
    }
}

/// Offers the marked parts inside `range`, cut at its ends so that nothing beyond is touched.
/// `purge`: also has the kernel discard them. Returns how many bytes are gone. `None`: nothing in
/// it is marked.
///
/// All of it runs on the background thread, with the claims held from the cut on. So nothing is
/// joined to the ranges beside it meanwhile.
pub(crate) fn offer_range(range: PageRange, purge: bool) -> Option<Result<usize, Refusal>> {
    super::before_claiming();
    let offer_all = move || {
        let marked = match claim_marked(range) {
            Ok(marked) => marked.unwrap_or_default(),
            Err(errno) => return Some(Err(errno.into())),
        };
        if marked.is_empty() {
            return None;
        }
        let mut gone = 0;
        for mut claim in marked {
            let purged = settle::offer_or_again(&mut claim).and_then(|()| match purge {
                true => offer::purge(&mut claim),
                false => Ok(0),
            });
            match purged {
                Ok(bytes) => gone += bytes,
                Err(refusal) => return Some(Err(refusal)),
            }
        }
        Some(Ok(gone))
    };
    worker::on_worker(offer_all).unwrap_or(Some(Err(Refusal::NO_WORKER)))
}

/// Forgets the volatile parts of a range that the program has changed without tenure: unmapped,
/// protected, locked, or replaced by memory that cannot be volatile. What lies beside them may be offered
/// at once. Returns the first change, also of a part that stays known.
pub(crate) fn forget_changed(range: PageRange) -> Option<Unfit> {
    // Before 6.11 each look reads all mappings. The next refused call looks at the other parts.
    let mut looks = if maps::query_works() { usize::MAX } else { 64 };
    let (mut first, mut forgot) = (None, false);
    let all_may_go = |claims: &[Claim]| claims.iter().all(changes::may_be_forgotten);
    for (part, unfit) in changes::unfit_parts(range).unwrap_or_default().iter() {
        for id in overlapping(*part).unwrap_or_default().iter() {
            let (known, word) = (tracked(*id).range(), tracked(*id).load());
            let (start, end) = (known.start.max(part.start), known.end.min(part.end));
            if start >= end || word.pins() > 0 && !matches!(unfit, Unfit::Hole(_)) {
                continue;
            }
            first = first.or(Some(*unfit));
            if changes::goes(word, *unfit) && looks > 0 {
                looks -= 1;
                // If there is no memory for a cut, the next refused call tries again.
                let part = PageRange { start, end };
                forgot |= matches!(drop_known(part, all_may_go), Ok(Some(_)));
            }
        }
    }
    if forgot {
        let rest = overlapping(range).unwrap_or_default();
        rest.iter().for_each(|id| tracked(*id).rest.store(0, Ordering::Relaxed));
    }
    first
}

/// Returns the range that is known with exactly these bounds.
pub(crate) fn exact(range: PageRange) -> Option<RangeId> {
    TRACKING.map.lock().exact(range)
}

/// Returns whether any page of the range is marked.
pub(crate) fn is_marked(range: PageRange) -> bool {
    any() && {
        let map = TRACKING.map.lock();
        map.overlapping(range).any(|id| tracked(id).load().pins() == 0)
    }
}

/// Forgets an unmarked range. `false`, and nothing is forgotten: another thread has marked a part
/// since, or has not reported its losses yet. Forgetting it then would leave pages watched that no
/// unmark takes back.
///
/// # Errors
/// `ENOMEM`: nothing is forgotten.
pub(crate) fn forget(range: PageRange) -> Result<bool, Errno> {
    let unfinished = Word::OFFERED | Word::UNCLEAN | Word::LOST;
    let settled = |word: Word| word.pins() > 0 && !word.has(unfinished);
    let all_are = |claims: &[Claim]| claims.iter().all(|claim| settled(claim.word()));
    Ok(drop_known(range, all_are)?.is_some())
}

/// Forgets a range, whose pages stay as they are, if `may_go` holds for its parts.
///
/// # Errors
/// `ENOMEM`: nothing is forgotten; there is no memory, or no number, for the cuts at its ends.
fn drop_known(
    range: PageRange,
    may_go: impl Fn(&[Claim]) -> bool,
) -> Result<Option<Forgotten>, Errno> {
    loop {
        let (mut map, mut change) =
            services::retry(|| claimed_to_cut(range), |errno| *errno == Errno::NOMEM)?;
        let reaches_out = |claim: &Claim| outside(claim, range) != [None, None];
        if !change.can_cut_ends() && change.claims.iter().any(reaches_out) {
            return Err(Errno::NOMEM);
        }
        if change.can_cut_ends() {
            // Before the check: a loss beyond the range must not be reported to this caller.
            change.cut_ends(&mut map, range, |_| true);
        }
        let surplus = map.surplus();
        drop(map);
        drop(surplus);
        // Without the map's lock, because this may ask the kernel: a signal handler may fork meanwhile.
        // The claims keep the ranges as they are.
        if !may_go(&change.claims) {
            return Ok(None);
        }
        // A thread with claims does not wait for the map, because a fork holds it while it waits for
        // claims.
        let Some(mut map) = TRACKING.map.try_lock() else {
            drop(change);
            yield_now();
            continue;
        };
        let mut forgotten = Forgotten::default();
        change.claims.iter().for_each(|claim| forgotten.add(claim));
        change.forget_all(&mut map);
        let surplus = map.surplus();
        drop(map);
        drop(surplus);
        change.finish();
        return Ok(Some(forgotten));
    }
}

/// Returns the parts of a claimed range that lie below and above `range`.
fn outside(claim: &Claim, range: PageRange) -> [Option<PageRange>; 2] {
    let whole = claim.range();
    let below = PageRange { start: whole.start, end: range.start };
    let above = PageRange { start: range.end, end: whole.end };
    [below, above].map(|part| Some(part).filter(|part| part.start < part.end))
}

/// Marks pages as lost again that were found lost, if the call then did not report them. The next
/// unmark reports them. Takes no memory, so it may mark more pages than those.
pub(crate) fn lost_again(range: PageRange) {
    let mut at = range.start;
    while at < range.end {
        let map = TRACKING.map.lock();
        let rest = PageRange::new(at, range.end);
        let Some(id) = map.overlapping(rest).next() else { return };
        match TRACKING.claims.try_claim(id, tracked(id), |_| true) {
            Some(mut claim) => {
                claim.lost_as_a_whole();
                at = claim.range().end;
            }
            None => {
                drop(map);
                TRACKING.claims.wait(id, tracked(id));
            }
        }
    }
}

/// Forgets a range that is about to be unmapped, or in which a mapping of tenure's own now lies,
/// without taking its pages back. Waits for a thread that works on them. `None`: a part is known, but
/// `may_go` returns `false`, so nothing is forgotten. While it is asked the worker changes nothing of
/// the range.
pub(crate) fn forget_unmapped(range: PageRange, may_go: impl Fn() -> bool) -> Option<Forgotten> {
    if !any() {
        return Some(Forgotten::default());
    }
    match drop_known(range, |claims| claims.is_empty() || may_go()) {
        Ok(forgotten) => forgotten,
        Err(_) => may_go().then(|| drop_each(range)),
    }
}

/// This part of a forgotten range is still mapped. If it was marked, it counts as lost from here on.
#[cold]
pub(crate) fn stays(forgotten: Forgotten, part: PageRange) {
    if forgotten.unsettled {
        unknown_is_lost();
    }
    if forgotten.watched {
        end_watch(part);
    }
}

/// Ends the watch of a forgotten range: a touch would raise SIGBUS for ever.
pub(crate) fn end_watch(range: PageRange) {
    // One by one: for a range with a mapping that cannot be watched, a file's, the kernel refuses the
    // call.
    let _ = maps::each_mapping(range, |mapping| {
        let start = mapping.start.max(range.start);
        let piece = PageRange { start, end: mapping.end.min(range.end) };
        if piece.start < piece.end {
            let _ = detection::unregister(detection::Kind::Sigbus, piece);
        }
    });
}

/// Returns whether [`forget_unmapped`] would wait for code that the caller, a signal handler, has
/// interrupted.
pub(crate) fn is_inside(range: PageRange) -> bool {
    let overlaps = |known: PageRange| known.start < range.end && range.start < known.end;
    let is_claimed = || {
        let mut claimed = false;
        TRACKING.slab.each(|_, tracked, word| {
            let is_raw_claim = word.has(Word::RAW) && word.has(Word::CLAIMED);
            claimed |= is_raw_claim && overlaps(tracked.range());
        });
        claimed
    };
    let is_locked = || TRACKING.map.is_mine() || !may_lock(Rank::IntervalMap);
    any() && (is_locked() || own_claims() > 0 && is_claimed())
}

/// Forgets the ranges without memory for a list: one after another. A range that stays known would
/// be offered when another mapping lies there. Of a range that reaches out, the part outside stays
/// known.
fn drop_each(range: PageRange) -> Forgotten {
    let mut forgotten = Forgotten::default();
    // For the one range that can reach out at both ends. Taken before the map is locked.
    let mut number = TRACKING.slab.spare();
    loop {
        let mut map = TRACKING.map.lock();
        let Some(id) = map.overlapping(range).next() else { return forgotten };
        let Some(mut claim) = TRACKING.claims.try_claim(id, tracked(id), |_| true) else {
            drop(map);
            TRACKING.claims.wait(id, tracked(id));
            continue;
        };
        forgotten.add(&claim);
        let from = claim.range().start;
        let page = page_size();
        match outside(&claim, range) {
            [Some(below), None] => claim.clip_to(below, page),
            [None, Some(above)] if map.move_up(from, above.start, id) => {
                TRACKING.slab.moved();
                claim.clip_to(above, page);
            }
            [Some(below), Some(above)] => {
                match number.take().filter(|_| map.has_room(1)) {
                    Some(number) => {
                        let part = claim.part_above(above.start, number.take());
                        map.insert(above.start, part.id());
                        TRACKING.raw.fetch_add(1, Ordering::AcqRel);
                    }
                    None => part_is_lost(&claim, above),
                }
                TRACKING.slab.moved();
                claim.clip_to(below, page);
            }
            [None, above] => {
                above.into_iter().for_each(|above| part_is_lost(&claim, above));
                map.remove(from, id);
                TRACKING.raw.fetch_sub(1, Ordering::AcqRel);
                drop(map);
                TRACKING.slab.free(claim);
            }
        }
    }
}

/// A marked part can no longer be tracked. From here on all unknown memory counts as lost when it
/// is unmarked. That is too much, but it is the only result that is never wrong.
fn unknown_is_lost() {
    TRACKING.unknown_is_lost.store(true, Ordering::Release);
}

/// See [`unknown_is_lost`].
fn part_is_lost(claim: &Claim, part: PageRange) {
    unknown_is_lost();
    if claim.is(flag::WATCHED) {
        // Otherwise a touch would raise SIGBUS for ever.
        let _ = detection::unregister(offer::kind(claim), part);
    }
}

/// See [`unknown_is_lost`].
pub(super) fn is_unknown_lost() -> bool {
    TRACKING.unknown_is_lost.load(Ordering::Acquire)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use crate::tracking::{ready, unmark};
    use tenure_testkit::{in_child, this_test};

    /// Makes a range that is known and not volatile.
    fn known() -> (Mapping, RangeId) {
        ready("test").unwrap();
        let memory = Mapping::anonymous(16 * page_size()).unwrap();
        assert!(mark(memory.range(), None).is_ok());
        assert!(unmark::unmark(memory.range()).is_ok_and(|lost| lost.is_empty()));
        let id = exact(memory.range()).unwrap();
        (memory, id)
    }

    /// Else no call would report the loss.
    #[test]
    fn a_range_with_a_loss_that_no_call_has_reported_is_not_forgotten() {
        in_child(this_test!(), &[], || {
            let (memory, _) = known();
            let range = memory.range();
            lost_again(range);
            assert_eq!(forget(range), Ok(false));
            assert!(unmark::unmark(range).is_ok_and(|lost| lost[..] == [range]));
            assert_eq!(forget(range), Ok(true));
        });
    }

    /// The thread that has the claim may be about to forget the range: the mark would go with it.
    #[test]
    fn a_range_that_a_thread_changes_is_not_marked_meanwhile() {
        in_child(this_test!(), &[], || {
            let (memory, id) = known();
            let claim = TRACKING.claims.claim(id, tracked(id), |_| true).unwrap();
            let marked = try_mark(id, memory.range());
            drop(claim);
            assert!(!marked && !is_marked(memory.range()));
            assert!(try_mark(id, memory.range()), "nothing else keeps it from being marked");
        });
    }
}
