//! Holes: the parts of offered ranges that were never touched. They are made readable, as the shared
//! zero page. The kernel makes page tables for that, counts them as the program's memory (2 MiB for
//! each GiB), and keeps them until the range is unmapped.
//!
//! Seen without a bound: a range of 64 GiB of which one page was touched got its program killed in
//! a group of 64 MiB.

use super::detection::{self, Kind};
use super::list::{listed, List};
use super::side::without;
use super::state::{flag, Claim, Word};
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::{maps, memory_group, page_size, populate};
use crate::range::PageRange;
use crate::runtime::budget;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of such tables. Tables of ranges that were unmapped since count as well, until the bound
/// is reached. For the whole process: the limit applies to its whole memory.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A page of 4 KiB takes 8 bytes of a table.
fn tables(bytes: usize) -> u64 {
    bytes as u64 / 512
}

/// Counts adjoining holes of so many bytes, which were made readable.
fn made_readable(bytes: usize) {
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

/// Makes holes readable, as the shared zero page.
///
/// Holes must be readable before the range is watched. Otherwise a page that was never touched
/// would count as purged. And nothing may be freed before it is watched, or the kernel could
/// discard it unseen. `lost` pages stay missing.
pub(super) fn make_readable(
    claim: &mut Claim,
    piece: PageRange,
    lost: &[PageRange],
    pagemap: Option<&Pagemap>,
) -> Result<(), Errno> {
    let missing = match pagemap {
        Some(pagemap) => listed(pagemap, piece, Pages::Missing)?,
        None => List::of(&[piece])?,
    };
    for hole in without(&missing, lost)?.iter() {
        match populate::for_reading(*hole) {
            // A page that is gone, not reported yet, and watched.
            Err(Errno::FAULT | Errno::HWPOISON) if claim.word().has(Word::REMADE) => {}
            done => done?,
        }
        made_readable(hole.len());
        claim.set(flag::SPARSE);
    }
    Ok(())
}

/// Has forks copy the page tables of holes that were made readable, in memory that is watched
/// already.
///
/// In a fork the kernel skips the page tables of a mapping that was never written, because touches
/// in the child would make the pages. But the child watches the range, and a zero page that is
/// missing there counts as purged. A request to fill a page that is present changes nothing, except
/// that the mapping then counts as written.
pub(super) fn have_forks_copy(
    claim: &Claim,
    kind: Kind,
    piece: PageRange,
    pagemap: Option<&Pagemap>,
) -> Result<(), Errno> {
    for part in mappings_in(piece)?.iter() {
        // A page that is still missing is lost, and the program makes it again.
        let missing = match pagemap {
            Some(pagemap) => listed(pagemap, *part, Pages::Missing)?,
            None if claim.word().has(Word::LOST) => continue,
            None => List::new(),
        };
        if let Some(there) = without(&[*part], &missing)?.first() {
            detection::have_forks_copy(kind, there.start)?;
        }
    }
    Ok(())
}

/// Returns the part of each mapping that lies in the range; each page, if the mappings cannot be
/// listed.
pub(super) fn mappings_in(range: PageRange) -> Result<List<PageRange>, Errno> {
    let (mut parts, mut noted) = (List::new(), Ok(()));
    let listed_all = maps::each_mapping(range, |mapping| {
        let (start, end) = (mapping.start.max(range.start), mapping.end.min(range.end));
        if noted.is_ok() {
            noted = parts.push(PageRange { start, end });
        }
    });
    if listed_all.is_err() {
        parts = List::with_room(range.len() / page_size())?;
        noted = range.pieces(page_size()).try_for_each(|page| parts.push(page));
    }
    noted.map(|()| parts)
}
