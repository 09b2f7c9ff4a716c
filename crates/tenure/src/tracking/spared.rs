//! Selects the ranges that the kernel should take after the others, although it takes ranges in the
//! order of their offers.
//!
//! An offered page keeps its place in the kernel's list until reclaim reaches it, however often it
//! is taken back and offered again. So the order of offers alone does not decide. The mark of a use
//! does: reclaim skips, once, a page that was used since the last pass, and takes the next pages
//! first. So a spared range is read once after its offer. The kernel may still take it if the other
//! pages are not enough.
//!
//! Caches that are worth more than others of the process spare their ranges (`cache/worth.rs`).
//! While any range is spared, ranges of a priority above the default are, too: a priority that the
//! program has set counts before worth.

use super::settings::Priority;
use super::state::{flag, Claim, RangeId, Tracked, Word, LEVEL, SPARED};
use super::{claims, TRACKING};
use crate::os::touch::use_each_page;
use crate::os::{page_size, HUGE_PAGE};
use crate::range::PageRange;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A bit in a range's byte of priority: the kernel was shown a use since the last offer of the
/// range.
const SHOWN: u8 = 16;

/// How often a use is shown again while memory is short: reclaim counts each use once.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause between two batches, and the longest time of a batch: about 200 segments.
const PACE: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_millis(2);

/// When the next ranges are shown.
pub(super) struct Due {
    next: Instant,
    /// When all ranges are shown, if memory is short then.
    all: Instant,
}

impl Due {
    pub fn now() -> Due {
        Due { next: Instant::now(), all: Instant::now() }
    }
}

/// Whether some range may be spared.
/// For the whole process: the kernel has one set of lists for all its ranges.
static ANY: AtomicBool = AtomicBool::new(false);

/// Returns whether any range is spared.
pub(crate) fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Sets whether any range is spared.
pub(crate) fn set_any(any: bool) {
    ANY.store(any, Ordering::Relaxed);
}

/// The order among ranges to offer: lower goes first.
pub(super) fn order(tracked: &Tracked) -> u8 {
    let priority = tracked.priority.load(Ordering::Relaxed);
    (priority & LEVEL) * 2 + u8::from(priority & SPARED != 0)
}

/// Returns whether the kernel should take the range after others.
fn is_spared(priority: u8) -> bool {
    let level = priority & LEVEL;
    level > Priority::DEFAULT.level()
        || level == Priority::DEFAULT.level() && priority & SPARED != 0
}

/// After an offer: shows the kernel the first page of each 2 MiB of a spared range as used. With
/// huge pages that is the whole range. A range in use is offered thousands of times a second, so
/// the other pages wait for [`show_all`].
pub(super) fn after_offer(claim: &mut Claim) {
    let priority = claim.tracked().priority.fetch_and(!SHOWN, Ordering::Relaxed);
    if is_any() && is_spared(priority) && claim.is_offered() && is_watched(claim.tracked()) {
        for piece in claim.range().pieces(HUGE_PAGE) {
            use_each_page(PageRange::new(piece.start, piece.start + page_size()));
        }
    }
}

/// Has the kernel count a use of the pages, about 20 ns a page. It fills none: only watched ranges
/// are shown, and in those a read of a purged page fails.
fn show(claim: &mut Claim) {
    if !claim.is_offered() || !is_watched(claim.tracked()) {
        return;
    }
    claim.tracked().priority.fetch_or(SHOWN, Ordering::Relaxed);
    for piece in claim.range().pieces(STEP) {
        if claim.is_wanted() {
            return;
        }
        use_each_page(piece);
    }
}

/// Returns whether a read of a purged page fails and no thread makes the page again.
pub(super) fn is_watched(tracked: &Tracked) -> bool {
    let hidden = flag::SUSPECT | flag::TORN | flag::REFILLED;
    tracked.is(flag::WHOLLY_WATCHED) && !tracked.is(hidden)
}

/// After this many bytes the worker checks whether a thread wants the range back.
const STEP: usize = 8 << 20;

/// Shows spared ranges that were offered before they were spared, and, from time to time while
/// memory is short, all of them. On the background thread, for a short time: a later scan
/// continues.
pub(super) fn show_all(due: &mut Due, now: Instant, pressed: bool) {
    if !is_any() || now < due.next {
        return;
    }
    due.next = now + PACE;
    if pressed && now >= due.all {
        due.all = now + AGAIN;
        TRACKING.slab.each(|_, tracked, _| {
            tracked.priority.fetch_and(!SHOWN, Ordering::Relaxed);
        });
    }
    let begun = Instant::now();
    TRACKING.slab.each(|id, tracked, word| {
        let priority = tracked.priority.load(Ordering::Relaxed);
        let is_due = is_spared(priority) && priority & SHOWN == 0 && is_watched(tracked);
        if is_due && word.has(Word::OFFERED) && word.pins() == 0 && begun.elapsed() < MOST {
            show_one(id, tracked, word);
        }
    });
}

fn show_one(id: RangeId, tracked: &'static Tracked, word: Word) {
    if let Some(mut claim) = claims().try_claim_from(id, tracked, word) {
        show(&mut claim);
    }
}
