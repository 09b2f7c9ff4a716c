//! Lost pages that their owner has not made again yet. They stay missing and watched until then:
//! for a thread that touches one the page is made, or the thread gets SIGBUS, and it never reads
//! zeros.
//!
//! When the descriptors are replaced, the watch ends, and a touch makes a page of zeros that would
//! count as made. So lost pages are discarded again before they are
//! [watched anew](super::watch_again).

#![allow(unsafe_code, reason = "drops pages that are reported as lost")]

use super::list::List;
use super::state::{Claim, Word};
use crate::os::advise;
use crate::range::PageRange;
use rustix::io::Errno;

/// Returns the lost extents of a range whose owner makes them again.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn of(claim: &mut Claim) -> Result<List<PageRange>, Errno> {
    if !is_unmade(claim.word()) {
        return Ok(List::new());
    }
    let range = claim.range();
    claim.side_mut()?.lost_of(range)
}

pub(super) fn is_unmade(word: Word) -> bool {
    word.has(Word::LOST) && word.has(Word::REMADE)
}

/// [Discards](discard) in all lost extents of a range. Allocates nothing.
pub(super) fn discard_all(claim: &mut Claim) -> Result<(), Errno> {
    let range = claim.range();
    match claim.side() {
        Some(side) => discard(side.lost_in(&range)),
        None => discard(&[range]),
    }
}

/// Discards pages that touches may have made in lost extents while nothing watched them.
pub(super) fn discard(lost: &[PageRange]) -> Result<(), Errno> {
    // SAFETY: lost pages have no contents until their owner has made them. The owner does so with a
    // pin, and takes the range's claim before that. The caller has the claim, and is the owner's
    // thread, or has seen no pin, or runs in a child that does not have the thread that made them.
    lost.iter().try_for_each(|extent| unsafe { advise::drop_pages_though_locked(*extent) })
}
