//! Lost pages that their owner is still to make again. They stay missing and watched until then: a thread
//! that touches one has it made, or gets SIGBUS, and never zeros.
//!
//! Where the descriptors are replaced the watch ends, and a touch makes a page of zeros that would count as
//! made. So what is lost is discarded again before it is [watched anew](super::watch_again).

#![allow(unsafe_code, reason = "drops pages that are reported as lost")]

use super::list::List;
use super::state::{Claim, Word};
use crate::os::advise;
use crate::range::PageRange;
use rustix::io::Errno;

/// What is lost of a range whose owner makes it again.
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

/// Discards what may have come to lie in lost pages while nothing watched them.
pub(super) fn discard(lost: &[PageRange]) -> Result<(), Errno> {
    // SAFETY: lost pages hold nothing until their owner has made them. It does so with a pin, and takes the
    // range's claim before: the caller, who has the claim, is its thread, or has seen no pin.
    lost.iter().try_for_each(|extent| unsafe { advise::drop_pages_though_locked(*extent) })
}
