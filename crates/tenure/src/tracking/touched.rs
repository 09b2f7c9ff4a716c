//! Touches of pages that are gone: what a signal's handler asks, and pages that are made again without a pin.

use super::state::Word;
use super::{claims, detection, offer, TRACKING};
use crate::os::uffd;
use crate::range::PageRange;
use crate::runtime::worker;
use rustix::io::Errno;

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

/// Puts one page's contents in place, whole, if it is missing from an offered range.
///
/// # Errors
/// `ENOMEM`: no memory.
pub(crate) fn fill_page(page: usize, bytes: &[u8]) -> Result<(), Errno> {
    let fill = || {
        let Some((id, ..)) = TRACKING.slab.holder_of(page) else { return Ok(()) };
        let offered = |word: Word| word.has(Word::OFFERED);
        // With the claim no other thread takes the range back and makes the page meanwhile.
        let claim = claims().claim(id, TRACKING.slab.get(id), offered);
        let Some(claim) = claim.filter(|claim| {
            let range = claim.range();
            (range.start..range.end).contains(&page)
        }) else {
            return Ok(());
        };
        match uffd::copy_page(detection::raw(offer::kind(&claim)), page, bytes) {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    };
    match fill() {
        Err(errno) if detection::is_closed(errno) => worker::on_worker(fill).unwrap_or(Err(errno)),
        other => other,
    }
}
