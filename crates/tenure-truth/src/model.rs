//! The oracle: the required contents of each page of volatile memory, and the allowed reports.

use crate::rng::mix;
use crate::sys::{self, page_bytes};
use std::fmt;

/// Words of a page.
pub fn page_words() -> usize {
    page_bytes() / 8
}

/// A page as the program wrote it. Version 0 is zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The version that was written last; 0: zeros.
    pub version: u64,
    /// Whether the page may exist (was written, or taken back).
    pub touched: bool,
    /// Whether it is volatile.
    pub marked: bool,
    /// Whether the kernel reported that it is gone.
    pub gone: bool,
}

/// The contents of a page, as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The model's contents.
    Expected,
    /// Zeros throughout, where the model says data.
    Zeros,
    /// Other contents: the first word that is wrong, and its value.
    Other(usize, u64),
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A page reads as zeros and no call reported it.
    Unreported(usize),
    /// A page holds bytes that no thread wrote.
    Bytes(usize, usize, u64),
    /// A loss was reported for a page that is not volatile: twice, or made up.
    ReportedAgain(usize),
    /// A loss was reported for a page that was never touched.
    ReportedUntouched(usize),
    /// A page was reported lost and does not read as zeros.
    LostWithBytes(usize, usize, u64),
    /// The kernel refused to read a page that is not volatile.
    Unreadable(usize, i32),
    /// A volatile page read as zeros, where a purged one must raise SIGBUS.
    ReadZeros(usize),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Unreported(page) => {
                write!(f, "page {page} reads zeros, and its loss was not reported")
            }
            Wrong::Bytes(page, word, value) => {
                write!(f, "page {page} holds {value:#x} at word {word}, which nobody wrote")
            }
            Wrong::ReportedAgain(page) => {
                write!(
                    f,
                    "page {page} was reported lost though it was not volatile: twice, or made up"
                )
            }
            Wrong::ReportedUntouched(page) => {
                write!(f, "page {page} was reported lost and never touched")
            }
            Wrong::LostWithBytes(page, word, value) => {
                write!(f, "page {page} was reported lost and holds {value:#x} at word {word}")
            }
            Wrong::Unreadable(page, errno) => {
                write!(f, "page {page} cannot be read (errno {errno}) though it is not volatile")
            }
            Wrong::ReadZeros(page) => {
                write!(f, "page {page}, volatile and perhaps purged, read as zeros without a pin")
            }
        }
    }
}

/// The pattern's first word of a page. Every word differs from 0 and from all other pages' words.
fn base(salt: u64, page: usize, version: u64) -> u64 {
    mix(mix(salt, page as u64), version)
}

/// One word of a page's pattern.
pub fn pattern(salt: u64, page: usize, version: u64, word: usize) -> u64 {
    if version == 0 {
        return 0;
    }
    base(salt, page, version).wrapping_add((word as u64).wrapping_mul(0x9E37_79B9_7F4A_7C16)) | 1
}

/// Writes a page's pattern at an address.
pub fn write_page(at: usize, salt: u64, page: usize, version: u64) {
    for word in 0..page_words() {
        sys::set_word(at + word * 8, pattern(salt, page, version, word));
    }
}

/// Compares words with a page's pattern, from word `from` on.
pub fn compare(
    words: impl Fn(usize) -> u64,
    salt: u64,
    page: usize,
    version: u64,
    from: usize,
) -> Found {
    let tally = crate::tally::tally();
    crate::tally::add(&tally.pages, 1);
    crate::tally::add(&tally.bytes, page_bytes() as u64);
    let mut first = None;
    let mut zeros = true;
    for word in from..page_words() {
        let value = words(word);
        zeros &= value == 0;
        if first.is_none() && value != pattern(salt, page, version, word) {
            first = Some((word, value));
        }
    }
    match first {
        None => Found::Expected,
        Some(_) if zeros => Found::Zeros,
        Some((word, value)) => Found::Other(word, value),
    }
}

/// Compares memory with a page's pattern.
pub fn look(at: usize, salt: u64, page: usize, version: u64) -> Found {
    compare(|word| sys::word(at + word * 8), salt, page, version, 0)
}

/// The model of a range.
#[derive(Clone, Debug)]
pub struct Pages {
    /// A number that separates this range's patterns from all others'.
    pub salt: u64,
    /// Its pages.
    pub pages: Vec<Page>,
}

impl Pages {
    /// Pages never touched.
    pub fn new(salt: u64, count: usize) -> Pages {
        Pages { salt, pages: vec![Page::default(); count] }
    }

    /// The program wrote a page.
    pub fn wrote(&mut self, page: usize, version: u64) {
        let page = &mut self.pages[page];
        page.version = version;
        page.touched = true;
    }

    /// The page was marked.
    pub fn mark(&mut self, page: usize) {
        self.pages[page].marked = true;
    }

    /// The page was unmarked; `reported`: as lost.
    pub fn take_back(&mut self, page: usize, reported: bool) -> Result<(), Wrong> {
        let before = self.pages[page];
        let now = &mut self.pages[page];
        now.touched |= before.marked;
        now.marked = false;
        now.gone = false;
        if reported {
            now.version = 0;
            return match before {
                Page { marked: false, .. } => Err(Wrong::ReportedAgain(page)),
                Page { touched: false, .. } => Err(Wrong::ReportedUntouched(page)),
                _ => Ok(()),
            };
        }
        if before.gone && before.version != 0 {
            now.version = 0;
            return Err(Wrong::Unreported(page));
        }
        Ok(())
    }

