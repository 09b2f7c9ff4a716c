//! Tracked ranges in a forked child.

#![allow(unsafe_code, reason = "takes over the map in a forked child, and drops pages")]

use super::list::List;
use super::map::{IntervalMap, Supplies};
use super::state::{flag, Claim, RangeId, Tracked, Word};
use super::{backpressure, detection, unmade, TRACKING};
use crate::os::{advise, maps, uffd};
use crate::range::PageRange;
use crate::runtime::turn;
use detection::Kind;
use std::sync::atomic::Ordering;

/// Ends the claims of threads that do not exist in the child, and makes ranges and interval map
/// consistent.
pub(super) fn recover() {
    TRACKING.claims.reset_in_child();
    TRACKING.claims.gate.open();
    TRACKING.slab.each(|_, tracked, _| TRACKING.claims.end_foreign(tracked));
    let half_changed = TRACKING.map.reset_in_child();
    with_map(|map| {
        if half_changed || !forget_what_is_not_in_the_map(map) {
            rebuild(map);
        }
    });
}

/// Runs `act` on the map. If the thread whose signal handler has made the child has the map's lock,
/// the whole recovery runs when that thread gives the lock back.
fn with_map(act: impl FnOnce(&mut IntervalMap)) {
    let later = |map: &mut IntervalMap| {
        if !forget_what_is_not_in_the_map(map) {
            rebuild(map);
        }
        forget_what_was_not_inherited(map);
    };
    // SAFETY: a child has one thread while it is being recovered.
    if let Some(map) = unsafe { TRACKING.map.in_child(later) } {
        act(map);
    }
}

/// A join takes ranges out of the map a moment before they are forgotten. No unmark could take such
/// ranges back, but the worker would offer them. `false`: such a range has losses or offered pages,
/// so the map is not right. Allocates nothing: a thread that does not exist here may have been in
/// the allocator.
fn forget_what_is_not_in_the_map(map: &IntervalMap) -> bool {
    let mut fits = true;
    TRACKING.slab.each(|id, tracked, word| {
        let raw = word.has(Word::RAW) && tracked.len() > 0;
        if !raw || map.starting_at(tracked.range().start) == Some(id) {
            return;
        }
        match TRACKING.claims.try_claim(id, tracked, Word::plain) {
            Some(mut claim) => {
                std::mem::forget(claim.side().take());
                TRACKING.slab.free(claim);
            }
            // Either the thread that took it out still owns it and continues here, or that thread
            // has forgotten it.
            None if tracked.load().has(Word::CLAIMED | Word::FREE) => {}
            None => fits = false,
        }
    });
    fits
}

