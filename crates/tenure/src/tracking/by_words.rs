//! Detection by words, where nothing watches the pages: a purged page reads as zeros, so a page that still
//! has its remembered word was not purged.

#![allow(unsafe_code, reason = "reads words of the pages, and writes them back")]

use super::list::{add_page, listed, List};
use super::side::Words;
use super::state::Claim;
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::{page_size, populate, words};
use crate::range::PageRange;
use rustix::io::Errno;

/// The place for a page of zeros.
const NO_WORD: u16 = u16::MAX;

impl Words {
    /// Returns the place and the value of a page's word. `None`: the page was all zeros.
    pub fn of(&self, page_number: usize) -> Option<(u16, u64)> {
        let place = self.place.get(page_number).filter(|place| **place != NO_WORD)?;
        Some((*place, *self.value.get(page_number)?))
    }
}

/// Remembers a non-zero word of each page before the offer. A page of zeros loses nothing by a purge, and
/// needs no word. The range is mapped and readable.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn remember(claim: &mut Claim, range: PageRange) -> Result<(), Errno> {
    let page = page_size();
    let mut words = Words::default();
    words.place.reserve(range.len() / page)?;
    words.value.reserve(range.len() / page)?;
    for at in (range.start..range.end).step_by(page) {
        // SAFETY: the caller has checked just before that the page is mapped and readable. The program
        // promises not to unmap a marked range, and an owned one is not unmapped while it is claimed.
        let (place, value) = unsafe { words::first_nonzero(at, page) }.unwrap_or((NO_WORD, 0));
        words.place.push(place)?;
        words.value.push(value)?;
    }
    claim.side_mut()?.words = Some(words);
    Ok(())
}

/// Returns whether each page is as it was when its word was remembered, or is gone. The range is mapped
/// and readable.
///
/// # Errors
/// Those of a look at the page map.
pub(super) fn holds(claim: &Claim, told: &[PageRange]) -> Result<bool, Errno> {
    let Some(words) = claim.known_side().and_then(|side| side.words.as_ref()) else {
        return Ok(false);
    };
    let holds = |page: PageRange| {
        let number = (page.start - claim.range().start) / page_size();
        // SAFETY: the caller has checked just before that the page is mapped and readable.
        let first = || unsafe { words::first_nonzero(page.start, page_size()) };
        match words.of(number) {
            // SAFETY: as above.
            Some((place, value)) if unsafe { words::holds(page.start, place, value) } => true,
            _ => first().is_none(),
        }
    };
    let pagemap = Pagemap::open().ok();
    for part in told {
        // A read of a page that is gone would make a page of zeros, which the kernel keeps.
        let there = match &pagemap {
            Some(pagemap) => listed(pagemap, *part, Pages::Data)?,
            None => List::of(&[*part])?,
        };
        if !there.iter().flat_map(|extent| extent.pieces(page_size())).all(holds) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Keeps the pages that are there, and returns those that are gone. A page whose word changed counts as
/// lost: a write after a purge looks like a write before it.
///
/// # Errors
/// `ENOMEM`: the words are as they were.
pub(super) fn take_back(claim: &mut Claim, suspect: bool) -> Result<List<PageRange>, Errno> {
    let (range, page) = (claim.range(), page_size());
    // In a child of a raw clone whose parent had the claim there are no words.
    let Some(words) = claim.known_side().and_then(|side| side.words.as_ref()).filter(|_| !suspect)
    else {
        return List::of(&[range]);
    };
    let with_words = || {
        let pages = range.pieces(page).enumerate();
        pages.filter_map(|(number, page)| Some((page, words.of(number)?)))
    };
    if claim.is_raw() {
        // If the program has protected a page, the kernel says so, where a write would end the program.
        let mut written = List::new();
        with_words().try_for_each(|(page, _)| add_page(&mut written, page))?;
        written.iter().try_for_each(|extent| populate::for_writing(*extent))?;
    }
    let mut gone = List::new();
    for (page, (place, value)) in with_words() {
        // SAFETY: mapped and writable. A raw range's page was populated just above, and the program
        // promises not to unmap it during a call. An owned range is not unmapped while it is claimed.
        if !unsafe { words::redirty(page.start, place, value) } {
            add_page(&mut gone, page)?;
        }
    }
    Ok(gone)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use crate::tracking::owned::{Losses, OwnedRange};
    use crate::tracking::{claims, ready};
    use tenure_testkit::{in_child, this_test};

    /// A program that confines its address space would have none left.
    #[test]
    fn the_words_of_a_range_take_a_few_bytes_a_page() {
        in_child(this_test!(), &[], || {
            const PAGES: usize = 4096;
            ready("test").unwrap();
            let memory = Mapping::anonymous(PAGES * page_size()).unwrap();
            let owned = OwnedRange::new("test", memory, 4, Losses::AreZeros).unwrap();
            let mut claim = claims().claim(owned.id(), owned.tracked(), |_| true).unwrap();
            remember(&mut claim, owned.range()).unwrap();
            let words = claim.side_mut().unwrap().words.as_ref().unwrap();
            let count = (words.place.len(), words.value.len());
            let room = words.place.capacity().max(words.value.capacity());
            drop(claim);
            assert_eq!(count, (PAGES, PAGES));
            assert!(room <= 2 * PAGES, "room for {room} words of {PAGES} pages");
        });
    }
}
