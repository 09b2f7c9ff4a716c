//! Touches pages through the kernel, which returns `EFAULT` where a load or store of this process
//! would raise a signal. So no signal handler is needed, and none is disturbed.

use super::errno::{again, last_errno};
use super::page_size;
use crate::range::PageRange;
use rustix::io::Errno;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;

/// The reason why a range could not be populated. The pages before the failed one may be populated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub errno: Errno,
    /// The failed page, if it is known: `madvise` does not return it.
    pub page: Option<usize>,
}

/// Reads a byte of each page (`process_vm_readv` on this process). About 100 ns for a page that is
/// there.
pub(crate) fn read_each_page(range: PageRange) -> Result<(), Stop> {
    // Small: a signal handler may call this, on a stack of a few KiB.
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
        // SAFETY: the local vector names `count` bytes of `sink`. Only the kernel reads the remote
        // vector, and it reports a bad address instead of faulting.
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
        // A short read: it stopped at a page that cannot be read. The next call returns the reason.
    }
    Ok(())
}

/// Copies bytes of this process (`process_vm_readv`). Returns how many it copied: fewer than
/// `into` has if a page cannot be read. About 0.5 µs, and 0.1 µs for each KiB.
pub(crate) fn copy_from(address: usize, into: &mut [MaybeUninit<u8>]) -> Result<usize, Errno> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: into.len() };
    // SAFETY: the local vector names `into`. Only the kernel reads the remote vector, and it
    // reports a bad address instead of faulting.
    let done = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(done).map_err(|_| last_errno())
}

/// Reads a byte of each page through the process's own mapping, as a program would
/// (`process_vm_writev` of those bytes to this process). About 20 ns for a page that is there.
/// Pages that cannot be read are skipped.
///
/// A page that a disk has filled is not yet mapped for the processor of a virtual machine: its host
/// maps it at its first use. For 5 GiB this takes 1 to 4 s, spent here instead of at the program's
/// first touch.
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
        // SAFETY: the call only writes `sink`, of which the remote vector names `count` bytes. The
        // kernel reads the local addresses, and stops at one that cannot be read.
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

/// Ors 0 into the first word of each page (`FUTEX_WAKE_OP`). This is atomic and leaves the word as
/// it is, even if other threads write it. About 0.4 µs for a page that is there.
pub(crate) fn write_each_page(range: PageRange) -> Result<(), Stop> {
    for page in range.pieces(page_size()) {
        or_zero(page.start).map_err(|errno| Stop { errno, page: Some(page.start) })?;
    }
    Ok(())
}

fn or_zero(address: usize) -> Result<(), Errno> {
    // The kernel sets `*second |= 0` with a fault-handling atomic. No thread waits on a local
    // variable. But where the comparison holds, "wake at most 0" still wakes one thread that waits
    // on the second word. None of the kernel's comparisons is always false, so this uses one that
    // an old value hardly meets.
    const UNLIKELY: u32 = 0x5a5;
    const OR_ZERO: u32 =
        (libc::FUTEX_OP_OR as u32) << 28 | (libc::FUTEX_OP_CMP_EQ as u32) << 24 | UNLIKELY;
    let nobody = AtomicU32::new(0);
    again(|| {
        // SAFETY: the first address is a live, aligned local word, only used as a key. The kernel
        // checks the second address, and changes no bit of the word there.
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
