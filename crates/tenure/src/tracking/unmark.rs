//! Makes raw ranges non-volatile: takes their pages back, and reports each loss to one caller.

use super::list::List;
use super::offer::may_cut;
use super::settle;
use super::shape::{claim_marked, claimed, gaps, overlapping, tracked};
use super::side::in_order;
use super::state::{Claim, RangeId, Word};
use super::{
    backpressure, before_claiming, claims, raw, revive, touched, with_descriptors, TRACKING,
};
use crate::os::maps;
use crate::range::PageRange;
use crate::runtime::services;
use rustix::io::Errno;

/// The reason why a range could not be unmarked.
pub(crate) enum Failed {
    /// Nothing is mapped at this address.
    Hole(usize),
    Kernel(Errno),
}

/// The immediate result of an unmark of a range that is known with exactly these bounds.
pub(crate) enum Fast {
    /// It is not volatile, and all of it is there.
    Done,
    /// The caller has pinned it, and must take its pages back.
    Settle,
    /// It is another range by now, or another thread is changing it.
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
            // Unmarked already. If another thread is taking it back, the slow way waits for that
            // thread.
            return if word.plain() && tracked.rely(word) { Fast::Done } else { Fast::Slow };
        }
        if tracked.try_unmark(word) {
            return if word.plain() { Fast::Done } else { Fast::Settle };
        }
    }
}

/// Takes back the pages of one range that the caller has just pinned. `Ok(true)`: all of it is
/// there. `Ok(false)`: something is lost, or it is another range by now, so the caller calls
/// [`unmark`].
pub(crate) fn settle_exact(id: RangeId, range: PageRange) -> Result<bool, Failed> {
    let wanted =
        |word: Word| word.has(Word::RAW) && word.has(Word::OFFERED | Word::UNCLEAN | Word::LOST);
    match settle::settle(id, tracked(id), &wanted, &mut revive::record) {
        // Lost, cut or marked again meanwhile: the slow way.
        Ok(()) => Ok(matches!(try_unmark(id, range), Fast::Done)),
        Err(errno) => {
            remark(&[Pinned { id, range, uses: None }]);
            Err(Failed::Kernel(errno))
        }
    }
}

/// A range that a call has pinned.
struct Pinned {
    id: RangeId,
    range: PageRange,
    /// The use counter after the pin, if no other thread relies on the pin.
    uses: Option<u32>,
}

/// Marks again the ranges that a failed unmark had pinned, unless another call may have reported
/// one of them as not volatile. A range that has changed its shape since also stays unmarked: then
/// more is not volatile than the caller wanted, which does no harm.
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
        // No call reports the range as not volatile while it is offered. A thread that waits for
        // its pages pins it again.
        let offered = |word: Word| same(word) && word.has(Word::OFFERED | Word::CLAIMED);
        if let Some(mut claim) = claims().claim(*id, tracked, offered) {
            if claim.is_offered() && claim.range() == *range {
                claim.mark();
            }
        }
    }
}

/// Makes the range non-volatile. When it returns, all pages of the range are there, whichever
/// thread took them back. Returns the extents that were lost and had not been reported. After an
/// error the range is as volatile as before, and the losses found so far are kept for the next
/// call.
pub(crate) fn unmark(range: PageRange) -> Result<List<PageRange>, Failed> {
    let unknown = gaps(range).map_err(Failed::Kernel)?;
    // Before Linux 6.11 a look for the hole reads all mappings.
    for gap in unknown.iter().filter(|gap| !maps::is_mapped(**gap)) {
        if let Ok(Some(at)) = maps::first_hole(*gap) {
            return Err(Failed::Hole(at));
        }
    }
    before_claiming();
    let mut pinned = List::new();
    let lost = unmark_pinning(range, &mut pinned).map_err(|errno| {
        remark(&pinned);
        Failed::Kernel(errno)
    })?;
    match raw::is_unknown_lost() && !unknown.is_empty() {
        true => List::of(&[range]).map_err(|errno| {
            raw::lost_again(range);
            Failed::Kernel(errno)
        }),
        false => Ok(lost),
    }
}

