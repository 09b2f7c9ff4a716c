//! Page tables for the parts of offered ranges that were never touched (holes). The kernel makes
//! these tables when the holes are made readable, counts them as the program's memory (2 MiB for
//! each GiB), and keeps them until the range is unmapped.
//!
//! Seen without a bound: a range of 64 GiB of which one page was touched got its program killed in
//! a group of 64 MiB.

use crate::os::memory_group;
use crate::os::pagemap::{Pagemap, Pages};
use crate::range::PageRange;
use crate::runtime::budget;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of such tables. Tables of ranges that were unmapped since count as well, until the bound
/// is reached. For the whole process: the limit applies to its whole memory.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A page of 4 KiB takes 8 bytes of a table.
fn tables(bytes: usize) -> u64 {
    bytes as u64 / 512
}

/// Counts adjoining holes of so many bytes, which were made readable.
pub(super) fn made_readable(bytes: usize) {
    MADE.fetch_add(tables(bytes), Ordering::Relaxed);
}

/// Returns whether the tables of a range's holes fit: all such tables take a sixteenth of the
/// memory limit at most. Takes no lock.
pub(super) fn fit(range: PageRange, pagemap: Option<&Pagemap>) -> bool {
    let most = budget::limit_at_last_look() / 16;
    let made = MADE.load(Ordering::Relaxed);
    if made.saturating_add(tables(range.len())) <= most {
        return true;
    }
    let holes = pagemap.and_then(|pagemap| pagemap.count(range, Pages::Missing).ok());
    let needed = tables(holes.unwrap_or(range.len()));
    let there = memory_group::page_tables().unwrap_or(u64::MAX);
    let made = MADE.fetch_min(there, Ordering::Relaxed).min(there);
    needed == 0 || made.saturating_add(needed) <= most
}
