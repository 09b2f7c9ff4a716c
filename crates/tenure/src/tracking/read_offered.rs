//! Reads of an offered range that leave it offered.
//!
//! A thread that takes a range back puts all of it out of the kernel's reach, and the worker offers
//! it again later: together about 75 µs for 2 MiB. Where memory is short, a program that reads a
//! little in each of many ranges would do that all the time. A copy of a few KiB takes 2 µs.

use super::owned::OwnedRange;
use super::spared::{self, is_watched};
use super::state::Word;
use super::wake::stir;
use super::{before_claiming, claims, detection};
use crate::os::touch;
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::fork;
use std::mem::MaybeUninit;

impl OwnedRange {
    /// Fills `into` with the range's bytes from `offset` on, if the range is offered and the kernel
    /// has taken none of these bytes. The range stays offered. The caller has pinned it, and holds
    /// no lock and no claim. `false`: nothing is known about the bytes, and the caller takes the
    /// range back.
    pub fn copy_offered(&self, offset: usize, into: &mut [MaybeUninit<u8>]) -> bool {
        before_claiming();
        let tracked = self.tracked();
        let readable = |word: Word| {
            word.has(Word::OFFERED) && detection::by_userfaultfd() && is_watched(tracked)
        };
        // With the claim no other thread ends the watch meanwhile: a page that is gone and not
        // watched reads as zeros.
        let Some(claim) = claims().claim(self.id(), tracked, readable) else { return false };
        let range = claim.range();
        let fits = offset.checked_add(into.len()).is_some_and(|end| end <= range.len());
        let copied = fits && touch::copy_from(range.start + offset, into) == Ok(into.len());
        // A signal handler may have made a child meanwhile, and this may be that child, in which
        // nothing watches the pages. Or the program has closed the descriptors. So these checks
        // come after the copy, and in this order: another thread may at any time find that the
        // descriptors are lost, mark offered ranges as suspect, and open new ones.
        fork::look();
        let is_lost = detection::is_lost();
        let is_true = copied && !is_lost && readable(claim.word());
        if is_true {
            add(&COUNTERS.offered_reads, 1);
            let is_news = spared::after_read(&claim);
            drop(claim);
            if is_news {
                stir();
            }
        }
        is_true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use crate::tracking::owned::Losses;
    use crate::tracking::ready;
    use tenure_testkit::{in_child, skip, this_test};

    /// Where nothing watches them, bytes that are gone read as zeros.
    #[test]
    fn only_what_is_offered_and_watched_is_read() {
        in_child(this_test!(), &[], || {
            ready("test").unwrap();
            if !detection::by_userfaultfd() {
                skip!("no userfaultfd");
            }
            let memory = Mapping::anonymous(1 << 20).unwrap();
            let owned = OwnedRange::new("test", memory, 4, Losses::AreZeros).unwrap();
            owned.unpin();
            owned.offer_now().unwrap();
            owned.pin();
            let read = || owned.copy_offered(0, &mut [MaybeUninit::uninit(); 8]);
            // As when a child finds that it has no descriptor.
            owned.tracked().not_watched();
            assert!(owned.is_offered() && !read(), "nothing watches it");
            owned.tracked().watched_again();
            owned.settle_and_keep_losses().unwrap();
            owned.tracked().watched_again();
            assert!(!owned.is_offered() && !read(), "its owner has it");
        });
    }
}