    /// Checks the contents of a page that is not volatile.
    pub fn check(&mut self, page: usize, found: Found, reported: bool) -> Result<(), Wrong> {
        match found {
            Found::Expected => Ok(()),
            Found::Zeros => {
                self.pages[page].version = 0;
                Err(Wrong::Unreported(page))
            }
            Found::Other(word, value) if reported => Err(Wrong::LostWithBytes(page, word, value)),
            Found::Other(word, value) => Err(Wrong::Bytes(page, word, value)),
        }
    }

    /// Checks the kernel's read of a page, volatile or not; `found` is the comparison with the
    /// model.
    pub fn read(
        &mut self,
        page: usize,
        found: Result<Found, i32>,
        words: bool,
    ) -> Result<(), Wrong> {
        let now = &mut self.pages[page];
        match found {
            Err(errno) if !now.marked => Err(Wrong::Unreadable(page, errno)),
            Err(_) => {
                now.gone = now.touched;
                Ok(())
            }
            Ok(Found::Expected) if now.gone && now.version != 0 => Err(Wrong::ReadZeros(page)),
            Ok(Found::Expected) => Ok(()),
            Ok(Found::Zeros) if now.marked && words => {
                now.gone = true;
                Ok(())
            }
            Ok(Found::Zeros) if now.marked => Err(Wrong::ReadZeros(page)),
            Ok(Found::Zeros) => Err(Wrong::Unreported(page)),
            Ok(Found::Other(word, value)) => Err(Wrong::Bytes(page, word, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked() -> Pages {
        let mut pages = Pages::new(7, 4);
        for page in 0..3 {
            pages.wrote(page, 1);
        }
        for page in 0..4 {
            pages.mark(page);
        }
        pages
    }

    fn memory(salt: u64, page: usize, version: u64) -> Vec<u64> {
        (0..page_words()).map(|word| pattern(salt, page, version, word)).collect()
    }

    fn found(memory: &[u64], page: usize, version: u64) -> Found {
        compare(|word| memory[word], 7, page, version, 0)
    }

    #[test]
    fn what_was_written_is_right() {
        let mut pages = marked();
        let whole = memory(7, 0, 1);
        assert_eq!(pages.take_back(0, false), Ok(()));
        assert_eq!(pages.check(0, found(&whole, 0, 1), false), Ok(()));
    }

    #[test]
    fn one_wrong_byte_is_found() {
        for at in [0, 1, 255, page_words() - 1] {
            for byte in 0..8 {
                let mut pages = marked();
                let mut whole = memory(7, 0, 1);
                whole[at] ^= 1 << (8 * byte);
                assert_eq!(pages.take_back(0, false), Ok(()));
                let verdict = pages.check(0, found(&whole, 0, 1), false);
                assert_eq!(verdict, Err(Wrong::Bytes(0, at, whole[at])));
            }
        }
    }

    #[test]
    fn another_pages_bytes_and_older_bytes_are_found() {
        let mut pages = marked();
        for other in [memory(7, 1, 1), memory(7, 0, 2), memory(8, 0, 1)] {
            assert!(matches!(
                pages.check(0, found(&other, 0, 1), false),
                Err(Wrong::Bytes(0, 0, _))
            ));
        }
    }

    #[test]
    fn a_loss_that_nobody_reports_is_found() {
        let mut pages = marked();
        let zeros = vec![0; page_words()];
        assert_eq!(pages.take_back(1, false), Ok(()));
        assert_eq!(pages.check(1, found(&zeros, 1, 1), false), Err(Wrong::Unreported(1)));
        // A page that the kernel reported before, whatever it holds now.
        let mut pages = marked();
        assert_eq!(pages.read(1, Err(libc::EFAULT), false), Ok(()));
        assert_eq!(pages.take_back(1, false), Err(Wrong::Unreported(1)));
    }

    #[test]
    fn a_loss_that_is_reported_twice_is_found() {
        let mut pages = marked();
        let zeros = vec![0; page_words()];
        assert_eq!(pages.take_back(1, true), Ok(()));
        assert_eq!(pages.check(1, found(&zeros, 1, 0), true), Ok(()));
        assert_eq!(pages.take_back(1, true), Err(Wrong::ReportedAgain(1)));
    }

    #[test]
    fn a_loss_that_was_none_is_found() {
        let mut pages = marked();
        assert_eq!(pages.take_back(3, true), Err(Wrong::ReportedUntouched(3)));
        let whole = memory(7, 0, 1);
        assert_eq!(pages.take_back(0, true), Ok(()));
        let verdict = pages.check(0, found(&whole, 0, 0), true);
        assert!(matches!(verdict, Err(Wrong::LostWithBytes(0, 0, _))));
    }

    #[test]
    fn touches_without_a_pin_are_judged() {
        let mut pages = marked();
        assert_eq!(pages.read(0, Ok(Found::Zeros), false), Err(Wrong::ReadZeros(0)));
        assert_eq!(pages.read(0, Ok(Found::Zeros), true), Ok(()));
        assert_eq!(pages.take_back(1, false), Ok(()));
        assert_eq!(
            pages.read(1, Err(libc::EFAULT), false),
            Err(Wrong::Unreadable(1, libc::EFAULT))
        );
    }
}
