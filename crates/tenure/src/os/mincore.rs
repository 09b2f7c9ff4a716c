//! Which pages are in memory, by `mincore`: also of a process that cannot read its page map.

#![allow(unsafe_code, reason = "calls mincore")]

use super::errno::again;
use super::{kernel, page_size};
use crate::range::PageRange;
use rustix::io::Errno;
use std::ffi::c_long;

/// Returns a byte for each page, whose lowest bit says that the page is in memory, or is the shared
/// zero page. A page that the kernel is moving counts, and one that has its copy in swap still. All
/// pages do where `mincore` is refused. The range has no more pages than the result.
pub(crate) fn in_memory<const PAGES: usize>(range: PageRange) -> [u8; PAGES] {
    let mut there = [1u8; PAGES];
    assert!(range.len() / page_size() <= PAGES);
    // SAFETY: `there` has a byte for each page.
    let _ = again(|| unsafe { ask(range.start, range.len(), &mut there) });
    there
}

/// mincore(2).
///
/// # Safety
/// `there` has a byte for each page.
pub(crate) unsafe fn ask(start: usize, len: usize, there: &mut [u8]) -> Result<(), Errno> {
    let answer = there.as_mut_ptr().addr() as c_long;
    let arguments = [start as c_long, len as c_long, answer, 0, 0, 0];
    // SAFETY: the kernel writes a byte for each page, and checks that the range is mapped.
    unsafe { kernel::call(libc::SYS_mincore, arguments) }.map(drop)
}
