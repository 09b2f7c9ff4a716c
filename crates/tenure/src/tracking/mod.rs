//! Volatile memory: the state of every tracked range, and all operations on it.
//!
//! - [`state`]: the state machine. A pin changes one word; a [`state::Claim`] is the right to
//!   change the rest.
//! - [`slab`], [`map`], [`map_lock`], [`side`]: the storage of ranges, the raw ones in order of
//!   address, and their side data.
//! - [`mod@offer`], [`revive`], [`detection`], [`by_words`]: offering, taking back, and detecting
//!   purges; [`holes`]: the parts that were never touched.
//! - [`scan`], [`backpressure`]: when the background thread offers, and which callers wait for it;
//!   [`spared`]: the memory that the kernel should take last.
//! - [`descriptors`]: what calls do when the program has closed tenure's descriptors.
//! - [`service`], [`wake`]: forks, and the ways to call the background thread.
//! - [`settle`]: the transitions of a range, made of these; [`read_offered`]: reads without a
//!   transition; [`touched`]: touches of purged pages;
//!   [`unmade`], [`watch_again`]: pages that are lost until their owner has made them again.
//! - [`owned`], [`raw`]: the two kinds of ranges, for the promises; [`shape`], [`unmark`]
//!   and [`changes`] (what the program does to them without tenure) belong to raw ones.

pub(crate) mod backpressure;
mod by_words;
mod changes;
mod descriptors;
pub(crate) mod detection;
pub(crate) mod forgotten;
mod gate;
mod holes;
mod in_child;
pub(crate) mod list;
mod map;
mod map_lock;
pub(crate) mod offer;
pub(crate) mod owned;
pub(crate) mod raw;
mod read_offered;
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

pub(crate) use descriptors::{before_claiming, with_descriptors};
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
    /// The raw ranges in order of address. Its lock orders every change of their shape. A thread
    /// may take a claim under it, but never wait for one.
    map: MapLock,
    /// How many raw ranges there are, so that unmapping memory of a program without any takes no
    /// lock.
    raw: AtomicUsize,
    /// See `raw::unknown_is_lost`.
    unknown_is_lost: AtomicBool,
}

/// For the whole process: fork and signal handlers find a range by its address alone.
static TRACKING: Tracking = Tracking {
    slab: Slab::new(),
    claims: Claims::new(),
    map: MapLock::new(),
    raw: AtomicUsize::new(0),
    unknown_is_lost: AtomicBool::new(false),
};

/// Returns the claims of this process. A child whose fork handlers did not run is recovered first.
/// Otherwise it would wait for its parent's threads, and take its parent's pages back.
fn claims() -> &'static Claims {
    fork::look();
    &TRACKING.claims
}

/// Calls `each` with every tracked range and its word, without a lock: for statistics and for
/// signal handlers.
pub(crate) fn each(mut each: impl FnMut(&'static Tracked, Word)) {
    TRACKING.slab.each(|_, tracked, word| each(tracked, word));
}
