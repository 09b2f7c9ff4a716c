//! Touches of pages that are gone: what a signal's handler asks, and pages that are made again without a pin.

#![allow(unsafe_code, reason = "drops pages that are reported as lost")]

use super::state::{flag, Claim, Tracked, Word};
use super::wake::stir;
use super::{backpressure, claims, detection, offer, TRACKING};
use crate::os::{advise, page_size, populate, signal, uffd};
use crate::range::PageRange;
use crate::runtime::worker;
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// How a tracked range stands, as a signal handler sees it.
#[derive(Clone, Copy)]
pub(crate) enum Standing {
    /// The kernel may have taken the touched page.
    Offered,
    /// It is the program's again.
    TakenBack,
}

/// What a look at an address finds.
pub(crate) struct Look {
    /// The range that holds the address. `None`: no range, any more at least.
    pub holder: Option<(PageRange, Standing)>,
    /// A number that differs from an earlier look's if the page may have been taken back in between: the range
    /// was pinned, unmarked or claimed, or a range was forgotten.
    pub changes: u64,
}

/// Looks for the range that holds the address. Looks at all ranges and takes no lock, because the signal may
/// have interrupted anything.
pub(crate) fn look_at(address: usize) -> Look {
    let holder = TRACKING.slab.holder_of(address);
    // After the look: a range that it has missed had moved the count on before it was freed.
    let moves = TRACKING.slab.moves();
    let Some((_, range, word)) = holder else { return Look { holder: None, changes: moves } };
    // Lost: a pin has found it purged, and its refill has failed.
    let offered = word.has(Word::OFFERED | Word::LOST);
    let standing = if offered { Standing::Offered } else { Standing::TakenBack };
    Look { holder: Some((range, standing)), changes: moves ^ u64::from(word.uses()) << 32 }
}

/// How often a page is tried to be filled that is neither there nor missing: the kernel may take it, or another
/// thread may change its range, between a try and the look that follows it.
const TRIES: u32 = 10;

/// Puts one page's contents in place, whole, if it is missing from a range of which pages may be gone, or was
/// poisoned because its refill had failed. It does not count as lost from then on. A page that is there stays as
/// it is.
///
/// The caller holds no lock and no claim.
///
/// # Errors
/// `ENOMEM`: no memory. `EFAULT`: the page is not there, and no range of tenure's is to blame. After `Ok` it was
/// there.
pub(crate) fn fill_page(page: usize, bytes: &[u8]) -> Result<(), Errno> {
    let page = PageRange::new(page, page + page_size());
    let fill = || {
        for _ in 0..TRIES {
            // With the claim no other thread takes the range back and makes the page meanwhile.
            if let Some(mut claim) = claim_holder(page) {
                return fill_claimed(&mut claim, page, bytes);
            }
            match populate::for_reading(page) {
                // The range may have been offered and purged again since the look for it.
                Err(Errno::FAULT | Errno::HWPOISON) => {}
                done => return done,
            }
        }
        Err(Errno::FAULT)
    };
    match fill() {
        Err(errno) if detection::is_closed(errno) => worker::on_worker(fill).unwrap_or(Err(errno)),
        other => other,
    }
}

/// So many bytes of a range have been made again, perhaps without a pin. The range stays volatile, so they are told to
/// the kernel by a later scan; until then they count as what it cannot take. Needs no claim.
///
/// Called after the pages were made: where the range is not offered then, its next offer takes them in.
pub(crate) fn made_again(tracked: &Tracked, bytes: usize) {
    if !tracked.load().has(Word::OFFERED) {
        return;
    }
    if tracked.set(flag::MADE_AGAIN) & flag::MADE_AGAIN == 0 {
        // The first of them: the range waits from here on, however many follow.
        tracked.age.store(0, Ordering::Relaxed);
    }
    backpressure::made_again(bytes as u64);
    stir();
}

