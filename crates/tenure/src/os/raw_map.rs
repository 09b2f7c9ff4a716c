//! `mmap` with a caller's own flags, and a move of a mapping over another.

use super::errno::{last_errno, Kept};
use super::kernel::{self, shown_call};
use crate::range::PageRange;
use rustix::io::Errno;
use std::ffi::{c_int, c_long};

/// Calls `mmap` with these arguments.
///
/// # Safety
/// With `MAP_FIXED`, nothing refers to the memory that is mapped there. For a file, see `mmap(2)`.
pub(crate) unsafe fn map(
    addr: usize,
    len: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Result<usize, Errno> {
    if kernel::is_launchers() {
        let (len, protection, flags) = (len as c_long, protection.into(), flags.into());
        let arguments = [addr as c_long, len, protection, flags, fd.into(), offset];
        // SAFETY: the caller promises that nothing refers to memory that a `MAP_FIXED` would
        // replace.
        return unsafe { kernel::call(libc::SYS_mmap, arguments) }.map(|at| at as usize);
    }
    let _kept = Kept::now();
    // By its name: only the launcher's `mmap` lets the kernel join the mapping with its neighbours.
    // SAFETY: the caller promises that nothing refers to memory that a `MAP_FIXED` would replace.
    match unsafe { libc::mmap(addr as *mut _, len, protection, flags, fd, offset) } {
        libc::MAP_FAILED => Err(last_errno()),
        at => Ok(at.addr()),
    }
}

/// Moves a mapping to `to`, in place of the mappings there, with its locks and its charge. After a
/// failure the old mappings at `to` are gone only if the kernel had no memory for page tables in
/// the middle of the move.
///
/// # Safety
/// Nothing refers to either range.
pub(crate) unsafe fn move_over(from: PageRange, to: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let len = from.len() as c_long;
    let arguments = [from.start as c_long, len, len, flags.into(), to as c_long, 0];
    // SAFETY: the caller promises that nothing refers to either range.
    unsafe { shown_call(libc::SYS_mremap, arguments) }.map(drop)
}

/// Sets a range's protection.
///
/// # Safety
/// No code relies on an access that is taken away.
pub(crate) unsafe fn protect(range: PageRange, protection: c_int) -> Result<(), Errno> {
    let arguments = [range.start as c_long, range.len() as c_long, protection.into(), 0, 0, 0];
    // SAFETY: the caller promises that no code relies on an access that is taken away.
    unsafe { shown_call(libc::SYS_mprotect, arguments) }.map(drop)
}
