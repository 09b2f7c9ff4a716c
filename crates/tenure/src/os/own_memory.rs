//! The process's memory as a file (`/proc/self/mem`), which can be read despite the pages'
//! protection.

use super::brief::{self, Brief};
use super::{advise, page_size};
use crate::range::PageRange;

/// Reads pages without a signal.
pub(crate) struct OwnMemory(Option<Brief>);

impl OwnMemory {
    /// Opens the file. If it cannot be opened, protected pages cannot be read.
    pub fn open() -> OwnMemory {
        OwnMemory(brief::open("/proc/thread-self/mem").ok())
    }

    /// Returns whether a page is all zeros. Returns `false` for a page that cannot be read: a kernel may keep a process from its
    /// own protected pages (`proc_mem.force_override`, 6.12+; Debian's 7.3).
    pub fn reads_as_zeros(&self, page: PageRange) -> bool {
        let mut bytes = [0u8; 4096];
        debug_assert!(page.len() == page_size());
        let through_file = self.0.as_ref().is_some_and(|file| {
            page.pieces(bytes.len()).all(|piece| {
                let read = file.pread(&mut bytes, piece.start as u64);
                read == Ok(piece.len()) && bytes.iter().all(|byte| *byte == 0)
            })
        });
        through_file || advise::reads_as_zeros(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::reserve::Scratch;

    #[test]
    fn protected_pages_are_read() {
        let page = page_size();
        let mut scratch = Scratch::new(2 * page, false).unwrap();
        let range = scratch.range();
        scratch.bytes()[page] = 1;
        // SAFETY: memory of this test's own, which it does not touch until the access is back.
        unsafe { libc::mprotect(range.start as *mut _, 2 * page, libc::PROT_NONE) };
        let memory = OwnMemory::open();
        let read = memory.0.as_ref().map(|file| file.pread(&mut [0; 8], range.start as u64));
        if !matches!(read, Some(Ok(_))) {
            tenure_testkit::skip!("protected pages cannot be read here: {read:?}");
        }
        assert!(memory.reads_as_zeros(PageRange::new(range.start, range.start + page)));
        assert!(!memory.reads_as_zeros(PageRange::new(range.start + page, range.end)));
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: memory of this test's own, which gets its access back.
        unsafe { libc::mprotect(range.start as *mut _, 2 * page, both) };
    }
}
