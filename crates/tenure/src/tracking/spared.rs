//! Selects the ranges that the kernel should take after the others, although it takes ranges in the
//! order of their offers.
//!
//! An offered page keeps its place in the kernel's list until reclaim reaches it, however often it
//! is taken back and offered again. So the order of offers alone does not decide. The mark of a use
//! does: reclaim skips, once, a page that was used since the last pass, and takes the next pages
//! first. So a spared range is read once after its offer. The kernel may still take it if the other
//! pages are not enough.
//!
//! The other ranges must not look used. A get that copies a value of an offered range uses its base
//! pages: `process_vm_readv` marks the pages themselves, but no huge page. And `MADV_FREE` removes the
//! mark of a use from the page table only. Where DAMON or another tracker of idle pages has moved
//! the mark to the page itself, it stays there: on such a machine the kernel took up to 17 of 36
//! spared segments too early. `MADV_COLD` removes both marks.
//!
//! Caches that are worth more than others of the process spare their ranges (`cache/worth.rs`).
//! While any range is spared, ranges of a priority above the default are, too: a priority that the
//! program has set counts before worth.

use super::offer::offered_parts;
use super::settings::Priority;
use super::state::{flag, Claim, RangeId, Tracked, Word, LEVEL, SPARED, TOLD};
use super::{claims, TRACKING};
use crate::os::advise;
use crate::os::touch::use_each_page;
use crate::os::work::Work;
use crate::os::{page_size, HUGE_PAGE};
use crate::range::PageRange;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the kernel is told again while memory is short: reclaim counts each use once.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause between two batches, and the longest time of a batch: about 200 segments.
const PACE: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_millis(2);

/// When the kernel is told of the next ranges.
pub(super) struct Due {
    next: Instant,
    /// When it is told of all ranges, if memory is short then.
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
/// the other pages wait for [`tell_all`].
pub(super) fn after_offer(claim: &mut Claim) {
    let priority = claim.tracked().priority.fetch_and(!TOLD, Ordering::Relaxed);
    if is_any() && is_spared(priority) && claim.is_offered() && is_watched(claim.tracked()) {
        for piece in claim.range().pieces(HUGE_PAGE) {
            use_each_page(PageRange::new(piece.start, piece.start + page_size()));
        }
    }
}

/// After a read of an offered range. `true`: the background thread has to tell the kernel that the
/// range does not count as used.
pub(super) fn after_read(claim: &Claim) -> bool {
    let priority = &claim.tracked().priority;
    let before = priority.load(Ordering::Relaxed);
    if is_spared(before) {
        return false;
    }
    if before & TOLD != 0 {
        priority.fetch_and(!TOLD, Ordering::Relaxed);
    }
    is_any()
}

/// Has the kernel count a use of the pages, about 20 ns a page. It fills none: only watched ranges
/// are shown, and in those a read of a purged page fails.
fn show(claim: &mut Claim) {
    if !is_watched(claim.tracked()) {
        return;
    }
    for piece in claim.range().pieces(STEP) {
        if claim.is_wanted() {
            return;
        }
        use_each_page(piece);
    }
}

/// Has the kernel forget uses of the pages, about 65 ns a page. Not of pages that were made again:
/// they are the program's until the next scan offers them, and would be swapped out first.
fn hide(claim: &mut Claim) {
    if claim.is(flag::MADE_AGAIN) {
        return;
    }
    let Ok(offered) = offered_parts(claim) else { return };
    // If the kernel refuses, the range keeps its uses, and goes a little later.
    let _ = offered.iter().try_for_each(|part| advise::cold(*part));
}

/// Returns whether a read of a purged page fails and no thread makes the page again.
pub(super) fn is_watched(tracked: &Tracked) -> bool {
    let hidden = flag::SUSPECT | flag::TORN | flag::REFILLED;
    tracked.is(flag::WHOLLY_WATCHED) && !tracked.is(hidden)
}

/// After this many bytes the worker checks whether a thread wants the range back. It hides no larger
/// range: it would do nothing else meanwhile, and no get copies from one.
const STEP: usize = 8 << 20;

/// Tells the kernel which ranges count as used: those that are spared. It does so once after an
/// offer, and from time to time while memory is short. On the background thread, for a short time of
/// its own: after a batch that took longer than usual it pauses for `share` times that, up to a second.
/// `Some`: the next scan is to continue after so long.
pub(super) fn tell_all(due: &mut Due, now: Instant, pressed: bool, share: u32) -> Option<Duration> {
    if !is_any() {
        return None;
    }
    if now < due.next {
        return Some(due.next - now);
    }
    let work = Work::begin();
    if pressed && now >= due.all {
        due.all = now + AGAIN;
        TRACKING.slab.each(|_, tracked, _| {
            tracked.priority.fetch_and(!TOLD, Ordering::Relaxed);
        });
    }
    let (mut any_left, mut is_over) = (false, false);
    // Those that are spared first: the others may be many.
    for spared in [true, false] {
        TRACKING.slab.each(|id, tracked, word| {
            let priority = tracked.priority.load(Ordering::Relaxed);
            let is_due = priority & TOLD == 0 && is_spared(priority) == spared;
            let is_free = word.has(Word::OFFERED) && word.pins() == 0;
            if is_due && is_free && (spared || tracked.len() <= STEP) {
                is_over = is_over || work.spent() >= MOST;
                any_left |= is_over || !tell_one(id, tracked, word);
            }
        });
        if is_over {
            break;
        }
    }
    // The batch is bounded, but not the walk: 5 ms for a million ranges.
    let pause = (work.spent().saturating_sub(MOST) * share).clamp(PACE, AGAIN);
    due.next = now + pause;
    any_left.then_some(pause)
}

/// `false`: another thread has the range now.
fn tell_one(id: RangeId, tracked: &'static Tracked, word: Word) -> bool {
    let Some(mut claim) = claims().try_claim_from(id, tracked, word) else { return false };
    match is_spared(tracked.priority.fetch_or(TOLD, Ordering::Relaxed)) {
        true => show(&mut claim),
        false => hide(&mut claim),
    }
    true
}
