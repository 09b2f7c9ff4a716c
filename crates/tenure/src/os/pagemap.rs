//! Finds which pages of a range are there: by PAGEMAP_SCAN (6.7+), else by `/proc/self/pagemap`.

use super::errno::again;
use super::mincore::in_memory;
use super::pagemap_scan::{self, Region, Wanted, HUGE, PFN_ZERO, PRESENT, SWAPPED};
use super::{kept, own_memory, page_size, populate};
use crate::range::PageRange;
use rustix::fd::{BorrowedFd, IntoRawFd};
use rustix::fs::{open, Mode, OFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;
const ENTRY_GUARD: u64 = 1 << 58;

/// Which pages to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Nothing is there: never touched, discarded or dropped.
    Missing,
    /// Pages that hold data of their own, or have it in swap. PAGEMAP_SCAN leaves the shared zero
    /// page out; without it that page counts as data.
    Data,
    /// [`Data`](Pages::Data), and without PAGEMAP_SCAN those of them that no other process maps, or that
    /// are in swap: the shared zero page looks like a page that a fork shares.
    Written,
    /// Pages of their own that are in memory, and not in swap. Without PAGEMAP_SCAN the shared zero
    /// page counts, too.
    Resident,
    /// Pages mapped by a huge page. Nothing is listed if the kernel does not report them.
    Huge,
}

/// Returns whether another process also maps the page, whose entry this is. Before 6.7 only its
/// bytes distinguish the zero page from a page that a fork shares. A shared page of zeros may be
/// taken for the zero page: losing zeros is no loss.
fn is_shared(page: PageRange, entry: u64) -> bool {
    entry & ENTRY_PRESENT != 0
        && entry & ENTRY_EXCLUSIVE == 0
        && (scan_works() || !own_memory::reads_as_zeros(page))
}

/// Returns whether the page is a guard region (`MADV_GUARD_INSTALL`, 6.13+), if the kernel reports
/// it (6.15+).
pub(crate) fn is_guard(page: usize) -> bool {
    let mut guard = false;
    if let Ok(pagemap) = Pagemap::open() {
        let page = PageRange::new(page, page + page_size());
        let _ = pagemap.entries(page, |_, entry| guard = entry & ENTRY_GUARD != 0);
    }
    guard
}

/// The calling process's pagemap.
pub(crate) struct Pagemap {
    /// The thread's own, which stays open. See [`stays_open_on_this_thread`].
    threads: Option<BorrowedFd<'static>>,
}

thread_local! {
    /// Each thread's own: it is open in the descriptor table of one thread only.
    static THREADS: Cell<Option<BorrowedFd<'static>>> = const { Cell::new(None) };
}

/// Has the calling thread open one pagemap for all its looks. The caller has a descriptor table of
/// its own and runs no code of the program's, so no other code can close the file. To open it takes
/// 0.9 µs; a look at a small range takes less.
pub(crate) fn stays_open_on_this_thread() {
    if let Ok(fd) = open(PAGEMAP, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        // SAFETY: nothing closes the descriptor before the thread ends, and its table with it.
        let fd = unsafe { BorrowedFd::borrow_raw(fd.into_raw_fd()) };
        THREADS.set(Some(fd));
    }
}

const PAGEMAP: &str = "/proc/thread-self/pagemap";

/// For the whole process: all threads run on one kernel. 0 unknown, 1 PAGEMAP_SCAN works, 2 it does
/// not.
static SCAN_WORKS: AtomicU8 = AtomicU8::new(0);

/// Returns whether PAGEMAP_SCAN is used; the first scan decides.
pub(crate) fn scan_works() -> bool {
    SCAN_WORKS.load(Ordering::Relaxed) == 1
}

impl Pagemap {
    /// Opens the calling process's pagemap. Fails if the kernel refuses.
    pub fn open() -> Result<Pagemap, Errno> {
        let pagemap = Pagemap { threads: THREADS.get() };
        pagemap.asked(|_| ())?;
        Ok(pagemap)
    }

