//! What is volatile: the state of every tracked range, and everything that is done to it.
//!
//! - [`state`]: the state machine. A pin changes one word; [`state::Claim`] is the right to do the rest.
//! - [`slab`], [`map`], [`side`]: where ranges live, the raw ones in order of address, and their side data.
//! - [`offer`], [`revive`], [`detection`]: telling the kernel, taking back, and noticing what is gone.
//! - [`scan`], [`backpressure`]: when the background thread offers, and who waits for it.
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
pub(crate) mod settings;
mod settle;
mod shape;
pub(crate) mod side;
mod slab;
pub(crate) mod state;
pub(crate) mod unmark;
mod word;

use crate::error::{Error, ErrorKind, Result};
use crate::os::{probe, uffd};
use crate::range::PageRange;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::services::{self, Service};
use crate::runtime::{fork, worker};
use map::IntervalMap;
use rustix::io::Errno;
use slab::Slab;
use state::{Claims, RangeId, Tracked, Word};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

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

static SERVICE: Service = Service {
    hold: || {
        TRACKING.map.hold();
        TRACKING.claims.gate.close();
    },
    release: || {
        TRACKING.claims.gate.open();
        TRACKING.map.release();
    },
    recover: in_child::recover,
    reset_in_child: in_child::reset,
    task: Some(scan::visit),
    on_pressure: Some(backpressure::tighten),
    forget: Some(raw::forget_unmapped),
    ..Service::named("tracking", &[Rank::IntervalMap, Rank::Claims])
};

/// Who may claim, in this process: a child whose fork handlers did not run is put in order first, or it would
/// wait for its parent's threads, and take its parent's pages back.
fn claims() -> &'static Claims {
    fork::look();
    &TRACKING.claims
}

/// Gets everything ready for the first volatile range: fork handlers, detection, the background thread.
///
/// # Errors
/// `EOPNOTSUPP` where the kernel refuses `MADV_FREE`: nothing can stand in for it. `EMFILE`, `ENFILE`,
/// `ENOMEM`: no userfaultfd can be opened now; the next call tries again. `EAGAIN`: no thread.
pub(crate) fn ready(call: &'static str) -> Result<()> {
    watch_forks();
    if worker::running() && READY.load(Ordering::Acquire) == 1 {
        return Ok(());
    }
    get_ready(call)
}

/// 1: detection is decided, and the kernel knows MADV_FREE.
static READY: AtomicU8 = AtomicU8::new(0);

#[cold]
fn get_ready(call: &'static str) -> Result<()> {
    if READY.load(Ordering::Acquire) == 0 {
        match probe::lazy_free() {
            Ok(()) => {}
            Err(Some(errno @ (Errno::NOMEM | Errno::AGAIN))) => {
                return Err(Error::system(call, "mmap", errno));
            }
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    call,
                    "this kernel or its seccomp profile refuses MADV_FREE",
                    "allow madvise(MADV_FREE), in Linux since 4.5; `tenure doctor` shows what is \
                     refused",
                ));
            }
        }
        let _ = detection::decide(call)?;
        READY.store(1, Ordering::Release);
    }
    worker::start(call)
}

/// Reads the environment and watches forks, once; makes up for a fork that went unseen. Cheap: a few loads
/// later on. Starts no thread and may be called wherever memory may be allocated.
pub(crate) fn watch_forks() {
    fork::look();
    settings::read_environment_once();
    fork::watch();
    services::register(&SERVICE);
}

/// Has the background thread look at its settings and ranges now.
pub(crate) fn wake() {
    if worker::running() {
        worker::call(services::register(&SERVICE));
    }
}

/// A range became known or was taken back: a background thread that sleeps for good looks again.
fn stir() {
    worker::stir(services::register(&SERVICE));
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
