//! Watching again what is still to be [made](super::unmade), where the watch has ended with its descriptors.

use super::offer::{end_failed_watch, kind, make_readable};
use super::state::{flag, Claim, RangeId, Tracked, Word};
use super::unmade::{self, is_unmade};
use super::{claims, detection, TRACKING};
use crate::os::pagemap::Pagemap;
use crate::runtime::worker;
use rustix::io::Errno;

/// Watches a range again whose lost pages are not watched any more. The thread that makes them calls it, or
/// one that has seen no pin.
///
/// # Errors
/// The pages may be watched in part: nothing can be put in place.
fn watch(claim: &mut Claim) -> Result<(), Errno> {
    let wholly = flag::WHOLLY_WATCHED | flag::TORN;
    if claim.is(wholly) || claim.is_offered() || detection::is_missing() {
        return Ok(());
    }
    let lost = unmade::of(claim);
    unmade::discard(&lost)?;
    let range = claim.range();
    make_readable(claim, range, &lost, Pagemap::open().ok().as_ref())?;
    claim.set(flag::WATCHED);
    if let Err(errno) = detection::register(kind(claim), range) {
        end_failed_watch(claim);
        // Without any watch the owner writes them in place.
        return if claim.is(flag::WATCHED) { Err(errno) } else { Ok(()) };
    }
    claim.set(flag::WHOLLY_WATCHED);
    Ok(())
}

/// [`watch`], on the background thread, which has the descriptors. The caller has the range pinned, and the
/// right to make what is lost.
pub(super) fn for_maker(id: RangeId, tracked: &'static Tracked) -> Result<(), Errno> {
    if !is_unmade(tracked.load()) || tracked.is(flag::WHOLLY_WATCHED) {
        return Ok(());
    }
    let watch =
        || claims().claim(id, tracked, is_unmade).map_or(Ok(()), |mut claim| watch(&mut claim));
    // Without a thread nothing is watched, and the owner writes in place.
    worker::on_worker(watch).unwrap_or(Ok(()))
}

/// The same for every range that nobody makes just now: after the descriptors were replaced.
pub(super) fn all() {
    let unpinned = |word: Word| is_unmade(word) && word.pins() == 0;
    let watch_each = || {
        TRACKING.slab.each(|id, tracked, word| {
            if unpinned(word) && !tracked.is(flag::WHOLLY_WATCHED) {
                if let Some(mut claim) = claims().claim(id, tracked, unpinned) {
                    // What cannot be watched now is watched by its next offer, or when it is made.
                    let _ = watch(&mut claim);
                }
            }
        });
    };
    let _ = worker::on_worker(watch_each);
}
