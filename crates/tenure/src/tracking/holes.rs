//! Page tables for what was never touched of offered ranges. The kernel makes them when the holes are made readable,
//! counts them as the program's memory (2 MiB for each GiB), and keeps them until the range is unmapped.
//!
//! Seen without a bound: 64 GiB of which one page was touched ended its program in a group of 64 MiB.

use super::list::{listed, List};
use super::side::without;
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::{advise, maps, memory_limit, page_size};
use crate::range::PageRange;
use crate::runtime::budget;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of such tables. What was unmapped since counts as well, until the bound is met.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A page of 4 KiB takes 8 bytes of a table.
fn tables(bytes: usize) -> u64 {
    bytes as u64 / 512
}

/// Holes of so many bytes, one after the other, were made readable.
pub(super) fn made_readable(bytes: usize) {
    MADE.fetch_add(tables(bytes), Ordering::Relaxed);
}

/// Whether the tables of a range's holes fit: all of them take a sixteenth of the memory limit at most. Takes no lock.
pub(super) fn fit(range: PageRange, pagemap: Option<&Pagemap>) -> bool {
    let most = budget::limit_at_last_look() / 16;
    let made = MADE.load(Ordering::Relaxed);
    if made.saturating_add(tables(range.len())) <= most {
        return true;
    }
    let holes = pagemap.and_then(|pagemap| pagemap.count(range, Pages::Missing).ok());
    let needed = tables(holes.unwrap_or(range.len()));
    let there = memory_limit::page_tables().unwrap_or(u64::MAX);
    let made = MADE.fetch_min(there, Ordering::Relaxed).min(there);
    needed == 0 || made.saturating_add(needed) <= most
}

/// Has forks copy the page tables of a range whose holes were made readable. The kernel leaves those of a mapping
/// out that was never written, for touches in the child would make the pages; but the child watches the range, and
/// a page of zeros that is missing there counts as purged. So one page of each mapping is made writable.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn have_forks_copy(range: PageRange, pagemap: Option<&Pagemap>) -> Result<(), Errno> {
    let (mut parts, mut noted) = (List::new(), Ok(()));
    maps::each_mapping(range, |mapping| {
        let (start, end) = (mapping.start.max(range.start), mapping.end.min(range.end));
        if noted.is_ok() {
            noted = parts.push(PageRange { start, end });
        }
    })?;
    noted?;
    for part in parts.iter() {
        // What is missing still is lost, and to be made again by the program.
        let missing = pagemap.map_or(Ok(List::new()), |map| listed(map, *part, Pages::Missing))?;
        if let Some(there) = without(&[*part], &missing)?.first() {
            let page = PageRange::new(there.start, there.start + page_size());
            match advise::populate_write(page) {
                // Without a page map one of those was met.
                Err(Errno::FAULT | Errno::HWPOISON) => {}
                done => done?,
            }
        }
    }
    Ok(())
}
