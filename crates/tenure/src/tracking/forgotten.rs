//! What was forgotten of a range that the kernel then may refuse to unmap.

use super::detection::{self, Kind};
use super::list::List;
use super::raw;
use super::state::{flag, Claim, Word};
use crate::range::PageRange;

/// Whoever forgets a range that is about to be unmapped says with [`stays`](Forgotten::stays) what the
/// kernel has not unmapped. Otherwise the next unmark would not know which pages the kernel took.
#[derive(Default)]
#[must_use = "it marks again what the kernel does not unmap"]
pub(crate) struct Forgotten {
    /// tenure's own userfaultfd watches a part. That descriptor gets no unmap event from the kernel.
    pub watched: bool,
    marked: List<PageRange>,
    /// There was no memory for `marked`, or losses of a part that was not marked were not reported.
    is_more: bool,
}

impl Forgotten {
    /// Adds a range that is about to be forgotten.
    pub(super) fn add(&mut self, claim: &Claim) {
        let word = claim.word();
        self.watched |= claim.is(flag::WATCHED);
        self.is_more |= match word.pins() {
            0 => self.marked.push(claim.range()).is_err(),
            _ => word.has(Word::OFFERED | Word::UNCLEAN | Word::LOST),
        };
    }

    /// This part of the range is still mapped. What was marked in it is marked again, and counts as
    /// lost: nobody has watched it meanwhile.
    #[cold]
    pub fn stays(&self, part: PageRange) {
        let clipped = |marked: &PageRange| PageRange {
            start: marked.start.max(part.start),
            end: marked.end.min(part.end),
        };
        let parts = self.marked.iter().map(clipped).filter(|part| part.start < part.end);
        let all = parts.fold(true, |all, part| raw::mark_as_lost(part, self.watched) && all);
        if self.is_more || !all {
            raw::unknown_is_lost();
            if self.watched {
                // Otherwise a touch would raise SIGBUS for ever.
                let _ = detection::unregister(Kind::Sigbus, part);
            }
        }
    }
}
