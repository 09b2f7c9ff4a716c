//! A page-aligned, non-empty, non-wrapping range of addresses.

use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::text::{text, Text};

/// A range of whole pages, checked once at the edge of the crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRange {
    pub start: usize,
    pub end: usize,
}

impl PageRange {
    /// The pages that a caller's range touches. The kernel's own calls take a range so: the start
    /// is aligned, and the length need not be. For calls that do no harm to the rest of the last
    /// page.
    pub fn touched(call: &'static str, addr: *const u8, len: usize) -> Result<PageRange> {
        // A length that cannot be rounded up stays, and the check below finds that it wraps around.
        let whole = len.checked_next_multiple_of(os::page_size()).unwrap_or(len);
        PageRange::check_as(call, addr, len, whole)
    }

    /// Checks a caller's range: aligned start and length, not empty, no wrap-around.
    pub fn check(call: &'static str, addr: *const u8, len: usize) -> Result<PageRange> {
        PageRange::check_as(call, addr, len, len)
    }

    /// `whole` bytes, for an error that names the `len` that the caller passed.
    fn check_as(
        call: &'static str,
        addr: *const u8,
        len: usize,
        whole: usize,
    ) -> Result<PageRange> {
        let page = os::page_size();
        let start = addr as usize;
        let bad = |why: Text, remedy: &'static str| {
            Err(Error::new(ErrorKind::BadRange, call, why, remedy).on(start, len))
        };
        if len == 0 {
            return bad("the range is empty".into(), "pass a length of at least one page");
        }
        if start % page != 0 {
            return bad(
                text!("the start is not a multiple of the page size ({page})"),
                "round the address down to a page, or allocate with mmap or aligned_alloc",
            );
        }
        if whole % page != 0 && start.checked_add(whole).is_some() {
            return bad(
                text!("the length is not a multiple of the page size ({page})"),
                "round the length to whole pages that hold nothing else",
            );
        }
        match start.checked_add(whole) {
            // The top of the address space belongs to the kernel; isize::MAX is the bound that
            // Rust's pointers need as well.
            Some(end) if start != 0 && end <= isize::MAX as usize => Ok(PageRange { start, end }),
            _ => bad(
                "the range wraps around or leaves the user address space".into(),
                "check the length for an underflow",
            ),
        }
    }

    /// A range already known to be aligned.
    pub fn new(start: usize, end: usize) -> PageRange {
        debug_assert!(start < end && start % os::page_size() == 0 && end % os::page_size() == 0);
        PageRange { start, end }
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// The part made of whole huge pages, if there is one.
    pub fn huge_part(&self) -> Option<PageRange> {
        let start = self.start.next_multiple_of(os::HUGE_PAGE);
        let end = self.end / os::HUGE_PAGE * os::HUGE_PAGE;
        (start < end).then_some(PageRange { start, end })
    }

    /// The range in pieces of at most `step` bytes, cut at multiples of `step`.
    pub fn pieces(self, step: usize) -> impl Iterator<Item = PageRange> {
        let mut at = self.start;
        std::iter::from_fn(move || {
            if at >= self.end {
                return None;
            }
            let end = (at / step * step + step).min(self.end);
            let piece = PageRange { start: at, end };
            at = end;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_ranges_are_named() {
        let page = os::page_size();
        for (addr, len, part) in [
            (page, 0, "empty"),
            (page + 1, page, "start is not a multiple"),
            (page, page + 1, "length is not a multiple"),
            (usize::MAX - page + 1, 2 * page, "wraps"),
            (0, page, "wraps around or leaves"),
        ] {
            let error = PageRange::check("mark", addr as *const u8, len).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL);
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.to_string().contains("mark"), "{error}");
        }
    }

    #[test]
    fn what_is_touched_is_rounded_up() {
        let page = os::page_size();
        let touched = |addr: usize, len| PageRange::touched("lock", addr as *const u8, len);
        for (len, pages) in [(1, 1), (page, 1), (page + 1, 2), (3 * page - 1, 3)] {
            let range = touched(4 * page, len).unwrap();
            assert_eq!((range.start, range.len()), (4 * page, pages * page));
        }
        for (addr, len, part) in [
            (page, 0, "empty"),
            (page + 1, 5, "start is not a multiple"),
            (page, usize::MAX, "wraps"),
            (page, isize::MAX as usize, "wraps"),
        ] {
            let error = touched(addr, len).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn pieces_cover_the_range_once() {
        let page = os::page_size();
        let range = PageRange::new(3 * page, 21 * page);
        let pieces: Vec<_> = range.pieces(8 * page).collect();
        assert_eq!(pieces.first().unwrap().start, range.start);
        assert_eq!(pieces.last().unwrap().end, range.end);
        assert!(pieces.windows(2).all(|w| w[0].end == w[1].start));
        assert!(pieces.iter().all(|p| p.len() <= 8 * page));
    }
}
