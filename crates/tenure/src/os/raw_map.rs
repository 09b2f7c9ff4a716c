//! `mmap` with a caller's own flags, and a move of a mapping over another.

use super::errno::last_errno;
use crate::range::PageRange;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};

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
    // SAFETY: the caller promises that nothing refers to memory that a `MAP_FIXED` would replace.
    let at = unsafe { libc::mmap(addr as *mut c_void, len, protection, flags, fd, offset) };
    if at == libc::MAP_FAILED {
        return Err(last_errno());
    }
    Ok(at as usize)
}

/// Moves a mapping to `to`, in place of the mappings there, with its locks and its charge. After a
/// failure the old mappings at `to` are gone only if the kernel had no memory for page tables in
/// the middle of the move.
///
/// # Safety
/// Nothing refers to either range.
pub(crate) unsafe fn move_over(from: PageRange, to: usize) -> Result<(), Errno> {
    // SAFETY: the caller promises that nothing refers to either range.
    let at = unsafe {
        libc::mremap(
            from.start as *mut c_void,
            from.len(),
            from.len(),
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            to as *mut c_void,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(last_errno());
    }
    Ok(())
}

/// Sets a range's protection.
///
/// # Safety
/// No code relies on an access that is taken away.
pub(crate) unsafe fn protect(range: PageRange, protection: c_int) -> Result<(), Errno> {
    // SAFETY: the caller promises that no code relies on an access that is taken away.
    match unsafe { libc::mprotect(range.start as *mut c_void, range.len(), protection) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}
