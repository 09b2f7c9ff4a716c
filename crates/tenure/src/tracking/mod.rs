//! What is volatile: the state of every tracked range, and everything that is done to it.
//!
//! - [`state`]: the state machine. A pin changes one word; [`state::Claim`] is the right to do the rest.
//! - [`slab`], [`map`], [`side`]: where ranges live, the raw ones in order of address, and their side data.
//! - [`mod@offer`], [`revive`], [`detection`]: telling the kernel, taking back, and noticing what is gone.
//! - [`scan`], [`backpressure`]: when the background thread offers, and who waits for it.
//! - [`service`], [`wake`]: forks, and how the background thread comes here.
//! - [`owned`], [`raw`]: the two kinds of ranges, as the promises use them.

pub(crate) mod backpressure;
pub(crate) mod detection;
mod gate;
mod in_child;
mod map;
pub(crate) mod offer;
pub(crate) mod owned;
pub(crate) mod raw;
pub(crate) mod revive;
mod scan;
mod service;
pub(crate) mod settings;
pub(crate) mod side;
mod slab;
pub(crate) mod state;
mod wake;

pub(crate) use service::{ready, watch_forks};

use crate::os::uffd;
use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::lock::{assert_none_held, Lock, Rank};
use crate::runtime::{fork, worker};
use map::IntervalMap;
use offer::Refusal;
use rustix::io::Errno;
use slab::Slab;
use state::{Claim, Claims, RangeId, Tracked, Word};
use std::sync::atomic::AtomicUsize;
use wake::stir;

/// All tracked ranges of the process.
struct Tracking {
    slab: Slab,
    claims: Claims,
    /// The raw ranges in order of address. Its lock orders every change of their shape; claims are taken
    /// under it, but never waited for.
    map: Lock<IntervalMap>,
    /// How many raw ranges there are, so that unmapping memory of a program without any takes no lock.
    raw: AtomicUsize,
}

static TRACKING: Tracking = Tracking {
    slab: Slab::new(),
    claims: Claims::new(),
    map: Lock::new(Rank::IntervalMap, IntervalMap::new()),
    raw: AtomicUsize::new(0),
};

/// Takes back the pages of a range that the caller has pinned, if they are offered, and ends what is left of
/// a watch. Another thread that does so is waited for. `finish` has the claim, and the extents that are gone,
/// before any other pinner gets on.
///
/// # Errors
/// As [`revive::keep_pages`] and [`revive::complete`]; the range stays offered, and the pin is the caller's to take away.
fn settle(
    id: RangeId,
    tracked: &'static Tracked,
    wanted: &(dyn Fn(Word) -> bool + Sync),
    finish: &mut (dyn FnMut(&mut Claim, Vec<PageRange>) + Send),
) -> std::result::Result<(), Errno> {
    before_taking_back();
    match settle_here(id, tracked, wanted, finish) {
        // The background thread has a descriptor that the program cannot close.
        Err(errno) if detection::is_closed(errno) => {
            let there = worker::on_worker(|| settle_here(id, tracked, wanted, finish));
            there.unwrap_or(Err(errno))
        }
        other => other,
    }
}

/// What is to be seen to before any claim is taken for it: a fork that went unseen, descriptors that are lost.
fn before_taking_back() {
    assert_none_held();
    fork::look();
    if detection::is_lost() && !worker::is_worker() {
        detection::recover(|| {
            TRACKING.slab.each(|_, tracked, word| {
                tracked.not_watched();
                if word.has(Word::OFFERED) {
                    tracked.suspect();
                }
            });
        });
    }
}

fn settle_here(
    id: RangeId,
    tracked: &'static Tracked,
    wanted: &dyn Fn(Word) -> bool,
    finish: &mut dyn FnMut(&mut Claim, Vec<PageRange>),
) -> std::result::Result<(), Errno> {
    let Some(mut claim) = TRACKING.claims.claim(id, tracked, wanted) else { return Ok(()) };
    let offered = claim.is_offered();
    let gone = revive::keep_pages(&mut claim)?;
    let gone = revive::complete(&mut claim, gone)?;
    let len = claim.range().len();
    finish(&mut claim, gone);
    drop(claim);
    if offered {
        stir();
        backpressure::exposed(len as u64);
    }
    Ok(())
}

