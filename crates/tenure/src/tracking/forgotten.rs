//! What was forgotten of a range that the kernel then may refuse to unmap.

use super::state::{flag, Claim, Word};

/// Whoever forgets a range that is about to be unmapped says what the kernel has not unmapped:
/// [`raw::stays`](super::raw::stays). Otherwise the next unmark would not know that the kernel may have
/// taken pages.
#[derive(Clone, Copy, Default)]
#[must_use = "the kernel may not unmap the range"]
pub(crate) struct Forgotten {
    /// tenure's own userfaultfd watches a part. That descriptor gets no unmap event from the kernel.
    pub watched: bool,
    /// A part was marked, or had losses that no call has reported.
    pub(super) unsettled: bool,
}

impl Forgotten {
    /// Adds a range that is about to be forgotten.
    pub(super) fn add(&mut self, claim: &Claim) {
        let word = claim.word();
        self.watched |= claim.is(flag::WATCHED);
        self.unsettled |= word.pins() == 0 || word.has(Word::OFFERED | Word::UNCLEAN | Word::LOST);
    }
}
