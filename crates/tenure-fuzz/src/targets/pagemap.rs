//! The page map of this process, by each way to read it, compared with the operations on the pages.

#![allow(unsafe_code, reason = "maps pages, and discards them")]

use super::promise::{holds, same};
use crate::os::page_size;
use crate::os::pagemap::{Pagemap, Pages};
use crate::process::pages;
use crate::range::PageRange;
use arbitrary::Unstructured;
use rustix::mm::{
    madvise, mmap_anonymous, mprotect, munmap, Advice, MapFlags, MprotectFlags, ProtFlags,
};

const PAGES: usize = 96;

/// The page map can be read.
pub fn can_run() -> Result<(), String> {
    Pagemap::open().map(drop).map_err(|errno| format!("the page map cannot be read: {errno}"))
}

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Missing,
    /// Read and never written: the kernel's own page of zeros.
    Zero,
    Written,
}

struct Area {
    start: usize,
    pages: [Page; PAGES],
}

impl Area {
    fn new() -> Result<Area, String> {
        let (len, both) = (PAGES * page_size(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, both, MapFlags::PRIVATE) };
        let start = start.map_err(|errno| errno.to_string())?;
        // SAFETY: changes no contents of the mapping that was just made.
        let _ = unsafe { madvise(start, len, Advice::LinuxNoHugepage) };
        Ok(Area { start: start as usize, pages: [Page::Missing; PAGES] })
    }

    fn range(&self, first: usize, count: usize) -> PageRange {
        let start = self.start + first * page_size();
        PageRange::new(start, start + count * page_size())
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<(), String> {
        let kind = input.int_in_range(0..=4).unwrap_or(0);
        let (first, count) = part(input);
        for at in first..first + count {
            let place = (self.start + at * page_size()) as *mut u8;
            match kind {
                0 | 1 => {
                    // SAFETY: a byte of the area, which is readable and writable.
                    unsafe { place.write_volatile(1) };
                    self.pages[at] = Page::Written;
                }
                2 => {
                    // SAFETY: a byte of the area, which is readable.
                    unsafe { place.read_volatile() };
                    if self.pages[at] == Page::Missing {
                        self.pages[at] = Page::Zero;
                    }
                }
                _ => self.pages[at] = Page::Missing,
            }
        }
        let range = self.range(first, count);
        if kind >= 3 {
            // SAFETY: pages of the area, to which nothing refers.
            let _ = unsafe { madvise(range.start as *mut _, range.len(), Advice::LinuxDontNeed) };
        } else if kind == 1 {
            // A mapping that is split into parts, whose pages are unchanged.
            let (at, len) = (range.start as *mut _, range.len());
            // SAFETY: nothing touches the pages until they are writable again, below.
            let _ = unsafe { mprotect(at, len, MprotectFlags::READ) };
            let looked = self.look(range);
            // SAFETY: gives the area its access back.
            let _ = unsafe { mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE) };
            return looked;
        }
        Ok(())
    }

    /// All queries about a part.
    fn look(&self, range: PageRange) -> Result<(), String> {
        let pagemap = Pagemap::open().map_err(|errno| errno.to_string())?;
        let page = |at: usize| self.pages[(at - self.start) / page_size()];
        let scans = {
            let _ = pagemap.count(range, Pages::Missing);
            crate::os::pagemap::scan_works()
        };
        for kind in [Pages::Missing, Pages::Data, Pages::Resident] {
            let (mut scanned, mut read) = (Vec::new(), Vec::new());
            let extents = pagemap.extents(range, kind, |part| scanned.push(part));
            extents.map_err(|errno| format!("scan: {errno}"))?;
            let extents = pagemap.extents_by_reading(range, kind, |part| read.push(part));
            extents.map_err(|errno| format!("read: {errno}"))?;
            // Without PAGEMAP_SCAN the page of zeros counts as data.
            let wanted = |zero_is_data: bool| {
                let is = |page: Page| match kind {
                    Pages::Missing => page == Page::Missing,
                    _ => page == Page::Written || zero_is_data && page == Page::Zero,
                };
                let at = range.pieces(page_size()).filter(|piece| is(page(piece.start)));
                joined(at)
            };
            same(&format!("{kind:?} by scanning"), &joined(scanned.into_iter()), &wanted(!scans))?;
            same(&format!("{kind:?} by reading"), &joined(read.into_iter()), &wanted(true))?;
        }
        let wanted = range.pieces(page_size()).find(|piece| page(piece.start) == Page::Missing);
        let absent = pagemap.first_absent(range).map_err(|errno| errno.to_string())?;
        same("the first page that is not there", &absent, &wanted)?;
        self.cells(range, |at| page(at) != Page::Missing)
    }

    /// The command's cells of a part.
    fn cells(&self, range: PageRange, is_there: impl Fn(usize) -> bool) -> Result<(), String> {
        let mut pages =
            pages::Pages::open(std::process::id()).map_err(|error| error.to_string())?;
        for most in [1, 7, 1000] {
            let cells = pages.cells(range.start as u64, range.end as u64, most);
            let cells = cells.map_err(|error| error.to_string())?;
            let mut at = range.start;
            for cell in &cells {
                let end = at + cell.pages as usize * page_size();
                let there = (at..end).step_by(page_size()).filter(|at| is_there(*at)).count();
                same("the pages of a cell that are there", &cell.present, &(there as u64))?;
                at = end;
            }
            holds("the cells are the whole range", at == range.end)?;
        }
        Ok(())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it.
        let _ = unsafe { munmap(self.start as *mut _, PAGES * page_size()) };
    }
}

/// Joins neighbours.
fn joined(parts: impl Iterator<Item = PageRange>) -> Vec<PageRange> {
    let mut list: Vec<PageRange> = Vec::new();
    for part in parts {
        match list.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => list.push(part),
        }
    }
    list
}

/// A first page, and the number of pages.
fn part(input: &mut Unstructured<'_>) -> (usize, usize) {
    let first = input.int_in_range(0..=PAGES - 1).unwrap_or(0);
    (first, input.int_in_range(1..=PAGES - first).unwrap_or(1))
}

pub fn run(input: &[u8]) -> Result<(), String> {
    let mut input = Unstructured::new(input);
    let mut area = Area::new()?;
    for _ in 0..8 {
        if input.is_empty() {
            break;
        }
        area.step(&mut input)?;
        let (first, count) = part(&mut input);
        area.look(area.range(first, count))?;
    }
    area.look(area.range(0, PAGES))
}
