//! A range of pages of one byte each, in pieces of one page.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRange {
    pub start: usize,
    pub end: usize,
}

impl PageRange {
    pub fn new(start: usize, end: usize) -> PageRange {
        assert!(start < end);
        PageRange { start, end }
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn huge_part(&self) -> Option<PageRange> {
        None
    }

    pub fn pieces(self, _step: usize) -> impl Iterator<Item = PageRange> {
        (self.start..self.end).map(|at| PageRange::new(at, at + 1))
    }
}
