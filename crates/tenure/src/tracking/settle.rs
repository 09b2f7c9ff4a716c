//! The transitions of a range, as the promises and the background thread call them: taken back
//! under a pin, offered, purged.

use super::descriptors::{before_claiming, with_descriptors};
use super::offer::{self, Refusal};
use super::revive::Found;
use super::state::{flag, Claim, RangeId, Tracked, Word};
use super::wake::stir;
use super::{backpressure, claims, revive, settings, touched, watch_again};
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::{services, worker};
use rustix::io::Errno;

/// Takes back the pages of a range that the caller has pinned, if they are offered, and ends the
/// rest of a watch. Waits for another thread that does so. `found` gets the claim and the purged
/// extents before the range ceases to be offered. After a failure it may get the extents again.
///
/// # Errors
/// As for [`revive::keep_pages`] and [`revive::complete`]. The range stays offered, and the caller
/// takes its pin away.
pub(super) fn settle(
    id: RangeId,
    tracked: &'static Tracked,
    wanted: &(dyn Fn(Word) -> bool + Sync),
    found: &mut Found<'_>,
) -> Result<(), Errno> {
    before_claiming();
    // If the process has too many mappings for the split that this may need, retired mappings are
    // unmapped first. That happens here, without a claim: it takes locks that a fork holds while it
    // waits for claims.
    let short = |errno: &Errno| *errno == Errno::NOMEM;
    let mut settle = || with_descriptors(|| settle_here(id, tracked, wanted, found));
    match services::retry(&mut settle, short) {
        // All pages are there. The next thread that pins the range ends the rest of the watch.
        Err(_) if !tracked.load().has(Word::OFFERED) => Ok(()),
        settled => settled,
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
        // The kernel may take the kept pages again.
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

/// Returns whether a thread that pins the range must take pages back, or end a watch.
pub(super) fn needs_settling(word: Word) -> bool {
    word.has(Word::OFFERED | Word::UNCLEAN)
}

/// Offers a claimed range. On the background thread.
pub(super) fn offer(claim: &mut Claim, split_huge: bool) -> Result<(), Refusal> {
    // Not only for pins: a range whose claim began before the pin would be offered while the
    // program uses it.
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
    // If this fails, the next scan tries again.
    match claim.is(flag::MADE_AGAIN).then(|| offer::tell_again(claim)) {
        Some(Err(refusal @ (Refusal::Kernel(..) | Refusal::Changed(_)))) => Err(refusal),
        _ => Ok(()),
    }
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

/// Offers a range and has the kernel discard it. Returns how many bytes are gone.
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