    /// Calls `ask` with the descriptor, perhaps more than once.
    fn asked<R>(&self, mut ask: impl FnMut(BorrowedFd<'_>) -> R) -> Result<R, Errno> {
        match self.threads {
            // No other code can close the background thread's descriptor.
            Some(fd) => Ok(ask(fd)),
            None => kept::PAGEMAP.asked(ask),
        }
    }

    /// Makes one PAGEMAP_SCAN. Returns how many regions it found, and up to where it looked.
    fn ask_scan(
        &self,
        part: (u64, u64),
        wanted: Wanted,
        found: &mut [Region],
    ) -> Result<(usize, u64), Errno> {
        self.asked(|fd| pagemap_scan::ask(fd, part, wanted, found))?
    }

    /// Calls `each` with the extents of `range` whose pages are of the requested kind, in order.
    pub fn extents(
        &self,
        range: PageRange,
        pages: Pages,
        mut each: impl FnMut(PageRange),
    ) -> Result<(), Errno> {
        if SCAN_WORKS.load(Ordering::Relaxed) != 2 {
            match self.scan(range, pages, &mut each) {
                Ok(()) => {
                    SCAN_WORKS.store(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(errno) if SCAN_WORKS.load(Ordering::Relaxed) == 1 => return Err(errno),
                Err(_) => SCAN_WORKS.store(2, Ordering::Relaxed),
            }
        }
        self.extents_by_reading(range, pages, each)
    }

    /// Lists the extents from each page's entry, as was needed before Linux 6.7.
    pub fn extents_by_reading(
        &self,
        range: PageRange,
        pages: Pages,
        mut each: impl FnMut(PageRange),
    ) -> Result<(), Errno> {
        // Neighbours become one extent, as in a scan. So a caller that populates, refills or frees
        // an extent does so once, not once a page.
        let mut run: Option<PageRange> = None;
        self.entries(range, |at, entry| {
            let there = entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0;
            let wanted = match pages {
                Pages::Missing => !there,
                Pages::Data => there,
                Pages::Written => entry & (ENTRY_SWAPPED | ENTRY_EXCLUSIVE) != 0,
                Pages::Resident => entry & ENTRY_PRESENT != 0,
                Pages::Huge => false,
            };
            if wanted {
                let start = run.map_or(at, |run| run.start);
                run = Some(PageRange::new(start, at + page_size()));
            } else if let Some(run) = run.take() {
                each(run);
            }
        })?;
        run.map(each);
        Ok(())
    }

    /// Returns the first address of the range at which a page is in memory or in swap, or the
    /// range's end. Takes 1 µs: the kernel skips parts without page tables in steps of 512 GiB.
    /// Without PAGEMAP_SCAN it returns the range's start.
    pub fn first_there(&self, range: PageRange) -> usize {
        let wanted =
            Wanted { anyof: PRESENT | SWAPPED, told: PRESENT, most_pages: 1, ..Wanted::default() };
        let mut found = [Region::default()];
        let mut at = range.start;
        while SCAN_WORKS.load(Ordering::Relaxed) != 2 && at < range.end {
            let part = (at as u64, range.end as u64);
            match again(|| self.ask_scan(part, wanted, &mut found)) {
                Ok((1.., _)) => return found[0].start as usize,
                Ok((0, next)) if next as usize > at => at = next as usize,
                Ok(_) | Err(_) => return at,
            }
        }
        at
    }

    fn scan(
        &self,
        range: PageRange,
        pages: Pages,
        each: &mut impl FnMut(PageRange),
    ) -> Result<(), Errno> {
        let (inverted, mask, anyof) = match pages {
            Pages::Missing => (PRESENT | SWAPPED, PRESENT | SWAPPED, 0),
            Pages::Data | Pages::Written => (PFN_ZERO, PFN_ZERO, PRESENT | SWAPPED),
            Pages::Resident => (PFN_ZERO, PFN_ZERO | PRESENT, 0),
            Pages::Huge => (0, HUGE, 0),
        };
        let wanted = Wanted { inverted, mask, anyof, told: PRESENT, most_pages: 0 };
        // The array lies on the stack of a thread that may have 16 KiB of it, here and below.
        let mut found = [Region::default(); 32];
        pagemap_scan::each_region(
            (range.start as u64, range.end as u64),
            &mut found,
            |part, found| self.ask_scan(part, wanted, found),
            |region| each(PageRange::new(region.start as usize, region.end as usize)),
        )
    }

    /// Calls `each` with every page's address and pagemap entry.
    fn entries(&self, range: PageRange, mut each: impl FnMut(usize, u64)) -> Result<(), Errno> {
        let page = page_size();
        let mut buffer = [0u8; 8 * 96];
        let mut at = range.start;
        while at < range.end {
            let want = ((range.end - at) / page * 8).min(buffer.len());
            let offset = (at / page * 8) as u64;
            let read = |fd: BorrowedFd<'_>| rustix::io::pread(fd, &mut buffer[..want], offset);
            let got = match self.asked(read)? {
                Ok(got) if got >= 8 => got / 8,
                Ok(_) => return Err(Errno::IO),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            for chunk in buffer[..got * 8].chunks_exact(8) {
                let mut entry = [0u8; 8];
                entry.copy_from_slice(chunk);
                each(at, u64::from_ne_bytes(entry));
                at += page;
            }
        }
        Ok(())
    }

    /// The first page of the range that is not in memory: missing, swapped out, or a guard.
    pub fn first_absent(&self, range: PageRange) -> Result<Option<PageRange>, Errno> {
        for part in range.pieces(2 << 20) {
            let mut absent = None;
            self.entries(part, |at, entry| {
                if entry & ENTRY_PRESENT == 0 && absent.is_none() {
                    absent = Some(PageRange::new(at, at + page_size()));
                }
            })?;
            if absent.is_some() {
                return Ok(absent);
            }
        }
        Ok(None)
    }

    /// Returns whether another process (a fork's child or parent) also maps some present page of
    /// the range. The shared zero page does not count: all processes map it, and the kernel never
    /// discards it.
    pub fn any_shared(&self, range: PageRange) -> Result<bool, Errno> {
        const BATCH: usize = 64;
        let mut shared = false;
        // What `mincore` returned last, and for which pages.
        let (mut in_batch, mut batch) = ([0u8; BATCH], PageRange { start: 0, end: 0 });
        let mut check = |part: PageRange| {
            self.entries(part, |at, entry| {
                let page = PageRange::new(at, at + page_size());
                if !shared && entry & ENTRY_PRESENT == 0 {
                    if at >= batch.end {
                        batch = PageRange::new(at, part.end.min(at + BATCH * page_size()));
                        in_batch = in_memory(batch);
                    }
                    let there = in_batch[(at - batch.start) / page_size()] & 1 == 1;
                    shared = there && self.is_moved_and_shared(page);
                } else if !shared {
                    shared = is_shared(page, entry);
                }
            })
        };
        let mut checked = Ok(());
        self.extents(range, Pages::Data, |part| {
            if checked.is_ok() {
                checked = check(part);
            }
        })?;
        checked.map(|()| shared)
    }

    /// Returns whether another process also maps a page that shows as being in swap. Such a page may
    /// be in memory: the kernel is moving it (compaction), or has not dropped its copy yet. `true`
    /// also where that cannot be found out.
    fn is_moved_and_shared(&self, page: PageRange) -> bool {
        // A move takes microseconds, and a read waits for its end. The next move may come at once.
        const LOOKS: usize = 8;
        for _ in 0..LOOKS {
            if in_memory::<1>(page) == [0] {
                return false;
            }
            match populate::for_reading(page) {
                Ok(()) => {}
                // A poisoned page, or a guard: without data.
                Err(Errno::FAULT | Errno::HWPOISON) => return false,
                Err(_) => return true,
            }
            let mut found = 0;
            if self.entries(page, |_, entry| found = entry).is_err() {
                return true;
            }
            if found & ENTRY_PRESENT != 0 {
                return is_shared(page, found);
            }
        }
        true
    }

    /// Returns how many bytes of the range are of the requested kind.
    pub fn count(&self, range: PageRange, pages: Pages) -> Result<usize, Errno> {
        let mut bytes = 0;
        self.extents(range, pages, |part| bytes += part.len())?;
        Ok(bytes)
    }
}