/// Rebuilds the map: a split or a join that was half done leaves ranges that overlap.
fn rebuild(place: &mut IntervalMap) {
    // As everywhere in a child of a raw clone, a thread that does not exist here may hold locks of
    // the program's allocator.
    const NO_MEMORY: &str = "tenure: memory to list the ranges of a child";
    let mut raw: List<(usize, RangeId, &'static Tracked)> = List::new();
    TRACKING.slab.each(|id, tracked, word| {
        if word.has(Word::RAW) && tracked.len() > 0 {
            raw.push((tracked.range().start, id, tracked)).expect(NO_MEMORY);
        }
    });
    raw.sort_unstable_by_key(|(start, id, _)| (*start, *id));
    let mut below: Option<(RangeId, &Tracked)> = None;
    for (start, id, tracked) in raw.iter() {
        let kept = below.is_none_or(|below| settle_overlap(below, (*id, tracked), *start));
        if kept {
            below = Some((*id, tracked));
        }
    }
    let mut map = IntervalMap::new();
    let mut count = 0;
    for (start, id, tracked) in raw {
        if tracked.load().has(Word::FREE) {
            continue;
        }
        if !map.has_room(1) {
            drop(map.supply(Supplies::make(map.wants(1)).expect(NO_MEMORY)));
        }
        map.insert(start, id);
        count += 1;
    }
    TRACKING.raw.store(count, Ordering::Release);
    // The old map may be half changed, so it is not dropped.
    place.abandon();
    *place = map;
}

/// Of two ranges that overlap, the lower one keeps the common part if the upper one is only marked,
/// with nothing offered or lost: the upper one was joined to it, or is about to be cut off.
/// Otherwise the upper one keeps it. `false`: the upper one is gone.
fn settle_overlap(
    lower: (RangeId, &'static Tracked),
    upper: (RangeId, &'static Tracked),
    at: usize,
) -> bool {
    let (low, high) = (lower.1.range(), upper.1.range());
    if low.end <= at {
        return true;
    }
    let silent = |word: Word| word.pins() == 0 && word.plain();
    let claim = TRACKING.claims.try_claim(upper.0, upper.1, silent);
    if let Some(claim) = claim.filter(|_| high.end <= low.end) {
        TRACKING.slab.free(claim);
        return false;
    }
    if let Some(mut claim) = TRACKING.claims.try_claim(lower.0, lower.1, |_| true) {
        match low.start < at {
            true => claim.move_to(PageRange::new(low.start, at)),
            false => TRACKING.slab.free(claim),
        }
    }
    true
}

/// Watches in the child the ranges that the parent watched, and forgets ranges that the child did
/// not inherit. A page that was discarded in between is missing here too, so it still counts as
/// purged.
pub(super) fn reset(missed: bool) {
    if TRACKING.claims.gate.is_unsure() {
        TRACKING.slab.each(|_, tracked, _| TRACKING.claims.end_foreign(tracked));
    }
    TRACKING.claims.reset_in_child();
    TRACKING.claims.gate.open();
    backpressure::reset_in_child();
    let watching = detection::by_userfaultfd();
    // Before now touches may have made zeros of purged pages, also of those that this child watches.
    let unseen = detection::reset_in_child() || missed;
    with_map(forget_what_was_not_inherited);
    if !watching {
        // A thread of the parent's may have opened descriptors and not published them yet.
        detection::forget_descriptors();
        return;
    }
    let reopened = detection::reopen().is_ok();
    let fd = detection::raw(Kind::Sigbus);
    let watcher = uffd::Watcher::of_this_process(fd);
    TRACKING.slab.each(|id, tracked, word| {
        tracked.not_refilled();
        let offered = word.has(Word::OFFERED);
        if !offered && !unmade::is_unmade(word) {
            // All of the range is present, or is zeros that the program may write. The next offer
            // watches it anew.
            tracked.not_watched();
            return;
        }
        if word.has(Word::CLAIMED) {
            // Claimed by this thread, whose signal handler forks. It continues here, perhaps after
            // the end of the watch, or with facts about the parent's pages.
            tracked.not_watched();
            tracked.suspect();
            return;
        }
        let unseen = unseen || !offered && !tracked.is(flag::WHOLLY_WATCHED);
        // This thread goes on making it, and has put some of its pages in place. It writes the others
        // in place, too, and the next pin watches what is lost then.
        let is_being_made = unseen && !offered && word.pins() > 0 && turn::any_goes_on();
        let watches = reopened && fd >= 0 && !is_being_made;
        let mut registered = watches && uffd::register(watcher, tracked.range()).is_ok();
        // A lost page is to be missing until its owner makes it.
        if registered && unseen && !offered && !discard_touched(id, tracked) {
            let _ = uffd::unregister(watcher, tracked.range());
            registered = false;
        }
        match registered {
            true => tracked.watched_again(),
            false => tracked.not_watched(),
        }
        if offered && (!registered || unseen) {
            tracked.suspect();
        }
    });
}

/// Discards what touches have made of a range's lost pages. `false`: it could not.
fn discard_touched(id: RangeId, tracked: &'static Tracked) -> bool {
    let claim = TRACKING.claims.try_claim(id, tracked, unmade::is_unmade);
    claim.is_some_and(|mut claim| unmade::discard_all(&mut claim).is_ok())
}

/// Forgets raw ranges that the parent gave MADV_DONTFORK: other memory may be mapped at their
/// addresses here.
fn forget_what_was_not_inherited(map: &mut IntervalMap) {
    if TRACKING.raw.load(Ordering::Acquire) == 0 {
        return;
    }
    let mut from = crate::os::page_size();
    while from < TOP {
        // One question to the kernel covers a run of neighbours.
        let Some((first, run)) = next_run(map, from) else { return };
        from = run.end;
        if maps::is_mapped(run) {
            continue;
        }
        let mut at = first;
        while let Some(id) = at.filter(|id| TRACKING.slab.get(*id).range().start < run.end) {
            let tracked = TRACKING.slab.get(id);
            let range = tracked.range();
            if !maps::is_mapped(range) {
                let claim = TRACKING.claims.try_claim(id, tracked, |_| true);
                if let Some(claim) = claim {
                    let mapped = maps::is_partly_mapped(range);
                    leave_behind(map, claim, mapped);
                }
            }
            let rest = PageRange { start: range.end, end: run.end.max(range.end) };
            at = map.starting_in(rest).next();
        }
    }
}

/// The end of the addresses that a range may have.
const TOP: usize = isize::MAX as usize;

/// Returns the first run of ranges that touch one another, from an address on.
fn next_run(map: &IntervalMap, from: usize) -> Option<(Option<RangeId>, PageRange)> {
    let page = crate::os::page_size();
    let mut ids = map.starting_in(PageRange { start: from, end: TOP / page * page });
    let first = ids.next()?;
    let mut run = TRACKING.slab.get(first).range();
    for id in ids {
        let range = TRACKING.slab.get(id).range();
        if range.start != run.end {
            break;
        }
        run.end = range.end;
    }
    Some((Some(first), run))
}

/// Forgets a range of which a part at least is not mapped here.
fn leave_behind(map: &mut IntervalMap, mut claim: Claim, mapped: bool) {
    let range = claim.range();
    if !mapped {
        map.remove(range.start, claim.id());
        TRACKING.raw.fetch_sub(1, Ordering::AcqRel);
        // Not freed: a fork handler calls no allocator.
        std::mem::forget(claim.side().take());
        TRACKING.slab.free(claim);
        return;
    }
    // A part is mapped. Its offered pages count as lost; nothing of the range is offered again.
    claim.set(flag::TORN);
    if claim.is_offered() {
        // SAFETY: the range was offered, and is reported as lost. No new memory can have been
        // mapped in it yet, and the call skips unmapped parts.
        let _ = unsafe { advise::drop_pages(range) };
        std::mem::forget(claim.side().take());
        claim.taken_back();
        claim.lost();
    }
}