/// Unmarks a range. Adds to `pinned` the ranges that it has pinned, which are marked again after an
/// error.
fn unmark_pinning(range: PageRange, pinned: &mut List<Pinned>) -> Result<List<PageRange>, Errno> {
    loop {
        let known = pin_all(range, pinned)?;
        let mut bytes = 0;
        // As in `settle`: without a claim, retired mappings are unmapped first.
        let short = |errno: &Errno| *errno == Errno::NOMEM;
        let taken = services::retry(|| with_descriptors(|| take_back(&known, &mut bytes)), short);
        if bytes > 0 {
            super::wake::stir();
            backpressure::exposed(bytes);
        }
        taken?;
        // The losses are taken out when no work remains. Another thread that unmarks meanwhile
        // either gets them or waits for them. If another thread has cut or marked a range
        // meanwhile, the loop runs once more.
        if bytes == 0 && all_there(range) {
            if let Some(lost) = take_losses(range)? {
                return Ok(lost);
            }
        }
    }
}

/// Takes all of these ranges back, or none: while one of them fails, all stay offered and watched.
/// The purged extents are recorded. Adds the number of returned bytes to `bytes`.
fn take_back(ids: &[RangeId], bytes: &mut u64) -> Result<(), Errno> {
    let wanted = |word: Word| {
        word.has(Word::RAW) && word.pins() > 0 && word.has(Word::OFFERED | Word::UNCLEAN)
    };
    let mut gone = List::with_room(ids.len())?;
    let mut claims = claims().claim_all(ids.iter().map(|id| (*id, tracked(*id))), wanted)?;
    let taken = take_back_claimed(&mut claims, &mut gone, bytes);
    if taken.is_err() {
        // The kernel may take the kept pages again.
        claims.iter().for_each(|claim| touched::made_again(claim.tracked(), claim.range().len()));
    }
    taken
}

/// `gone` gets the extents of each range.
fn take_back_claimed(
    claims: &mut [Claim],
    gone: &mut List<List<PageRange>>,
    bytes: &mut u64,
) -> Result<(), Errno> {
    for claim in claims.iter_mut() {
        gone.push(revive::keep_pages(claim)?)?;
    }
    for number in 0..claims.len() {
        let claim = &mut claims[number];
        let offered = claim.is_offered();
        match revive::complete(claim, &gone[number], &mut revive::record) {
            Ok(()) if offered => *bytes += claim.range().len() as u64,
            Ok(()) => {}
            Err(errno) => {
                // The purged extents are recorded, whether or not they can be watched again.
                let done = claims.iter_mut().zip(gone.iter()).take(number);
                done.filter(|(_, gone)| !gone.is_empty()).for_each(|(claim, _)| {
                    let _ = revive::undo(claim);
                });
                return Err(errno);
            }
        }
    }
    Ok(())
}

/// Returns whether a range needs no more work. A range that another thread has claimed may need it:
/// that thread may fail, and offer it again.
fn is_there(word: Word) -> bool {
    word.pins() > 0 && !word.has(Word::OFFERED | Word::UNCLEAN)
}

/// Returns whether no part of the range is volatile or offered, or may soon be so.
fn all_there(range: PageRange) -> bool {
    let map = TRACKING.map.lock();
    map.overlapping(range).all(|id| {
        let word = tracked(id).load();
        is_there(word) && !word.has(Word::CLAIMED)
    })
}

