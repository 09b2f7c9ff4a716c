//! The core's `tracking`, as far as it is modelled.

#[path = "../../tenure/src/tracking/by_words.rs"]
pub(crate) mod by_words;
#[path = "../../tenure/src/tracking/changes.rs"]
pub(crate) mod changes;
#[path = "../../tenure/src/tracking/descriptors.rs"]
pub(crate) mod descriptors;
#[path = "../../tenure/src/tracking/forgotten.rs"]
pub(crate) mod forgotten;
#[path = "../../tenure/src/tracking/gate.rs"]
pub(crate) mod gate;
#[path = "../../tenure/src/tracking/holes.rs"]
pub(crate) mod holes;
#[path = "../../tenure/src/tracking/list.rs"]
pub(crate) mod list;
#[path = "../../tenure/src/tracking/map.rs"]
pub(crate) mod map;
#[path = "../../tenure/src/tracking/offer.rs"]
pub(crate) mod offer;
#[path = "../../tenure/src/tracking/owned.rs"]
pub(crate) mod owned;
#[path = "../../tenure/src/tracking/raw.rs"]
pub(crate) mod raw;
#[path = "../../tenure/src/tracking/revive.rs"]
pub(crate) mod revive;
#[path = "../../tenure/src/tracking/settle.rs"]
pub(crate) mod settle;
#[path = "../../tenure/src/tracking/shape.rs"]
pub(crate) mod shape;
#[path = "../../tenure/src/tracking/side.rs"]
pub(crate) mod side;
#[path = "../../tenure/src/tracking/slab.rs"]
pub(crate) mod slab;
#[path = "../../tenure/src/tracking/state/mod.rs"]
pub(crate) mod state;
#[path = "../../tenure/src/tracking/unmade.rs"]
pub(crate) mod unmade;
#[path = "../../tenure/src/tracking/unmark.rs"]
pub(crate) mod unmark;
#[path = "../../tenure/src/tracking/watch_again.rs"]
pub(crate) mod watch_again;
#[path = "../../tenure/src/tracking/word.rs"]
pub(crate) mod word;

/// There are no children.
pub(crate) mod map_lock {
    pub(super) type MapGuard = crate::runtime::lock::Guard<'static, super::map::IntervalMap>;
}

pub(crate) use crate::fakes::{backpressure, detection, settings};
pub(crate) use descriptors::{before_claiming, with_descriptors};

use crate::runtime::lock::{Lock, Rank};

/// Like the core's, but one for each interleaving.
pub(crate) struct Tracking {
    pub slab: slab::Slab,
    pub claims: state::Claims,
    map: Lock<map::IntervalMap>,
    pub raw: std::sync::atomic::AtomicUsize,
    unknown_is_lost: std::sync::atomic::AtomicBool,
}

loom::lazy_static! {
    pub(crate) static ref TRACKING: Tracking = Tracking {
        slab: slab::Slab::new(),
        claims: state::Claims::new(),
        map: Lock::new(Rank::IntervalMap, map::IntervalMap::new()),
        raw: std::sync::atomic::AtomicUsize::new(0),
        unknown_is_lost: std::sync::atomic::AtomicBool::new(false),
    };
}

/// There is no recovery first: forks are modelled without children.
fn claims() -> &'static state::Claims {
    &TRACKING.claims
}

/// Nothing is offered again here.
pub(crate) mod touched {
    pub(crate) fn made_again(_: &super::state::Tracked, _: usize) {}
}

/// No thread sleeps: the models call the scan themselves.
pub(crate) mod wake {
    pub(crate) fn stir() {}

    pub(crate) fn stir_or_start() {}
}

/// Does the work of `scan`, without its waits: looks at all ranges, then offers each marked one.
pub(crate) fn scan() {
    let mut seen = Vec::new();
    TRACKING.slab.each(|id, tracked, word| {
        if tracked.len() > 0
            && word.pins() == 0
            && !word.has(state::Word::OFFERED | state::Word::CLAIMED)
        {
            seen.push((id, word));
        }
    });
    for (id, word) in seen {
        let claim = match word.has(state::Word::RAW) {
            true => shape::claim_with_neighbours(id, word),
            false => TRACKING.claims.try_claim_from(id, TRACKING.slab.get(id), word),
        };
        if let Some(mut claim) = claim {
            let _ = settle::offer(&mut claim, false);
        }
    }
}
