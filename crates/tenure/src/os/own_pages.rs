//! Finds out whether pages are the process's own, before they are freed lazily.
//!
//! A page that was swapped out, and read back from a device that answers at once (zram), is clean
//! in the page table and in the kernel's record of the page. `MADV_FREE` looks for other owners
//! only of a page that is dirty or in the swap cache (Linux 6.18), so it marks such a page also
//! where a child has it, and reclaim then takes the child's data: 64 of 64 pages, measured. (A huge
//! page it leaves alone.)

use super::mincore::in_memory;
use super::pagemap::Pagemap;
use super::{brief, own_memory, page_size, populate, small_file};
use crate::range::PageRange;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns whether the process has the range's pages for itself, so that `MADV_FREE` takes no data
/// of a child's. The caller makes sure that a child that is made from here on knows that the pages
/// may go. `None`: that cannot be known here, see [`make_own`]. About 5 µs for each MiB, and 1 µs for
/// each page of zeros before Linux 6.7.
pub(crate) fn are_own(range: PageRange, pagemap: Option<&Pagemap>) -> Option<bool> {
    match pagemap.map(|pagemap| pagemap.any_shared(range)) {
        Some(Ok(shared)) => Some(!shared),
        // No page was read back from swap, so each is dirty in every process that has it. The
        // kernel marks it, and keeps it when it finds that.
        _ if !has_swapped() => Some(true),
        _ => None,
    }
}

/// Makes the range's pages that are in memory the process's own, where the page map does not tell
/// whether they are: populates for writing, which copies what a child has, too. Pages in swap stay
/// there, and holes stay holes. About 0.1 µs for each page.
///
/// `zeros`: the range may have many pages that read as the shared zero page, and these are to stay.
/// To find them takes 1 µs for each page.
///
/// # Errors
/// `ENOMEM`: no memory for a copy. `EINVAL`: the program has removed the write permission.
/// `EFAULT`: a page has gone meanwhile.
pub(crate) fn make_own(range: PageRange, zeros: bool) -> Result<(), Errno> {
    const BATCH: usize = 256;
    let make = |extent: PageRange| populate::populate(extent, true).map_err(|stop| stop.errno);
    for piece in range.pieces(BATCH * page_size()) {
        let there = in_memory::<BATCH>(piece);
        let mut extent: Option<PageRange> = None;
        for (page, there) in piece.pieces(page_size()).zip(there) {
            let stays = there & 1 == 0 || zeros && own_memory::reads_as_zeros(page);
            extent = match extent.take() {
                Some(before) if stays => make(before).map(|()| None)?,
                Some(before) => Some(PageRange::new(before.start, page.end)),
                None => (!stays).then_some(page),
            };
        }
        extent.map_or(Ok(()), make)?;
    }
    Ok(())
}

/// Returns whether the machine has read any page back from swap, or from zswap before it, since it
/// was started. `true` where that cannot be known.
fn has_swapped() -> bool {
    /// For the whole process: the machine's count only grows.
    static HAS: AtomicBool = AtomicBool::new(false);
    if !HAS.load(Ordering::Relaxed) {
        let (mut known, mut swapped) = (false, false);
        let count = |line: &[u8], name: &[u8]| line.strip_prefix(name).map(|count| count == b"0");
        let read = brief::open(c"/proc/vmstat").and_then(|file| {
            small_file::each_line(
                |buffer| file.read(buffer),
                |line| {
                    let is_zero = count(line, b"pswpin ");
                    known |= is_zero.is_some();
                    swapped |= is_zero == Some(false) || count(line, b"zswpin ") == Some(false);
                    true
                },
            )
        });
        HAS.store(read.is_err() || !known || swapped, Ordering::Relaxed);
    }
    HAS.load(Ordering::Relaxed)
}