/// Makes every touch of a missing page raise SIGBUS, `toucher`'s too, because it cannot be made. Not where its range
/// was taken back meanwhile, and it is there.
///
/// The caller holds no lock and no claim.
pub(crate) fn fail_page(watcher: uffd::Watcher, page: PageRange, toucher: u32) {
    // With the claim no other thread takes the range back, which would find the page neither there nor missing.
    let mut is_there = false;
    let mut look = |_| match claim_holder(page) {
        None if TRACKING.slab.holder_of(page.start).is_some() => {
            // Where it is missing it may have been offered, and taken, since the look for its claim.
            is_there = advise::populate_read(page).is_ok();
            is_there.then_some(None)
        }
        claim => Some(claim),
    };
    let _claim = (0..TRIES).find_map(&mut look).flatten();
    if is_there {
        return;
    }
    let not_known = |errno| matches!(errno, Errno::INVAL | Errno::NOTTY | Errno::OPNOTSUPP);
    // Before 6.6 there is no poison.
    if uffd::poison(watcher, page).is_err_and(not_known) && advise::populate_read(page).is_err() {
        signal::send_sigbus(toucher);
    }
}

/// Claims the range that holds the page, if pages of it may be gone: it is offered, its losses were not restored,
/// or the end of its watch has failed.
fn claim_holder(page: PageRange) -> Option<Claim> {
    let gone = |word: Word| word.has(Word::OFFERED | Word::LOST | Word::UNCLEAN);
    let (id, ..) = TRACKING.slab.holder_of(page.start)?;
    let claim = claims().claim(id, TRACKING.slab.get(id), gone)?;
    let range = claim.range();
    (range.start <= page.start && page.end <= range.end).then_some(claim)
}

fn fill_claimed(claim: &mut Claim, page: PageRange, bytes: &[u8]) -> Result<(), Errno> {
    let kind = offer::kind(claim);
    for _ in 0..TRIES {
        let is_watched = match detection::copy_page(kind, page.start, bytes) {
            Ok(()) => {
                forget_loss(claim, page);
                made_again(claim.tracked(), page.len());
                return Ok(());
            }
            Err(Errno::EXIST) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => return Err(errno),
        };
        match populate::for_reading(page) {
            Err(Errno::HWPOISON) if is_watched => {
                // SAFETY: a poisoned page holds nothing. Under the claim no other thread replaces it.
                unsafe { advise::drop_pages_though_locked(page)? };
            }
            Err(Errno::HWPOISON) => return replace_unwatched(claim, page, bytes),
            // The kernel has taken it since.
            Err(Errno::FAULT) => {}
            done => return done,
        }
    }
    Err(Errno::FAULT)
}

/// Replaces a poisoned page that is not watched: a forked child has such pages. It is watched meanwhile, so that no
/// thread reads zeros between the poison and the contents.
fn replace_unwatched(claim: &mut Claim, page: PageRange, bytes: &[u8]) -> Result<(), Errno> {
    let kind = offer::kind(claim);
    let was_watched = claim.is(flag::WATCHED);
    // Said first, so that a failed end of it is made up for by the next to take the range back.
    claim.set(flag::WATCHED);
    detection::register(kind, page)?;
    // SAFETY: a poisoned page holds nothing.
    let dropped = unsafe { advise::drop_pages_though_locked(page) };
    let copied = dropped
        .and_then(|()| detection::copy_page(kind, page.start, bytes))
        .inspect(|()| forget_loss(claim, page));
    match detection::unregister(kind, page) {
        Ok(()) if !was_watched => claim.clear(flag::WATCHED),
        Ok(()) => {}
        Err(_) => claim.set_unclean(true),
    }
    copied
}

/// A page that has been made again is not reported as lost.
fn forget_loss(claim: &mut Claim, page: PageRange) {
    if !claim.word().has(Word::LOST) {
        return;
    }
    let range = claim.range();
    // For want of memory it is reported, and made once more.
    let Ok(side) = claim.side_mut() else { return };
    if side.list_losses(range).is_ok() {
        side.found_again(page);
        if !side.has_losses() {
            claim.not_lost();
        }
    }
}
