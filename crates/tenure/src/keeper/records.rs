//! Detection without userfaultfd: one non-zero word remembered for each offered page.
//!
//! A purged page reads as zeros, so a page whose remembered word is still there was not purged. A
//! page that was all zeros loses nothing by being purged and needs no record.

use super::node::NodeId;
use crate::os::{advise, page_size, words};
use crate::range::PageRange;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// No non-zero word.
const ZERO: u16 = u16::MAX;

/// What one offered range held.
#[derive(Default)]
pub(crate) struct Records {
    word: Vec<u16>,
    value: Vec<u64>,
}

static RECORDS: Mutex<Option<HashMap<NodeId, Records>>> = Mutex::new(None);

pub(crate) fn lock() -> MutexGuard<'static, Option<HashMap<NodeId, Records>>> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers a word of each page; the caller tells the kernel afterwards.
pub(crate) fn remember(id: NodeId, range: PageRange) -> Result<(), Errno> {
    let page = page_size();
    // A range that became unreadable since its check must not kill the keeper.
    crate::os::maps::check_volatile(range).map_err(|_| Errno::INVAL)?;
    let mut records = Records::default();
    for at in (range.start..range.end).step_by(page) {
        // SAFETY: checked just above; the program promises not to unmap a marked range.
        let (word, value) = unsafe { words::first_nonzero(at, page) }.unwrap_or((ZERO, 0));
        records.word.push(word);
        records.value.push(value);
    }
    lock().get_or_insert_default().insert(id, records);
    Ok(())
}

/// Takes the range back; calls `lost` with the extents that are gone, which read as zeros from then
/// on. A page whose word changed counts as lost: without userfaultfd a write after a purge cannot be
/// told from a write before.
pub(crate) fn revive(id: NodeId, range: PageRange, lost: &mut dyn FnMut(PageRange)) {
    let page = page_size();
    let records = lock().get_or_insert_default().remove(&id).unwrap_or_default();
    let mut gone: Option<PageRange> = None;
    for (i, at) in (range.start..range.end).step_by(page).enumerate() {
        let word = records.word.get(i).copied().unwrap_or(ZERO);
        // SAFETY: the program promises not to unmap or protect a marked range.
        if word == ZERO || unsafe { words::redirty(at, word, records.value[i]) } {
            continue;
        }
        gone = match gone {
            Some(before) if before.end == at => Some(PageRange::new(before.start, at + page)),
            before => {
                before.map(&mut *lost);
                Some(PageRange::new(at, at + page))
            }
        };
        // A page that was written after its purge may hold a part of something.
        let _ = advise::drop_pages(PageRange::new(at, at + page));
    }
    gone.map(lost);
}

/// Splits a range's records where the range is split, after `pages`.
pub(crate) fn split(id: NodeId, right: NodeId, pages: usize) {
    if let Some(all) = lock().as_mut() {
        if let Some(left) = all.get_mut(&id) {
            let word = left.word.split_off(pages.min(left.word.len()));
            let value = left.value.split_off(pages.min(left.value.len()));
            all.insert(right, Records { word, value });
        }
    }
}

/// Forgets a range that is dropped while offered.
pub(crate) fn forget(id: NodeId) {
    if let Some(all) = lock().as_mut() {
        all.remove(&id);
    }
}
