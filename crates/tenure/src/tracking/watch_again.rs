//! Watches [lost pages](super::unmade) and offers again whose watch has ended with its descriptors.

use super::holes::make_readable;
use super::list::List;
use super::offer::{end_failed_watch, kind};
use super::state::{flag, Claim, RangeId, Tracked, Word};
use super::unmade::{self, is_unmade};
use super::{claims, detection, TRACKING};
use crate::os::pagemap::Pagemap;
use crate::runtime::worker;
use rustix::io::Errno;

/// Watches a range again whose lost pages are not watched any more. The caller is the thread that
/// makes them, or one that has seen no pin.
///
/// # Errors
/// The range is not wholly watched. If its flag says that it is watched, it may be so in part, and
/// then its pages cannot be filled.
fn watch(claim: &mut Claim) -> Result<(), Errno> {
    let range = claim.range();
    let lost = match claim.is_offered() {
        // The whole of a suspect range counts as lost.
        true => List::of(&[range])?,
        false => unmade::of(claim)?,
    };
    if claim.is(flag::TORN) || detection::is_missing() {
        return Err(Errno::AGAIN);
    }
    make_readable(claim, range, &lost, Pagemap::open().ok().as_ref())?;
    claim.set(flag::WATCHED);
    // In this order: a touch makes a page of zeros until the watch begins.
    let watched = detection::register(kind(claim), range).and_then(|()| unmade::discard(&lost));
    match watched {
        Ok(()) => claim.set(flag::WHOLLY_WATCHED),
        Err(_) => end_failed_watch(claim),
    }
    watched
}

/// Called before a range is offered: after `Ok` its lost pages are watched.
pub(super) fn before_offer(claim: &mut Claim) -> Result<(), Errno> {
    match is_unwatched(claim.tracked()) {
        true => watch(claim),
        false => Ok(()),
    }
}

fn is_unwatched(tracked: &Tracked) -> bool {
    let word = tracked.load();
    detection::by_userfaultfd()
        && is_unmade(word)
        && !word.has(Word::OFFERED)
        && !tracked.is(flag::WHOLLY_WATCHED)
}

/// Returns whether an offered range that its owner makes again was watched when the descriptors were
/// lost: the kernel may have discarded any page of it since, and a touch would read zeros.
fn is_unwatched_offer(tracked: &Tracked) -> bool {
    tracked.load().has(Word::OFFERED)
        && tracked.is(flag::SUSPECT)
        && !tracked.is(flag::WHOLLY_WATCHED)
        && detection::by_userfaultfd()
}

/// [`watch`], on the background thread, which has the descriptors. The caller has pinned the range,
/// and has the right to make the lost pages.
pub(super) fn for_maker(id: RangeId, tracked: &'static Tracked) -> Result<(), Errno> {
    if !is_unwatched(tracked) {
        return Ok(());
    }
    let watch = || match claims().claim(id, tracked, is_unmade) {
        // Without any watch the owner writes the pages in place.
        Some(mut claim) => watch(&mut claim).or_else(|errno| match claim.is(flag::WATCHED) {
            true => Err(errno),
            false => Ok(()),
        }),
        None => Ok(()),
    };
    // Nothing is watched where there is no thread.
    let on_worker = || worker::on_worker(watch).unwrap_or(Ok(()));
    let mut watched = on_worker();
    for _ in 0..TRIES {
        if watched != Err(Errno::AGAIN) {
            break;
        }
        detection::wait_until_replaced();
        watched = on_worker();
    }
    watched
}

/// How often a range is watched again while other threads replace the descriptors.
const TRIES: usize = 4;

/// Watches every range again that no thread is making now: after the descriptors were replaced.
pub(super) fn all() {
    let unpinned = |word: Word| {
        word.has(Word::REMADE) && word.has(Word::LOST | Word::OFFERED) && word.pins() == 0
    };
    let watch_each = || {
        TRACKING.slab.each(|id, tracked, word| {
            if unpinned(word) && (is_unwatched(tracked) || is_unwatched_offer(tracked)) {
                if let Some(mut claim) = claims().claim(id, tracked, unpinned) {
                    // A range that cannot be watched now is watched by its next offer, or when its
                    // pages are made.
                    let _ = watch(&mut claim);
                }
            }
        });
    };
    let _ = worker::on_worker(watch_each);
}
