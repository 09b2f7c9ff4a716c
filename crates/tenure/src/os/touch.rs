//! Touching pages through the kernel, which answers `EFAULT` where a load or store of ours would
//! raise a signal: no handler is needed, and none is disturbed.

use super::errno::{again, last_errno};
use super::page_size;
use crate::range::PageRange;
use rustix::io::Errno;
use std::ffi::c_void;
use std::sync::atomic::AtomicU32;

/// Why a range could not be populated. The pages before the one that failed may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub errno: Errno,
    /// The page, where it is known: `madvise` does not say.
    pub page: Option<usize>,
}

/// Reads a byte of each page (`process_vm_readv` on ourselves). About 100 ns a page that is there.
pub(crate) fn read_each_page(range: PageRange) -> Result<(), Stop> {
    // Small: a signal's handler may come here, on a stack of a few KiB.
    const BATCH: usize = 64;
    let page = page_size();
    let mut sink = [0u8; BATCH];
    let mut remote = [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 } }; BATCH];
    let mut at = range.start;
    while at < range.end {
        let count = ((range.end - at) / page).min(BATCH);
        for (i, part) in remote[..count].iter_mut().enumerate() {
            part.iov_base = (at + i * page) as *mut c_void;
        }
        let local = libc::iovec { iov_base: sink.as_mut_ptr().cast(), iov_len: count };
        // SAFETY: the local vector names `count` bytes of `sink`; the remote one is only read, by
        // the kernel, which reports a bad address instead of faulting.
        let done = unsafe {
            libc::process_vm_readv(
                libc::getpid(),
                &local,
                1,
                remote.as_ptr(),
                count as libc::c_ulong,
                0,
            )
        };
        if done < 0 {
            return Err(Stop { errno: last_errno(), page: Some(at) });
        }
        at += done as usize * page;
        // Short: it stopped at a page that cannot be read. The next call says why.
    }
    Ok(())
}

/// Reads a byte of each page the way a program would, through its own mapping (`process_vm_writev` of
/// those bytes to ourselves), about 20 ns a page that is there; what cannot be read is passed over.
///
/// A page that a disk has filled is not yet known to the processor that a virtual machine runs on: its
/// host maps it at its first use. 5 GiB so: 1 to 4 s, spent here instead of where it is waited for.
pub(crate) fn use_each_page(range: PageRange) {
    // Small: it runs on the stack of the caller that maps.
    const BATCH: usize = 64;
    let page = page_size();
    let mut sink = [0u8; BATCH];
    let mut local = [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 } }; BATCH];
    for piece in range.pieces(BATCH * page) {
        let count = piece.len() / page;
        for (i, part) in local[..count].iter_mut().enumerate() {
            part.iov_base = (piece.start + i * page) as *mut c_void;
        }
        let remote = libc::iovec { iov_base: sink.as_mut_ptr().cast(), iov_len: count };
        // SAFETY: only `sink` is written, of which the remote vector names `count` bytes. The local
        // addresses are read by the kernel, which stops at one that cannot be.
        unsafe {
            libc::process_vm_writev(
                libc::getpid(),
                local.as_ptr(),
                count as libc::c_ulong,
                &remote,
                1,
                0,
            )
        };
    }
}

/// Ors 0 into the first word of each page (`FUTEX_WAKE_OP`), which is atomic and leaves it as it is
/// even if other threads write it. About 0.4 µs a page that is there.
pub(crate) fn write_each_page(range: PageRange) -> Result<(), Stop> {
    for page in range.pieces(page_size()) {
        or_zero(page.start).map_err(|errno| Stop { errno, page: Some(page.start) })?;
    }
    Ok(())
}

fn or_zero(address: usize) -> Result<(), Errno> {
    // The kernel sets `*second |= 0` with a fault-handling atomic. Nobody waits on a local variable;
    // but where the comparison holds, "wake at most 0" still wakes one who waits on the second. None
    // of the kernel's comparisons is never true, so it is one that an old value hardly meets.
    const UNLIKELY: u32 = 0x5a5;
    const OR_ZERO: u32 =
        (libc::FUTEX_OP_OR as u32) << 28 | (libc::FUTEX_OP_CMP_EQ as u32) << 24 | UNLIKELY;
    let nobody = AtomicU32::new(0);
    again(|| {
        // SAFETY: the first address is a live, aligned word of ours, only used as a key. The second
        // is checked by the kernel, which changes no bit of it.
        let done = unsafe {
            libc::syscall(
                libc::SYS_futex,
                nobody.as_ptr(),
                libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
                0,
                0usize,
                address as *mut u32,
                OR_ZERO,
            )
        };
        if done >= 0 {
            Ok(())
        } else {
            Err(last_errno())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::pagemap::{Pagemap, Pages};
    use crate::os::reserve::Scratch;

    #[test]
    fn both_make_resident_and_change_nothing() {
        let mut scratch = Scratch::new(600 * page_size(), false).unwrap();
        let range = scratch.range();
        scratch.bytes()[5 * page_size()] = 77;
        let pagemap = Pagemap::open().unwrap();
        read_each_page(range).unwrap();
        assert_eq!(pagemap.count(range, Pages::Missing), Ok(0));
        write_each_page(range).unwrap();
        assert_eq!(pagemap.count(range, Pages::Data), Ok(range.len()));
        for (i, byte) in scratch.bytes().iter().enumerate() {
            assert_eq!(*byte, if i == 5 * page_size() { 77 } else { 0 });
        }
    }

    #[test]
    fn a_page_that_cannot_be_touched_is_named() {
        let scratch = Scratch::new(600 * page_size(), false).unwrap();
        let at = scratch.range().start + 520 * page_size();
        // SAFETY: a page of the scratch's own, to which there are no references.
        unsafe {
            let none = rustix::mm::MprotectFlags::empty();
            rustix::mm::mprotect(at as *mut c_void, page_size(), none).unwrap();
        }
        let stop = Stop { errno: Errno::FAULT, page: Some(at) };
        assert_eq!(read_each_page(scratch.range()), Err(stop));
        assert_eq!(write_each_page(scratch.range()), Err(stop));
        let before = PageRange::new(scratch.range().start, at);
        let pagemap = Pagemap::open().unwrap();
        assert_eq!(pagemap.count(before, Pages::Data), Ok(before.len()));
    }
}
