//! Touches of purged pages: the questions of a signal handler, and pages that are made again
//! without a pin.

#![allow(unsafe_code, reason = "drops pages that are reported as lost")]

use super::state::{flag, Claim, Tracked, Word};
use super::wake::stir;
use super::{backpressure, claims, detection, offer, with_descriptors, TRACKING};
use crate::os::{advise, page_size, populate, signal, uffd};
use crate::range::PageRange;
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// The state of a tracked range, as a signal handler sees it.
#[derive(Clone, Copy)]
pub(crate) enum Standing {
    /// The kernel may have taken the touched page.
    Offered,
    /// The page belongs to the program again.
    TakenBack,
}

/// The result of a look at an address.
pub(crate) struct Look {
    /// The range that holds the address. `None`: no range holds it, or none any more.
    pub holder: Option<(PageRange, Standing)>,
    /// A number that differs from an earlier look's if the page may have been taken back in
    /// between: the range was pinned, unmarked or claimed, or a range was forgotten.
    pub changes: u64,
}

/// Looks for the range that holds the address. It looks at all ranges and takes no lock, because
/// the signal may have interrupted any code.
pub(crate) fn look_at(address: usize) -> Look {
    let holder = TRACKING.slab.holder_of(address);
    // Read after the look: a range that the look has missed had moved the count before it was
    // freed.
    let moves = TRACKING.slab.moves();
    let Some((_, range, word)) = holder else { return Look { holder: None, changes: moves } };
    // Lost: a pin has found the page purged, and its refill has failed.
    let offered = word.has(Word::OFFERED | Word::LOST);
    let standing = if offered { Standing::Offered } else { Standing::TakenBack };
    Look { holder: Some((range, standing)), changes: moves ^ u64::from(word.uses()) << 32 }
}

/// How often the function tries to fill a page that is neither there nor missing. Between a try and
/// the next look the kernel may take the page, or another thread may change its range.
const TRIES: u32 = 10;

/// Puts one page's whole contents in place, if the page is missing from a range of which pages may
/// be gone, or was poisoned because its refill had failed. It does not count as lost from then on.
/// A page that is there stays as it is.
///
/// The caller holds no lock and no claim.
///
/// # Errors
/// `ENOMEM`: no memory. `EFAULT`: the page is not there, and no range of tenure's is the cause.
/// After `Ok` it was there.
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
    with_descriptors(fill)
}

/// Notes that so many bytes of a range have been made again, perhaps without a pin. The range stays
/// volatile, so a later scan offers them again. Until then they count as memory that the kernel
/// cannot take. Needs no claim.
///
/// Called after the pages were made: if the range is not offered then, its next offer covers them.
pub(crate) fn made_again(tracked: &Tracked, bytes: usize) {
    if !tracked.load().has(Word::OFFERED) {
        return;
    }
    if tracked.set(flag::MADE_AGAIN) & flag::MADE_AGAIN == 0 {
        // The first such page: the range waits from here on, however many follow.
        tracked.age.store(0, Ordering::Relaxed);
    }
    backpressure::made_again(bytes as u64);
    stir();
}

/// Makes every touch of a missing page raise SIGBUS, also the touch by `toucher`, because the page
/// cannot be made. Does nothing if the range was taken back meanwhile and the page is there.
///
/// The caller holds no lock and no claim.
pub(crate) fn fail_page(watcher: uffd::Watcher, page: PageRange, toucher: u32) {
    // With the claim no other thread takes the range back. It would find the page neither there nor
    // missing.
    let mut is_there = false;
    let mut look = |_| match claim_holder(page) {
        None if TRACKING.slab.holder_of(page.start).is_some() => {
            // If it is missing, the range may have been offered, and the page taken, since the look
            // for the claim.
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
    // Kernels before 6.6 cannot poison a page (UFFDIO_POISON).
    if uffd::poison(watcher, page).is_err_and(not_known) && advise::populate_read(page).is_err() {
        signal::send_sigbus(toucher);
    }
}

/// Claims the range that holds the page, if pages of it may be gone: it is offered, its losses were
/// not restored, or the end of its watch has failed.
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
                // SAFETY: a poisoned page has no contents. Under the claim no other thread replaces
                // it.
                unsafe { advise::drop_pages_though_locked(page)? };
            }
            Err(Errno::HWPOISON) => return replace_unwatched(claim, page, bytes),
            // The kernel has taken the page since.
            Err(Errno::FAULT) => {}
            done => return done,
        }
    }
    Err(Errno::FAULT)
}

/// Replaces a poisoned page that is not watched; a forked child has such pages. The page is watched
/// meanwhile, so that no thread reads zeros between the poison and the contents.
fn replace_unwatched(claim: &mut Claim, page: PageRange, bytes: &[u8]) -> Result<(), Errno> {
    let kind = offer::kind(claim);
    let was_watched = claim.is(flag::WATCHED);
    // Set first, so that the next thread that takes the range back repairs a failed end of the
    // watch.
    claim.set(flag::WATCHED);
    detection::register(kind, page)?;
    // SAFETY: a poisoned page has no contents.
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

/// Removes a page that has been made again from the reported losses.
fn forget_loss(claim: &mut Claim, page: PageRange) {
    if !claim.word().has(Word::LOST) {
        return;
    }
    let range = claim.range();
    // Without memory for the list the page is reported, and made once more.
    let Ok(side) = claim.side_mut() else { return };
    if side.list_losses(range).is_ok() {
        side.found_again(page);
        if !side.has_losses() {
            claim.not_lost();
        }
    }
}
