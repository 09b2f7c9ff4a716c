//! What is volatile: the state of every tracked range, and everything that is done to it.
//!
//! - [`state`]: the state machine. A pin changes one word; [`state::Claim`] is the right to do the rest.
//! - [`slab`], [`map`], [`side`]: where ranges live, the raw ones in order of address, and their side data.
//! - [`mod@offer`], [`revive`], [`detection`]: telling the kernel, taking back, and noticing what is gone.
//! - [`scan`], [`backpressure`]: when the background thread offers, and who waits for it.
//! - [`service`], [`wake`]: forks, and how the background thread comes here.
//! - [`settle`]: the ways of a range, made of these.
//! - [`owned`], [`raw`]: the two kinds of ranges, as the promises use them; [`shape`] and [`unmark`] belong to
//!   raw ones.

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
mod settle;
mod shape;
pub(crate) mod side;
mod slab;
pub(crate) mod state;
pub(crate) mod unmark;
mod wake;
mod word;

pub(crate) use service::{ready, watch_forks};

use crate::os::uffd;
use crate::range::PageRange;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::{fork, worker};
use map::IntervalMap;
use rustix::io::Errno;
use slab::Slab;
use state::{Claims, Tracked, Word};
use std::sync::atomic::AtomicUsize;

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

/// Who may claim, in this process: a child whose fork handlers did not run is put in order first, or it would
/// wait for its parent's threads, and take its parent's pages back.
fn claims() -> &'static Claims {
    fork::look();
    &TRACKING.claims
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
    let (_, range, word) = TRACKING.slab.holder_of(address)?;
    // Lost: a pin has found it purged, and its refill has failed.
    let offered = word.has(Word::OFFERED | Word::LOST);
    Some((range, if offered { Standing::Offered } else { Standing::TakenBack }))
}

/// Puts one page's contents in place, whole, if it is missing from an offered range.
///
/// # Errors
/// `ENOMEM`: no memory.
pub(crate) fn fill_page(page: usize, bytes: &[u8]) -> std::result::Result<(), Errno> {
    let fill = || {
        let Some((id, ..)) = TRACKING.slab.holder_of(page) else { return Ok(()) };
        let offered = |word: Word| word.has(Word::OFFERED);
        // With the claim no other thread takes the range back and makes the page meanwhile.
        let claim = claims().claim(id, TRACKING.slab.get(id), offered);
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