/// Takes out the losses recorded inside `range`: each loss goes to one caller. `None`: a part is
/// not there any more.
fn take_losses(range: PageRange) -> Result<Option<List<PageRange>>, Errno> {
    let mut lost = List::new();
    if is_lost(range) {
        // All claims at once: if a range were cut meanwhile, the part that was cut off would keep
        // its losses.
        let mut claims = claimed(range)?;
        if !claims.iter().all(|claim| is_there(claim.word())) {
            return Ok(None);
        }
        // All lists are made first: without memory, a loss that was taken out of one list could not
        // be put back.
        for claim in claims.iter_mut() {
            list_recorded(claim, range, &mut lost)?;
        }
        claims.iter_mut().for_each(|claim| take_recorded(claim, range));
    }
    in_order(&mut lost);
    Ok(Some(lost))
}

fn is_lost(range: PageRange) -> bool {
    let map = TRACKING.map.lock();
    map.overlapping(range).any(|id| tracked(id).load().has(Word::LOST))
}

/// Pins every marked range that overlaps, cut to `range`. Returns all ranges that overlap.
fn pin_all(range: PageRange, pinned: &mut List<Pinned>) -> Result<List<RangeId>, Errno> {
    let mut may_pin_more = false;
    loop {
        let known = overlapping(range)?;
        pinned.reserve(known.len() + 2)?;
        let crosses = |id: &RangeId| {
            let part = tracked(*id).range();
            tracked(*id).load().pins() == 0 && (part.start < range.start || part.end > range.end)
        };
        let ends = [known.first().copied(), known.last().copied()].into_iter().flatten();
        let to_cut = ends.clone().any(|id| crosses(&id));
        if to_cut && !may_pin_more {
            let watched = |id: &RangeId| crosses(id) && tracked(*id).load().has(Word::OFFERED);
            // If mappings are short, or the limit on ranges is reached, more than the requested
            // range becomes non-volatile, which does no harm.
            may_pin_more = ends.clone().any(|id| watched(&id)) && !may_cut(range);
            may_pin_more |= !may_pin_more && claim_marked(range)?.is_none();
            // The cut made new ranges, so they are looked up again.
            continue;
        }
        let map = TRACKING.map.lock();
        let same = map.overlapping(range).eq(known.iter().copied());
        if !same || (!may_pin_more && ends.clone().any(|id| crosses(&id))) {
            continue;
        }
        for id in known.iter() {
            pin_marked(*id, pinned);
        }
        drop(map);
        return Ok(known);
    }
}

/// `pinned` has room.
fn pin_marked(id: RangeId, pinned: &mut List<Pinned>) {
    let tracked = tracked(id);
    loop {
        let word = tracked.load();
        if word.has(Word::FREE) {
            return;
        }
        if word.pins() > 0 {
            // Only the first few pins are searched for the caller's own. Another of its own pins
            // counts as one that others rely on, so its range stays unmarked after a failure.
            let few = &pinned[..pinned.len().min(16)];
            let mine = few.iter().any(|p| p.id == id && p.uses == Some(word.uses()));
            if mine || tracked.rely(word) {
                return;
            }
        } else if tracked.try_unmark(word) {
            let uses = Some(word.uses().wrapping_add(1));
            let _ = pinned.push(Pinned { id, range: tracked.range(), uses });
            return;
        }
    }
}

/// Adds the losses recorded inside `range`, and makes room for [`take_recorded`].
fn list_recorded(
    claim: &mut Claim,
    range: PageRange,
    lost: &mut List<PageRange>,
) -> Result<(), Errno> {
    if !claim.word().has(Word::LOST) {
        return Ok(());
    }
    let whole = claim.range();
    let side = claim.side_mut()?;
    side.list_losses(whole)?;
    for extent in side.losses.iter() {
        let inside =
            PageRange { start: extent.start.max(range.start), end: extent.end.min(range.end) };
        if inside.start < inside.end {
            lost.push(inside)?;
        }
    }
    Ok(())
}

/// Takes out the losses recorded inside `range`: each loss goes to one caller.
fn take_recorded(claim: &mut Claim, range: PageRange) {
    let Some(side) = claim.side() else { return };
    side.found_again(range);
    if !side.has_losses() {
        claim.not_lost();
    }
}
