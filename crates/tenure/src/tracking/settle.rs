//! The ways of a range, as promises and the background thread call them: taken back under a pin, offered,
//! purged.

use super::detection::Kind;
use super::offer::{self, Refusal};
use super::revive::Found;
use super::state::{flag, Claim, RangeId, Tracked, Word};
use super::wake::stir;
use super::{backpressure, claims, detection, revive, settings, touched, watch_again, TRACKING};
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::lock::assert_none_held;
use crate::runtime::{fork, services, worker};
use rustix::io::Errno;

/// Takes back the pages of a range that the caller has pinned, if they are offered, and ends what is left of
/// a watch. Another thread that does so is waited for. `found` has the claim, and the extents that are gone,
/// before the range ceases to be offered; after a failure it may hear of them again.
///
/// # Errors
/// As [`revive::keep_pages`] and [`revive::complete`]; the range stays offered, and the pin is the caller's to take away.
pub(super) fn settle(
    id: RangeId,
    tracked: &'static Tracked,
    wanted: &(dyn Fn(Word) -> bool + Sync),
    found: &mut Found<'_>,
) -> Result<(), Errno> {
    before_claiming();
    // Where the process has too many mappings for the split that this may take, what waits to be unmapped goes
    // first: here, without a claim, because that takes locks for which a fork waits that waits for claims.
    let short = |errno: &Errno| *errno == Errno::NOMEM;
    let settled = match services::retry(|| settle_here(id, tracked, wanted, found), short) {
        // The background thread has a descriptor that the program cannot close.
        Err(errno) if detection::is_closed(errno) => {
            let there = worker::on_worker(|| settle_here(id, tracked, wanted, found));
            there.unwrap_or(Err(errno))
        }
        other => other,
    };
    match settled {
        // All of it is there. What is left of a watch is the next pinner's to end.
        Err(_) if !tracked.load().has(Word::OFFERED) => Ok(()),
        settled => settled,
    }
}

/// What is to be seen to before any claim is taken for it: a fork that went unseen, descriptors that are lost.
pub(super) fn before_claiming() {
    assert_none_held();
    fork::look();
    if detection::is_lost() && !worker::is_worker() {
        detection::recover(|| {
            TRACKING.slab.each(|_, tracked, _| {
                let watched = tracked.is(flag::WATCHED | flag::WHOLLY_WATCHED);
                let refilled = tracked.is(flag::REFILLED);
                tracked.not_watched();
                tracked.not_refilled();
                // Claimed: perhaps by a thread that is about to offer it as watched. Looked at after the
                // flags went: a thread that claims it later does not find them.
                if tracked.load().has(Word::OFFERED | Word::CLAIMED) {
                    tracked.suspect();
                }
                if watched {
                    // After that: a thread that takes it back and finds it whole asks whether it is suspect.
                    let kind = if refilled { Kind::Refill } else { Kind::Sigbus };
                    let _ = detection::unregister(kind, tracked.range());
                }
            });
        });
        watch_again::all();
    }
}

fn settle_here(
    id: RangeId,
    tracked: &'static Tracked,
    wanted: &dyn Fn(Word) -> bool,
    found: &mut Found<'_>,
) -> Result<(), Errno> {
    let Some(mut claim) = claims().claim(id, tracked, wanted) else { return Ok(()) };
    let offered = claim.is_offered();
    let len = claim.range().len();
    let gone = revive::keep_pages(&mut claim);
    if let Err(errno) = gone.and_then(|gone| revive::complete(&mut claim, &gone, found)) {
        drop(claim);
        // What was kept is the kernel's again.
        touched::made_again(tracked, len);
        return Err(errno);
    }
    drop(claim);
    if offered {
        stir();
        backpressure::exposed(len as u64);
    }
    Ok(())
}

/// Whether a pinner has something to do: take pages back, or end a watch.
pub(super) fn needs_settling(word: Word) -> bool {
    word.has(Word::OFFERED | Word::UNCLEAN)
}

/// Offers a claimed range. On the background thread.
pub(super) fn offer(claim: &mut Claim, split_huge: bool) -> Result<(), Refusal> {
    // Not only pinned: a claim that began before the pin would be offered under the program's hands.
    if claim.is_wanted() || claim.is_offered() {
        return Err(Refusal::Wanted);
    }
    let watched = watch_again::before_offer(claim).map_err(Refusal::not_watched);
    let offered = watched.and_then(|()| offer::offer(claim, split_huge));
    match offered {
        Ok(()) if settings::purge_always() => {
            let _ = offer::purge(claim);
        }
        Err(Refusal::Wanted) | Ok(()) => {}
        Err(_) => add(&COUNTERS.refused_offers, 1),
    }
    offered
}

/// Offers a claimed range that may be offered already. On the background thread.
pub(super) fn offer_or_again(claim: &mut Claim) -> Result<(), Refusal> {
    if !claim.is_offered() {
        return offer(claim, true);
    }
    if claim.is(flag::MADE_AGAIN) {
        // The next scan tries again.
        let _ = offer::tell_again(claim);
    }
    Ok(())
}

/// Offers a range now, whatever its age, from any thread.
pub(super) fn offer_now(id: RangeId, tracked: &'static Tracked) -> Result<(), Refusal> {
    before_claiming();
    let volatile = |word: Word| word.pins() == 0;
    let offer = move || {
        let Some(mut claim) = claims().claim(id, tracked, volatile) else {
            return Err(Refusal::Wanted);
        };
        offer_or_again(&mut claim)
    };
    worker::on_worker(offer).unwrap_or(Err(Refusal::NO_WORKER))
}

/// Offers a range and has the kernel discard it; returns how many bytes are gone.
pub(super) fn purge_now(id: RangeId, tracked: &'static Tracked) -> Result<usize, Refusal> {
    offer_now(id, tracked)?;
    let offered = |word: Word| word.has(Word::OFFERED);
    let purge = move || {
        let Some(mut claim) = claims().claim(id, tracked, offered) else {
            return Err(Refusal::Wanted);
        };
        offer::purge(&mut claim)
    };
    worker::on_worker(purge).unwrap_or(Err(Refusal::NO_WORKER))
}
