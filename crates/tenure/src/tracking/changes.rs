//! Finds out what the program has done to marked memory without tenure: unmapped, protected or locked
//! it, or mapped something else there. What it maps there is not marked.

use super::by_words;
use super::detection::{self, Kind};
use super::holes::mappings_in;
use super::list::List;
use super::state::{Claim, Word};
use crate::os::maps::{self, Unfit};
use crate::os::mlock::{self, Seen};
use crate::os::page_size;
use crate::range::PageRange;
use rustix::io::Errno;

/// Looks whether a range can be volatile still, before it is offered. The kernel frees no locked page,
/// so the range waits until the lock ends. In the place of a raw range there may be a file, which would
/// be populated and watched before the kernel refuses to free it, and its missing pages would raise
/// SIGBUS. Before Linux 6.11 a look at each raw range would read all mappings.
pub(super) fn look(claim: &Claim) -> Result<(), Unfit> {
    if !claim.is_raw() || !maps::query_works() {
        return match mlock::asked(claim.range()) {
            Ok(Seen::Locked) => Err(Unfit::Locked),
            _ => Ok(()),
        };
    }
    maps::in_one_process(|| {
        let mut verdict = Ok(());
        let listed = maps::each_unfit(claim.range(), |_, unfit| verdict = verdict.and(Err(unfit)));
        // If it cannot be listed, the kernel refuses what cannot be offered.
        listed.map_or(Ok(()), |()| verdict)
    })
}

/// Without PROCMAP_QUERY (before 6.11) so many pages are asked for one by one, about 1 µs each. For
/// more, all mappings are read: 0.3 µs for each that the process has.
const SINGLY: usize = 64;

/// Returns whether the parts of an offered raw range are still the memory that was offered: what the
/// program maps in its place is not watched, and is not tenure's to discard. Without a watch it tells it
/// by the remembered words. Where nothing is mapped, the call that follows fails, or `false`.
///
/// # Errors
/// Part of it is locked, or there is no memory for the list (`ENOMEM`).
pub(super) fn is_same_memory(claim: &Claim, kind: Kind, told: &[PageRange]) -> Result<bool, Unfit> {
    if !claim.is_raw() {
        return Ok(true);
    }
    if !detection::by_userfaultfd() {
        // A range that became unreadable since its offer must not kill the background thread.
        return match maps::check_volatile(claim.range()) {
            Ok(()) => by_words::holds(claim, told).map_err(Unfit::Unknown),
            Err(Unfit::Locked) => Err(Unfit::Locked),
            Err(_) => Ok(false),
        };
    }
    let is_watched = |part: PageRange| detection::is_watched(kind, part.start);
    for part in told {
        let is_small = part.len() <= SINGLY * page_size() && !maps::query_works();
        let watched = match is_small || part.len() == page_size() {
            true => part.pieces(page_size()).all(is_watched),
            false => mappings_in(*part).map_err(Unfit::Unknown)?.iter().copied().all(is_watched),
        };
        if !watched {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the parts that cannot be volatile, and why.
pub(super) fn unfit_parts(range: PageRange) -> Result<List<(PageRange, Unfit)>, Errno> {
    maps::in_one_process(|| {
        let (mut parts, mut noted) = (List::new(), Ok(()));
        maps::each_unfit(range, |part, unfit| {
            noted = noted.and_then(|()| parts.push((part, unfit)));
        })?;
        noted.map(|()| parts)
    })
}

/// Returns whether a range goes of which this part cannot be volatile. Where something is mapped, only
/// a mark is forgotten: of a range that was offered the kernel may have discarded pages, which the next
/// unmark reports.
pub(super) fn goes(word: Word, unfit: Unfit) -> bool {
    let only_marked = word.pins() == 0 && !word.has(Word::OFFERED | Word::UNCLEAN | Word::LOST);
    only_marked || matches!(unfit, Unfit::Hole(_))
}

/// Returns whether nothing of the range can be volatile. It is asked again under the claim: the
/// program may have mapped and marked memory there since.
pub(super) fn may_be_forgotten(claim: &Claim) -> bool {
    let word = claim.word();
    maps::in_one_process(|| {
        let mut bytes = 0;
        let add = |part: PageRange, unfit| bytes += if goes(word, unfit) { part.len() } else { 0 };
        maps::each_unfit(claim.range(), add).is_ok() && bytes == claim.range().len()
    })
}
