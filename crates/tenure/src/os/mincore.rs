//! Which pages are in memory, by `mincore`: also of a process that cannot read its page map.

#![allow(unsafe_code, reason = "calls mincore")]

use super::errno::again;
use super::{kernel, page_size};
use crate::range::PageRange;
use std::ffi::c_long;

/// Returns a byte for each page, whose lowest bit says that the page is in memory, or is the shared
/// zero page. A page that the kernel is moving counts, and one that has its copy in swap still. All
/// pages do where `mincore` is refused. The range has no more pages than the result.
pub(crate) fn in_memory<const PAGES: usize>(range: PageRange) -> [u8; PAGES] {
    let mut there = [1u8; PAGES];
    assert!(range.len() / page_size() <= PAGES);
    let [start, len] = [range.start, range.len()].map(|argument| argument as c_long);
    let answer = there.as_mut_ptr() as c_long;
    // SAFETY: the kernel writes a byte for each page of the range, and `there` has as many. It
    // checks that the range is mapped.
    let _ = again(|| unsafe { kernel::call(libc::SYS_mincore, [start, len, answer, 0, 0, 0]) });
    there
}
