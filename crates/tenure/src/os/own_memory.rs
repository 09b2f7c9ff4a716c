//! The process's own memory, read by the kernel: a page that cannot be read is an error, and no
//! signal.

use super::brief::{self, Brief};
use super::errno::last_errno;
use super::page_size;
use crate::range::PageRange;
use rustix::io::Errno;
use std::ffi::c_void;

/// Returns whether a page is all zeros. `false` for a page that cannot be read, where a load would
/// raise a signal.
pub(crate) fn reads_as_zeros(page: PageRange) -> bool {
    match by_call(page) {
        Ok(are_zeros) => are_zeros,
        Err(Errno::FAULT) => false,
        // A filter refuses the call, as browsers' sandboxes do.
        Err(_) => OwnMemory::open().has_zeros(page),
    }
}

/// `EFAULT`: the page cannot be read.
fn by_call(page: PageRange) -> Result<bool, Errno> {
    let mut bytes = [0u8; PIECE];
    for piece in page.pieces(PIECE) {
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: piece.len() };
        let remote = libc::iovec { iov_base: piece.start as *mut c_void, iov_len: piece.len() };
        // SAFETY: the local vector names `bytes`, and no piece is longer than it. Only the kernel
        // reads the remote vector, and it reports a bad address instead of faulting.
        let done = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        match done {
            -1 => return Err(last_errno()),
            done if done as usize != piece.len() => return Err(Errno::FAULT),
            _ if bytes[..piece.len()].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
    Ok(true)
}

const PIECE: usize = 4096;

/// The process's memory as a file, which can be read despite the pages' protection.
pub(crate) struct OwnMemory(Option<Brief>);

impl OwnMemory {
    /// Opens the file. If it cannot be opened, protected pages cannot be read.
    pub fn open() -> OwnMemory {
        OwnMemory(brief::open("/proc/thread-self/mem").ok())
    }

    /// Returns whether a page is all zeros. `false` for a page that cannot be read: a kernel may
    /// keep a process from its own protected pages (`proc_mem.force_override`, 6.12+; Debian's 7.3).
    pub fn reads_as_zeros(&self, page: PageRange) -> bool {
        debug_assert!(page.len() == page_size());
        self.has_zeros(page) || by_call(page) == Ok(true)
    }

    fn has_zeros(&self, page: PageRange) -> bool {
        let mut bytes = [0u8; PIECE];
        self.0.as_ref().is_some_and(|file| {
            page.pieces(PIECE).all(|piece| {
                let read = file.pread(&mut bytes, piece.start as u64);
                read == Ok(piece.len()) && bytes.iter().all(|byte| *byte == 0)
            })
        })
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
