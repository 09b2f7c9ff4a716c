//! Which ranges the kernel is to take after the others, though it takes them in the order in which it heard of them.
//!
//! A page that was offered keeps its place in the kernel's list until reclaim comes by, however often it is taken back
//! and offered again. So the order of offers alone does not decide. What does is the mark of a use: reclaim passes
//! once over a page that was used since it last came by, and takes the next ones first. So a spared range is read once
//! it was offered. The kernel may take it all the same where the rest is not enough.
//!
//! Ranges are spared by caches that are worth more than others of the process (`cache/worth.rs`). While any is, ranges
//! of a priority above the default are, too: a priority that the program has set counts before worth.

use super::settings::Priority;
use super::state::{flag, Claim, RangeId, Tracked, Word, LEVEL, SPARED};
use super::{claims, TRACKING};
use crate::os::touch::use_each_page;
use crate::os::{page_size, HUGE_PAGE};
use crate::range::PageRange;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// In a range's byte of priority: the kernel was shown a use since the range was offered last.
const SHOWN: u8 = 16;

/// How often a use is shown again while memory is short: reclaim counts each once.
const AGAIN: Duration = Duration::from_secs(1);
/// How often some are shown, and how long that may take each time: 200 segments or so.
const PACE: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_millis(2);

/// When the next ranges are due to be shown.
pub(super) struct Due {
    next: Instant,
    /// All of them, if memory is short then.
    all: Instant,
}

impl Due {
    pub fn now() -> Due {
        Due { next: Instant::now(), all: Instant::now() }
    }
}

/// Some range may be spared.
/// For the whole process: the kernel's lists are one for all its ranges.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether any range is spared.
pub(crate) fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Says whether any range is spared.
pub(crate) fn set_any(any: bool) {
    ANY.store(any, Ordering::Relaxed);
}

/// Among ranges that are offered: less goes first.
pub(super) fn order(tracked: &Tracked) -> u8 {
    let priority = tracked.priority.load(Ordering::Relaxed);
    (priority & LEVEL) * 2 + u8::from(priority & SPARED != 0)
}

/// Whether the kernel is to take the range after others.
fn is_spared(priority: u8) -> bool {
    let level = priority & LEVEL;
    level > Priority::DEFAULT.level()
        || level == Priority::DEFAULT.level() && priority & SPARED != 0
}

/// After an offer: shows the first page of each 2 MiB of a spared range to the kernel as used. That is all of it where
/// it has huge pages. A range in use is offered thousands of times in a second, so the rest waits for [`show_all`].
pub(super) fn after_offer(claim: &mut Claim) {
    let priority = claim.tracked().priority.fetch_and(!SHOWN, Ordering::Relaxed);
    if is_any() && is_spared(priority) && claim.is_offered() && is_watched(claim.tracked()) {
        for piece in claim.range().pieces(HUGE_PAGE) {
            use_each_page(PageRange::new(piece.start, piece.start + page_size()));
        }
    }
}

/// Has the kernel count a use of the pages, about 20 ns a page. It fills none: only watched ranges are shown, in which a
/// read of what is gone fails.
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

/// Whether a read of what is gone fails, and nothing makes it again.
fn is_watched(tracked: &Tracked) -> bool {
    let hidden = flag::SUSPECT | flag::TORN | flag::REFILLED;
    tracked.is(flag::WHOLLY_WATCHED) && !tracked.is(hidden)
}

/// The worker looks up after this many bytes whether a thread wants the range back.
const STEP: usize = 8 << 20;

/// Shows spared ranges that were offered before they were spared, and while memory is short now and then all of them. On
/// the background thread, for a short time: a later scan goes on.
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
