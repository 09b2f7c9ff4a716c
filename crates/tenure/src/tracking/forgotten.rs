//! What was forgotten of a range that the kernel then may refuse to unmap.

use super::list::List;
use super::state::{flag, Claim, Word};
use crate::range::PageRange;

/// Whoever forgets a range that is about to be unmapped says what the kernel has not unmapped:
/// [`raw::stays`](super::raw::stays). Otherwise the next unmark would not know which pages the kernel
/// took.
#[derive(Default)]
#[must_use = "it marks again what the kernel does not unmap"]
pub(crate) struct Forgotten {
    /// tenure's own userfaultfd watches a part. That descriptor gets no unmap event from the kernel.
    pub watched: bool,
    marked: List<PageRange>,
    /// There was no memory for `marked`, or losses of a part that was not marked were not reported.
    pub(super) is_more: bool,
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

    /// The parts of `range` that were marked.
    pub(super) fn marked_in(&self, range: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        let clipped = move |marked: &PageRange| PageRange {
            start: marked.start.max(range.start),
            end: marked.end.min(range.end),
        };
        self.marked.iter().map(clipped).filter(|part| part.start < part.end)
    }
}
