//! Which pages of a range are in memory.

use super::memory::word;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use tenure::published;

/// Pages of a part of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// All there are.
    pub pages: u64,
    /// In memory.
    pub present: u64,
    /// The parts of huge pages among them; 0 if the kernel does not report them (before 6.7).
    pub huge: u64,
    /// On a swap device.
    pub swapped: u64,
}

/// The page map of a process.
#[derive(Debug)]
pub struct Pages {
    file: File,
    page: u64,
    scans: bool,
}

/// Before Linux 6.7 only one page in several is read, so that a range of any size is read in a
/// moment.
const MOST_READ: u64 = 1 << 24;

impl Pages {
    /// Opens it.
    pub fn open(pid: u32) -> io::Result<Pages> {
        let file = File::open(format!("/proc/{pid}/pagemap"))?;
        Ok(Pages { file, page: rustix::param::page_size() as u64, scans: true })
    }

    /// Divides a range into so many cells, or fewer if it has fewer pages.
    pub fn cells(&mut self, start: u64, end: u64, most: usize) -> io::Result<Vec<Cell>> {
        let pages = (end - start) / self.page;
        let count = (most as u64).clamp(1, pages.max(1));
        // Multiplied in 128 bits: a range may be as large as the address space.
        let first = |n: u64| (u128::from(pages) * u128::from(n) / u128::from(count)) as u64;
        let mut cells = vec![Cell::default(); count as usize];
        for (n, cell) in cells.iter_mut().enumerate() {
            cell.pages = first(n as u64 + 1) - first(n as u64);
        }
        if self.scans {
            match self.scan(start, end, pages, &mut cells) {
                Ok(()) => return Ok(cells),
                // Before 6.7.
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.scans = false,
                Err(error) => return Err(error),
            }
        }
        for (n, cell) in cells.iter_mut().enumerate() {
            self.read(start / self.page + first(n as u64), cell, MOST_READ / count)?;
        }
        Ok(cells)
    }

    fn scan(&self, start: u64, end: u64, pages: u64, cells: &mut [Cell]) -> io::Result<()> {
        let count = cells.len() as u64;
        let pagemap = self.file.as_fd();
        published::each_page_there(
            pagemap,
            (start, end),
            &mut |from, to, (present, swapped, huge)| {
                let mut page = (from - start) / self.page;
                let last = (to - start) / self.page;
                while page < last {
                    // The last cell that begins at this page or before it: page p begins cell n for
                    // p = pages * n / count, rounded down.
                    let n = ((u128::from(page) + 1) * u128::from(count) - 1) / u128::from(pages);
                    let next = (u128::from(pages) * (n + 1) / u128::from(count)) as u64;
                    let here = next.min(last) - page;
                    let cell = &mut cells[n as usize];
                    cell.present += here * u64::from(present);
                    cell.swapped += here * u64::from(swapped);
                    cell.huge += here * u64::from(huge);
                    page += here;
                }
            },
        )
    }

    /// Reads the entries of a cell, or one in several if there are more than `most`.
    fn read(&self, first: u64, cell: &mut Cell, most: u64) -> io::Result<()> {
        let step = cell.pages.div_ceil(most.max(1)).max(1);
        let mut buffer = vec![0u8; 8 * 4096];
        let mut page = 0;
        while page < cell.pages {
            let wanted = match step {
                1 => (cell.pages - page).min(4096) as usize,
                _ => 1,
            };
            let got = self.file.read_at(&mut buffer[..wanted * 8], (first + page) * 8)? / 8;
            if got == 0 {
                break;
            }
            for entry in buffer[..got * 8].chunks_exact(8).map(word) {
                let counts = step.min(cell.pages - page);
                cell.present += if entry >> 63 == 1 { counts } else { 0 };
                cell.swapped += if entry >> 62 & 1 == 1 { counts } else { 0 };
                page += counts;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_see_the_same_pages() {
        let page = rustix::param::page_size();
        let mut map = memmap2::MmapMut::map_anon(40 * page).unwrap();
        for n in [0, 1, 2, 3, 20, 39] {
            map[n * page] = 1;
        }
        let start = map.as_ptr() as u64;
        let mut pages = Pages::open(std::process::id()).unwrap();
        let see = |pages: &mut Pages, most| {
            let cells = pages.cells(start, start + map.len() as u64, most).unwrap();
            cells.iter().map(|cell| (cell.pages, cell.present)).collect::<Vec<_>>()
        };
        // A huge page of the system's setting would contain all of them; this mapping is smaller
        // than one.
        let by_scan = [see(&mut pages, 10), see(&mut pages, 3), see(&mut pages, 1000)];
        pages.scans = false;
        let by_reading = [see(&mut pages, 10), see(&mut pages, 3), see(&mut pages, 1000)];
        assert_eq!(by_scan, by_reading);
        assert_eq!(by_scan[0][0], (4, 4));
        assert_eq!(by_scan[0].iter().map(|cell| cell.1).sum::<u64>(), 6);
        assert_eq!(by_scan[2].len(), 40);
    }
}
