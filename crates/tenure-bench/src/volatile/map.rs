//! Memory to measure on, mapped by hand so that both sides of a comparison have equal mappings.

#![allow(unsafe_code, reason = "maps memory, and gives out parts of it")]

use crate::backing::{reserve, unsupported, HUGE_PAGE};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MprotectFlags};
use rustix::param::page_size;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use tenure::volatile;
use tenure::Outcome;
use tenure_measure::pages::smaps_over;

/// The requested page size. Never left to the system's policy, so that a row has one meaning on
/// every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// 4 KiB pages (the machine's base pages), by `MADV_NOHUGEPAGE`.
    Base,
    /// 2 MiB pages, by alignment and `MADV_HUGEPAGE` before the first touch.
    Huge,
}

impl Pages {
    pub fn name(self) -> String {
        match self {
            Pages::Base => format!("{} KiB pages", page_size() >> 10),
            Pages::Huge => "huge pages".into(),
        }
    }

    /// Returns the number of pages in `len` bytes.
    pub fn count(self, len: usize) -> usize {
        match self {
            Pages::Base => len / page_size(),
            Pages::Huge => len / HUGE_PAGE,
        }
    }
}

/// A private anonymous mapping, aligned to huge pages, between guard pages so that no two merge.
pub(super) struct Map {
    reserved: *mut c_void,
    reserved_len: usize,
    addr: *mut u8,
    len: usize,
    pages: Pages,
    known_to_tenure: AtomicBool,
}

// SAFETY: the mapping belongs to the Map alone; nothing in it is tied to a thread.
unsafe impl Send for Map {}
// SAFETY: through a shared Map only `touch` and `fill` write memory, by atomic stores or on behalf
// of one thread for each part (the callers' threads work on separate maps); the calls of tenure and
// of the kernel are safe from several threads.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes, untouched.
    pub fn new(len: usize, pages: Pages) -> io::Result<Map> {
        let len = len.next_multiple_of(page_size());
        let (reserved, reserved_len, addr) = reserve(len)?;
        let map = Map {
            reserved,
            reserved_len,
            addr,
            len,
            pages,
            known_to_tenure: AtomicBool::new(false),
        };
        // SAFETY: [addr, addr + len) lies inside the mapping just made: at most one huge page was
        // skipped before it, and one was added behind.
        unsafe {
            let addr = map.addr.cast();
            mm::mprotect(addr, len, MprotectFlags::READ | MprotectFlags::WRITE)?;
            let advice = match pages {
                Pages::Base => Advice::LinuxNoHugepage,
                Pages::Huge => Advice::LinuxHugepage,
            };
            match mm::madvise(addr, len, advice) {
                // A kernel built without huge pages has base pages anyway.
                Err(Errno::INVAL) if pages == Pages::Base => {}
                Err(Errno::INVAL) => {
                    return Err(unsupported("this kernel has no transparent huge pages"))
                }
                other => other?,
            }
        }
        Ok(map)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// A pointer to the byte at `part.start`.
    fn at(&self, part: &Range<usize>) -> *mut u8 {
        assert!(part.start < part.end && part.end <= self.len, "{part:?} of {}", self.len);
        // SAFETY: the offset was checked to be inside the mapping.
        unsafe { self.addr.add(part.start) }
    }

    /// The C library's memset, as in the seed program.
    pub fn fill(&self, part: Range<usize>, byte: u8) {
        let addr = self.at(&part);
        // SAFETY: the part is inside the mapping, and writable while the Map lives.
        unsafe { libc::memset(addr.cast(), byte.into(), part.len()) };
    }

    /// Writes a number that identifies the page into each base page.
    pub fn stamp(&self) {
        for page in 0..self.len / page_size() {
            // SAFETY: the first word of a page of the mapping: aligned, writable, and written only
            // by this thread.
            unsafe { self.addr.add(page * page_size()).cast::<u64>().write(page as u64 + 1) };
        }
    }

    /// Whether every page still has its [`stamp`](Map::stamp).
    pub fn check_stamps(&self) -> io::Result<()> {
        for page in 0..self.len / page_size() {
            // SAFETY: an aligned word inside the mapping. The mapping is not volatile when this is
            // called, so the read cannot raise a signal. The read is volatile because the kernel
            // may have changed the word.
            let found = unsafe { self.addr.add(page * page_size()).cast::<u64>().read_volatile() };
            if found != page as u64 + 1 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("page {page} was reported as intact, but holds {found}"),
                ));
            }
        }
        Ok(())
    }

    /// Returns an error unless the memory is in pages of the requested size.
    pub fn check_page_size(&self) -> io::Result<()> {
        let huge: u64 = self.smaps(|smaps| smaps.anon_huge);
        match self.pages {
            Pages::Huge if huge < self.len as u64 => Err(unsupported(
                "the kernel gave no huge pages (switched off, or memory is too fragmented)",
            )),
            Pages::Base if huge > 0 => Err(unsupported("the kernel made huge pages by itself")),
            _ => Ok(()),
        }
    }

    /// Bytes that `MADV_FREE` has given up.
    pub fn lazily_freed(&self) -> u64 {
        self.smaps(|smaps| smaps.lazy_free)
    }

    fn smaps(&self, field: impl Fn(&tenure_measure::pages::Smaps) -> u64) -> u64 {
        smaps_over(self.addr as usize, self.len).iter().map(field).sum()
    }

    /// The kernel's own calls, by hand.
    pub fn advise(&self, part: Range<usize>, advice: Advice) -> io::Result<()> {
        let addr = self.at(&part);
        // SAFETY: only this Map's memory changes, plain bytes to which no code holds a reference.
        match unsafe { mm::madvise(addr.cast(), part.len(), advice) } {
            Err(Errno::INVAL) => Err(unsupported(&format!("the kernel refuses {advice:?}"))),
            other => Ok(other?),
        }
    }

    /// tenure's mark.
    pub fn mark(&self, part: Range<usize>) -> io::Result<()> {
        let addr = self.at(&part);
        self.known_to_tenure.store(true, Ordering::Relaxed);
        // SAFETY: the mapping stays as it is until `drop`, which has tenure forget it first; it is
        // written only after `unmark`.
        Ok(unsafe { volatile::mark(addr, part.len()) }?)
    }

    /// tenure's unmark.
    pub fn unmark(&self, part: Range<usize>) -> io::Result<Outcome> {
        // SAFETY: `at` checks that the part is inside the mapping, which stays as it is until
        // `drop`.
        Ok(unsafe { volatile::unmark(self.at(&part), part.len()) }?)
    }

    /// tenure's offer.
    pub fn offer_now(&self, part: Range<usize>) -> io::Result<()> {
        // SAFETY: `at` checks that the part is inside the mapping, which stays as it is until
        // `drop`. The pages may go, because they are marked.
        Ok(unsafe { volatile::offer_now(self.at(&part), part.len()) }?)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if self.known_to_tenure.load(Ordering::Relaxed) {
            // SAFETY: the range belongs to the Map, and its contents are not needed any more. If
            // the call fails, the memory must stay mapped, and is leaked.
            if unsafe { volatile::forget(self.addr, self.len) }.is_err() {
                return;
            }
        }
        // SAFETY: the reservation belongs to the Map, and nothing refers to it after this.
        let _ = unsafe { mm::munmap(self.reserved, self.reserved_len) };
    }
}
