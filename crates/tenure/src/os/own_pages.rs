//! Makes pages the process's own, so that freeing them lazily harms no other process.
//!
//! A page that was swapped out, and read back from a device that answers at once (zram), is clean
//! in the page table and in the kernel's record of the page. `MADV_FREE` looks for other owners
//! only of a page that is dirty or in the swap cache (Linux 6.18), so it marks such a page also
//! where a child has it, and reclaim then takes the child's data: 64 of 64 pages, measured. A page
//! that was populated for writing is dirty, and a shared one is copied first.

#![allow(unsafe_code, reason = "calls mincore")]

use super::errno::{again, last_errno};
use super::pagemap::{Pagemap, Pages};
use super::{advise, page_size, populate};
use crate::range::PageRange;
use rustix::io::Errno;

/// Makes the range's pages that are in memory the process's own. A child that was made before has
/// its own pages afterwards, and in a child that is made later the kernel finds the pages dirty:
/// `MADV_FREE` in this process harms neither. Pages in swap stay there, and holes stay holes.
/// About 5 µs for each MiB.
///
/// `zeros`: the range may have pages of zeros. They matter only where the page map cannot be read.
///
/// # Errors
/// `ENOMEM`: no memory for a copy. `EINVAL`: the program has removed the write permission.
/// `EFAULT`: a page has gone meanwhile.
pub(crate) fn make_own(
    range: PageRange,
    zeros: bool,
    pagemap: Option<&Pagemap>,
) -> Result<(), Errno> {
    let mut made = Ok(());
    let mut make = |extent: PageRange| {
        if made.is_ok() {
            made = populate::populate(extent, true).map_err(|stop| stop.errno);
        }
    };
    match pagemap.map(|pagemap| pagemap.extents(range, Pages::Resident, &mut make)) {
        Some(Ok(())) => made,
        _ => {
            each_in_memory(range, |page| {
                if !zeros || !advise::reads_as_zeros(page) {
                    make(page);
                }
            });
            made
        }
    }
}

/// Calls `each` with the pages that `mincore` reports: those in memory, and the shared zero page.
/// With all pages where the call is refused.
fn each_in_memory(range: PageRange, mut each: impl FnMut(PageRange)) {
    const BATCH: usize = 256;
    for piece in range.pieces(BATCH * page_size()) {
        let mut there = [1u8; BATCH];
        let start = piece.start as *mut std::ffi::c_void;
        let _ = again(|| {
            // SAFETY: the kernel writes a byte for each page of the piece, which has at most
            // `BATCH`. It checks that the piece is mapped.
            match unsafe { libc::mincore(start, piece.len(), there.as_mut_ptr()) } {
                0 => Ok(()),
                _ => Err(last_errno()),
            }
        });
        let pages = piece.pieces(page_size()).zip(there);
        pages.filter(|(_, there)| there & 1 == 1).for_each(|(page, _)| each(page));
    }
}
