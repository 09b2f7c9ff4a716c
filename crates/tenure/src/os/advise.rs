//! `madvise` and its relatives, by effect.

use crate::range::PageRange;
use rustix::io::Errno;
use rustix::mm::{madvise, Advice};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering};

fn advise(range: PageRange, advice: Advice) -> Result<(), Errno> {
    loop {
        // SAFETY: none of the advices used in this module can break memory safety of memory that
        // the callers hold: those that may drop contents (FREE, DONTNEED, PAGEOUT) are given only
        // ranges that are marked volatile, purged, or owned and unreferenced; the kernel checks
        // that the range is mapped.
        match unsafe { madvise(range.start as *mut c_void, range.len(), advice) } {
            Err(Errno::INTR | Errno::AGAIN) => continue,
            other => return other,
        }
    }
}

/// Tells the kernel that it may discard the range's pages until they are next written.
///
/// `EINVAL`: locked, shared, file-backed or device memory. A page that is swapped out goes at once.
pub(crate) fn free(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxFree)
}

/// Has the kernel reclaim the range now: discards clean lazily freed pages, swaps the others out
/// where there is swap.
pub(crate) fn page_out(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxPageOut)
}

/// Drops the range's pages. The callers pass only memory whose contents nobody may want.
pub(crate) fn drop_pages(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxDontNeed)
}

/// Asks for huge pages. Must come before the first touch (the other order gives none).
pub(crate) fn want_huge_pages(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxHugepage)
}

/// Asks for base pages only.
pub(crate) fn want_base_pages(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxNoHugepage)
}

/// Makes the range read as zeros in a child after fork.
pub(crate) fn wipe_on_fork(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxWipeOnFork)
}

/// Makes every page of the range resident for writing, its bytes unchanged and dirty: what was
/// lazily freed is kept from here on.
///
/// `EFAULT`: a page is missing that userfaultfd watches. `ENOMEM`: no memory, or not mapped.
/// `EINVAL`: not writable or a special mapping, or a kernel before 5.14.
/// `EHWPOISON`: a page is poisoned.
pub(crate) fn populate_write(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxPopulateWrite)
}

/// Makes every page of the range readable: a page never touched becomes the shared zero page, which
/// costs no memory. Where `MADV_POPULATE_READ` is missing (before 5.14) or refused the kernel is
/// made to read a byte of each page instead (`process_vm_readv` on ourselves: like populate it
/// answers `EFAULT` where a load would raise a signal).
pub(crate) fn populate_read(range: PageRange) -> Result<(), Errno> {
    // 0 unknown, 1 works, 2 refused.
    static WORKS: AtomicU8 = AtomicU8::new(0);
    let known = WORKS.load(Ordering::Relaxed);
    if known != 2 {
        match populate_read_plain(range) {
            Ok(()) => {
                WORKS.store(1, Ordering::Relaxed);
                return Ok(());
            }
            // Before 5.14 EINVAL means "what is that?"; later, that this mapping cannot be populated.
            Err(Errno::INVAL | Errno::PERM | Errno::NOSYS) if known == 0 => {}
            Err(errno) => return Err(errno),
        }
    }
    read_each_page(range)?;
    WORKS.store(2, Ordering::Relaxed);
    Ok(())
}

/// `MADV_POPULATE_READ` and nothing in its stead.
pub(crate) fn populate_read_plain(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxPopulateRead)
}

fn read_each_page(range: PageRange) -> Result<(), Errno> {
    const BATCH: usize = 512;
    let page = super::page_size();
    let mut sink = [0u8; BATCH];
    let mut at = range.start;
    while at < range.end {
        let count = ((range.end - at) / page).min(BATCH);
        let remote: Vec<libc::iovec> = (0..count)
            .map(|i| libc::iovec { iov_base: (at + i * page) as *mut c_void, iov_len: 1 })
            .collect();
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
            return Err(last_errno());
        }
        if (done as usize) < count {
            return Err(Errno::FAULT);
        }
        at += count * page;
    }
    Ok(())
}

/// Whether a page is all zeros, as the kernel reads it: a page that cannot be read is `false`, where
/// a load would raise a signal.
pub(crate) fn reads_as_zeros(page: PageRange) -> bool {
    let mut bytes = [0u8; 4096];
    page.pieces(bytes.len()).all(|piece| {
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: piece.len() };
        let remote = libc::iovec { iov_base: piece.start as *mut c_void, iov_len: piece.len() };
        // SAFETY: the local vector names `bytes`, of which a piece is never longer; the remote one
        // is only read, by the kernel, which reports a bad address instead of faulting.
        let done = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        done == piece.len() as isize && bytes.iter().all(|byte| *byte == 0)
    })
}

/// `errno` of the libc call that just failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
