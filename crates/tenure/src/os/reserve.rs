//! Makes and unmaps mappings.

use super::apart::{self, Congruent};
use crate::range::PageRange;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;

/// Maps `len` bytes of private anonymous memory for the program, at an address that the kernel
/// chooses. The start is a multiple of `align`.
///
/// `MAP_NORESERVE`: volatile memory must not count against the commit limit as if the kernel could
/// not take it back. `ENOMEM`: no address space, too many mappings, or over `RLIMIT_AS`.
pub(crate) fn map_anonymous(len: usize, align: usize) -> Result<PageRange, Errno> {
    debug_assert!(len % super::page_size() == 0 && align.is_power_of_two());
    let at = apart::map_anywhere(len, Congruent::aligned(align), ACCESS, NORESERVE)?;
    Ok(PageRange::new(at, at + len))
}

/// [`map_anonymous`] for tenure's own use, [apart] from the program's mappings.
pub(crate) fn map_own(len: usize, align: usize) -> Result<PageRange, Errno> {
    debug_assert!(len % super::page_size() == 0 && align.is_power_of_two());
    let at = apart::map(len, Congruent::aligned(align), ACCESS, NORESERVE)?;
    Ok(PageRange::new(at, at + len))
}

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const NORESERVE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// Maps part of a file.
pub(crate) fn map_file(
    fd: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    shared: bool,
    writable: bool,
) -> Result<PageRange, Errno> {
    let mut protection = ProtFlags::READ;
    if writable {
        protection |= ProtFlags::WRITE;
    }
    let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
    let base = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) }? as usize;
    Ok(PageRange::new(base, base + len))
}

/// Unmaps a range.
///
/// # Safety
/// Nothing refers to the range.
pub(crate) unsafe fn unmap(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the caller promises that nothing refers to the range.
    unsafe { munmap(range.start as *mut c_void, range.len()) }
}

/// A few pages for a trial, unmapped on drop.
pub(crate) struct Scratch(PageRange);

impl Scratch {
    /// Base pages, or one huge page if the kernel gives it.
    pub fn new(len: usize, huge: bool) -> Result<Scratch, Errno> {
        let align = if huge { super::HUGE_PAGE } else { super::page_size() };
        let scratch = Scratch(map_own(len, align)?);
        // Advice only: the trial itself shows whether the kernel took it.
        let _ = match huge {
            true => super::advise::want_huge_pages(scratch.0),
            false => super::advise::want_base_pages(scratch.0),
        };
        Ok(scratch)
    }

    pub fn range(&self) -> PageRange {
        self.0
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped for reading and writing while `self` lives, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.start as *mut u8, self.0.len()) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: only this value has the pages, and no borrow outlives it.
        let _ = unsafe { unmap(self.0) };
    }
}