/// Whether a pinner has something to do: take pages back, or end a watch.
fn needs_settling(word: Word) -> bool {
    word.has(Word::OFFERED | Word::UNCLEAN)
}

/// Offers a claimed range. On the background thread.
fn offer(claim: &mut Claim, split_huge: bool) -> std::result::Result<(), Refusal> {
    // Not only pinned: a claim that began before the pin would be offered under the program's hands.
    if claim.is_wanted() || claim.is_offered() {
        return Err(Refusal::Wanted);
    }
    let offered = offer::offer(claim, split_huge);
    match offered {
        Ok(()) if settings::purge_always() => {
            let _ = offer::purge(claim);
        }
        Err(Refusal::Wanted) | Ok(()) => {}
        Err(_) => add(&COUNTERS.refused_offers, 1),
    }
    offered
}

/// Offers a range now, whatever its age, from any thread.
fn offer_now(id: RangeId, tracked: &'static Tracked) -> std::result::Result<(), Refusal> {
    let volatile = |word: Word| word.pins() == 0;
    let offer = move || {
        let Some(mut claim) = TRACKING.claims.claim(id, tracked, volatile) else {
            return Err(Refusal::Wanted);
        };
        match claim.is_offered() {
            true => Ok(()),
            false => offer(&mut claim, true),
        }
    };
    worker::on_worker(offer).unwrap_or(Err(Refusal::Kernel(Errno::AGAIN)))
}

/// Offers a range and has the kernel discard it; returns how many bytes are gone.
fn purge_now(id: RangeId, tracked: &'static Tracked) -> std::result::Result<usize, Refusal> {
    offer_now(id, tracked)?;
    let offered = |word: Word| word.has(Word::OFFERED);
    let purge = move || {
        let Some(mut claim) = TRACKING.claims.claim(id, tracked, offered) else {
            return Err(Refusal::Wanted);
        };
        offer::purge(&mut claim).map_err(Refusal::Kernel)
    };
    worker::on_worker(purge).unwrap_or(Err(Refusal::Kernel(Errno::AGAIN)))
}

/// Calls `each` with every tracked range and its word, for statistics and for signal handlers: no lock.
pub(crate) fn each(mut each: impl FnMut(&'static Tracked, Word)) {
    TRACKING.slab.each(|_, tracked, word| each(tracked, word));
}

/// How a tracked range stands, as a signal handler sees it.
pub(crate) enum Standing {
    /// The kernel may have taken the touched page.
    Offered,
    /// It is the program's again.
    TakenBack,
}

/// The range that holds the address. Looks at all ranges and takes no lock, because the signal may have
/// interrupted anything.
pub(crate) fn look_at(address: usize) -> Option<(PageRange, Standing)> {
    let (_, range, word) = holder_of(address)?;
    // Lost: a pin has found it purged, and its refill has failed.
    let offered = word.has(Word::OFFERED | Word::LOST);
    Some((range, if offered { Standing::Offered } else { Standing::TakenBack }))
}

fn holder_of(address: usize) -> Option<(RangeId, PageRange, Word)> {
    let mut found = None;
    TRACKING.slab.each(|id, tracked, word| {
        let range = tracked.range();
        if (range.start..range.end).contains(&address) {
            found = Some((id, range, word));
        }
    });
    found
}

/// Puts one page's contents in place, whole, if it is missing from an offered range.
///
/// # Errors
/// `ENOMEM`: no memory.
pub(crate) fn fill_page(page: usize, bytes: &[u8]) -> std::result::Result<(), Errno> {
    let fill = || {
        let Some((id, ..)) = holder_of(page) else { return Ok(()) };
        let offered = |word: Word| word.has(Word::OFFERED);
        // With the claim no other thread takes the range back and makes the page meanwhile.
        let claim = TRACKING.claims.claim(id, TRACKING.slab.get(id), offered);
        let Some(claim) = claim.filter(|claim| {
            let range = claim.range();
            (range.start..range.end).contains(&page)
        }) else {
            return Ok(());
        };
        match uffd::copy_page(detection::raw(offer::kind(&claim)), page, bytes) {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    };
    match fill() {
        Err(errno) if detection::is_closed(errno) => worker::on_worker(fill).unwrap_or(Err(errno)),
        other => other,
    }
}
