//! What is volatile: the state of every tracked range, and everything that is done to it.
//!
//! - [`state`]: the state machine. A pin changes one word; [`state::Claim`] is the right to do the rest.
//! - [`slab`], [`map`], [`map_lock`], [`side`]: where ranges live, the raw ones in order of address, and their side
//!   data.
//! - [`mod@offer`], [`revive`], [`detection`]: telling the kernel, taking back, and noticing what is gone; [`holes`]:
//!   what was never touched.
//! - [`scan`], [`backpressure`]: when the background thread offers, and who waits for it; [`spared`]: what the kernel is
//!   to take last.
//! - [`service`], [`wake`]: forks, and how the background thread comes here.
//! - [`settle`]: the ways of a range, made of these; [`touched`]: touches of pages that are gone; [`unmade`],
//!   [`watch_again`]: what is lost until its owner has made it again.
//! - [`owned`], [`raw`]: the two kinds of ranges, as the promises use them; [`shape`] and [`unmark`] belong to
//!   raw ones.

pub(crate) mod backpressure;
pub(crate) mod detection;
mod gate;
mod holes;
mod in_child;
pub(crate) mod list;
mod map;
mod map_lock;
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
pub(crate) mod spared;
pub(crate) mod state;
pub(crate) mod touched;
mod unmade;
pub(crate) mod unmark;
mod wake;
mod watch_again;
mod word;

pub(crate) use service::{ready, ready_to_watch, watch_forks};

use crate::runtime::fork;
use map_lock::MapLock;
use slab::Slab;
use state::{Claims, Tracked, Word};
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// All tracked ranges of the process.
struct Tracking {
    slab: Slab,
    claims: Claims,
    /// The raw ranges in order of address. Its lock orders every change of their shape; claims are taken
    /// under it, but never waited for.
    map: MapLock,
    /// How many raw ranges there are, so that unmapping memory of a program without any takes no lock.
    raw: AtomicUsize,
    /// See `raw::unknown_is_lost`.
    unknown_is_lost: AtomicBool,
}

/// For the whole process: a range is found by its address alone, also by handlers of forks and signals.
static TRACKING: Tracking = Tracking {
    slab: Slab::new(),
    claims: Claims::new(),
    map: MapLock::new(),
    raw: AtomicUsize::new(0),
    unknown_is_lost: AtomicBool::new(false),
};

/// The claims of this process: a child whose fork handlers did not run is put in order first, or it would
/// wait for its parent's threads, and take its parent's pages back.
fn claims() -> &'static Claims {
    fork::look();
    &TRACKING.claims
}

/// Calls `each` with every tracked range and its word, for statistics and for signal handlers: no lock.
pub(crate) fn each(mut each: impl FnMut(&'static Tracked, Word)) {
    TRACKING.slab.each(|_, tracked, word| each(tracked, word));
}
