//! Takes offered pages back.

#![allow(unsafe_code, reason = "drops pages that are reported as lost")]

use super::by_words;
use super::detection;
use super::list::{add_page, listed, List};
use super::offer::kind;
use super::side::{in_order, without};
use super::state::{flag, Claim, Word};
use crate::os::pagemap::{self, Pagemap, Pages};
use crate::os::{self, advise, maps, own_memory, page_size};
use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::fork;
use rustix::io::Errno;

/// The flags that end with a range's watch.
const NOT_WATCHED: u8 = flag::WATCHED | flag::WHOLLY_WATCHED | flag::DENSE | flag::SPARSE;

/// The first half of taking a range back: makes its intact pages stay, and returns the extents that
/// are gone. The range is still offered and watched. So if [`complete`] does not follow, nothing is
/// lost, and nothing changes for a thread that touches it.
///
/// # Errors
/// `ENOMEM`: no memory for a copy of a page that a fork shares, or for the list. `EINVAL`: the
/// program has removed the write permission. Other errors: [`detection::is_closed`].
pub(super) fn keep_pages(claim: &mut Claim) -> Result<List<PageRange>, Errno> {
    let range = claim.range();
    if !claim.is_offered() || !detection::by_userfaultfd() {
        return Ok(List::new());
    }
    if claim.is(flag::SUSPECT) {
        return List::of(&[range]);
    }
    // Populating the zero pages too would cost a page for each page that was never touched.
    let zeros = match claim.is(flag::SPARSE) && !claim.word().has(Word::REMADE) {
        true => Zeros::MayGo,
        false => Zeros::Stay,
    };
    let pagemap = claim.is(flag::SPARSE).then(Pagemap::open).and_then(Result::ok);
    let intact = match pagemap {
        Some(ref pagemap) if pagemap::scan_works() => keep_data(pagemap, range)?,
        _ if claim.is(flag::SPARSE) => {
            let keep = |zeros| salvage_by_page(range, zeros, pagemap.as_ref());
            let gone = keep(Zeros::MayGo)?;
            // If the watch continues, a zero page that goes would also be reported as missing.
            return if goes_on(claim, &gone) { keep(zeros) } else { Ok(gone) };
        }
        _ => populated(advise::populate_write(range))?,
    };
    if intact {
        Ok(List::new())
    } else {
        salvage(range, zeros)
    }
}

/// The fate of pages of zeros where the shared zero page cannot be recognised: there is no page map
/// (`/proc/self/pagemap` belongs to root in a process that has dropped its privileges), or no
/// PAGEMAP_SCAN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeros {
    /// The kernel may take them. The range is not watched any more, so that is no loss.
    MayGo,
    /// They are kept.
    Stay,
}

/// Gets the purged extents, under the claim, and notes them.
pub(super) type Found<'a> = dyn FnMut(&mut Claim, &[PageRange]) -> Result<(), Errno> + Send + 'a;

/// The second half. Pages that [`keep_pages`] found gone read as zeros (or wait for their refill)
/// and can be written, and the range is no longer offered. Also ends the rest of a watch of a range
/// that is not offered.
///
/// `found` notes the purged extents before anything else happens. An end of the watch that fails
/// half way leaves pages that are gone and not watched, and in a child that is made without fork
/// handlers meanwhile only this note reports them.
///
/// # Errors
/// `ENOMEM`: too many mappings, or no memory for the note. Other errors: [`detection::is_closed`].
/// The range is still offered then.
pub(super) fn complete(
    claim: &mut Claim,
    gone: &[PageRange],
    found: &mut Found<'_>,
) -> Result<(), Errno> {
    // A signal handler may have made a child meanwhile, and this may be that child. The pages of
    // its memory that were populated here, which nothing watched, may be zeros.
    fork::look();
    if !claim.is_offered() {
        return end_watch(claim);
    }
    let range = claim.range();
    // The program may have unmapped a part. Where `keep_pages` has populated all, nothing is missing.
    let populated_all = detection::by_userfaultfd() && gone.is_empty() && !claim.is(flag::SPARSE);
    if claim.is_raw() && !populated_all && !maps::is_mapped(range) {
        return Err(Errno::NOMEM);
    }
    // After `keep_pages`, and in this order: another thread may at any time find that the
    // descriptors are lost, mark offered ranges as suspect, and open new ones.
    let suspect = detection::is_lost() || claim.is(flag::SUSPECT);
    let found_now;
    let gone = match (detection::by_userfaultfd(), suspect) {
        (true, false) => gone,
        (true, true) => &[range],
        (false, _) => {
            found_now = by_words::take_back(claim, suspect)?;
            &found_now[..]
        }
    };
    if !gone.is_empty() {
        found(claim, gone)?;
    }
    if detection::by_userfaultfd() {
        end_if_done(claim, gone, suspect)?;
    } else {
        // A page that was written after its purge may hold parts of a value.
        // SAFETY: the pages are reported as lost. They are mapped and writable: the program
        // promises not to unmap or protect a marked range, and an owned one is not unmapped while
        // it is claimed.
        gone.iter().for_each(|extent| unsafe { make_zero(*extent) });
    }
    // Also if the flag came after that: the pages have been kept.
    claim.clear(flag::SUSPECT);
    if let Some(side) = claim.side() {
        (side.words, side.offered) = (None, None);
    }
    claim.taken_back();
    let lost: usize = gone.iter().map(PageRange::len).sum();
    add(&COUNTERS.revivals, 1);
    add(&COUNTERS.revived_bytes, (range.len() - lost) as u64);
    if lost > 0 {
        add(&COUNTERS.purges, 1);
        add(&COUNTERS.purged_bytes, lost as u64);
    }
    Ok(())
}

/// Adds to the range's losses.
///
/// # Errors
/// `ENOMEM`: nothing was added.
pub(super) fn record(claim: &mut Claim, gone: &[PageRange]) -> Result<(), Errno> {
    let lost_some = claim.word().has(Word::LOST);
    let losses = &mut claim.side_mut()?.losses;
    // An empty list stands for the whole range, if its list was lost.
    if !lost_some || !losses.is_empty() {
        losses.extend(gone)?;
        in_order(losses);
    }
    claim.lost();
    Ok(())
}

/// Undoes [`complete`] right after it, if another range of one call could not be completed: watches
/// purged pages again, unless a thread has touched them. `Err`: that is not possible.
pub(super) fn undo(claim: &mut Claim) -> Result<(), Errno> {
    if !detection::by_userfaultfd() {
        return Err(Errno::OPNOTSUPP);
    }
    claim.set(flag::WATCHED);
    claim.offered_again();
    detection::register(kind(claim), claim.range()).inspect_err(|_| {
        // Not watched: the losses are kept for the next call.
        claim.taken_back();
        claim.set_unclean(true);
    })
}

/// Returns whether the watch continues because pages must be made again.
fn goes_on(claim: &Claim, gone: &[PageRange]) -> bool {
    let word = claim.word();
    word.has(Word::REMADE) && (!gone.is_empty() || word.has(Word::LOST))
}

/// Ends the watch unless the range keeps it.
fn end_if_done(claim: &mut Claim, gone: &[PageRange], suspect: bool) -> Result<(), Errno> {
    let range = claim.range();
    let remade = claim.word().has(Word::REMADE);
    if suspect && remade && detection::register(kind(claim), range).is_ok() {
        // The flags are set before the pages go: a touch of a page that nothing watches would make
        // a page of zeros.
        claim.set(flag::WATCHED | flag::WHOLLY_WATCHED);
        // SAFETY: the range is offered, so its contents may be gone at any time. All of it is
        // reported as lost.
        unsafe { zero(range)? };
        claim.clear(flag::DENSE);
        return Ok(());
    }
    if suspect {
        // Whatever the flags are: a child may have registered a part.
        detection::unregister(kind(claim), range)?;
        // SAFETY: the range is offered, so its contents may be gone at any time. All of it is
        // reported as lost.
        unsafe { zero(range)? };
        claim.clear(NOT_WATCHED);
        return Ok(());
    }
    if gone.is_empty() && !claim.is_raw() && !claim.is(flag::SPARSE) {
        // Owned memory stays registered: this saves the next offer 1.1 µs and this call 1.2 µs.
        return Ok(());
    }
    if goes_on(claim, gone) {
        // A thread may touch one of the missing pages, or wait for it. It must get refilled bytes
        // or none, so the range stays registered until the bytes are there.
        claim.clear(flag::DENSE);
        return Ok(());
    }
    for huge in gone.iter().filter_map(PageRange::huge_part) {
        // Frees the emptied page table. Then the refill faults in a huge page (2 MiB in 47 µs)
        // instead of 512 base pages (735 µs).
        // SAFETY: these pages are gone; the call drops an empty page table.
        let _ = unsafe { advise::drop_pages(huge) };
    }
    end_watch(claim)
}

/// Makes pages read as zeros and writable.
///
/// # Safety
/// The pages' contents are not needed any more.
unsafe fn zero(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the caller promises that the pages' contents are not needed.
    unsafe { advise::drop_pages_though_locked(range) }
}

/// [`zero`], also where the kernel refuses, for example for pages that were locked meanwhile.
///
/// # Safety
/// The pages' contents are not needed any more, and the pages are mapped and writable.
unsafe fn make_zero(range: PageRange) {
    // SAFETY: the caller promises that the pages' contents are not needed, and that the pages are
    // mapped and writable.
    unsafe {
        if zero(range).is_err() {
            std::ptr::write_bytes(range.start as *mut u8, 0, range.len());
        }
    }
}

/// Ends the watch of a range whose pages are all there, or should read as zeros.
fn end_watch(claim: &mut Claim) -> Result<(), Errno> {
    if claim.is(flag::WATCHED) {
        detection::unregister(kind(claim), claim.range())
            .inspect_err(|errno| make_watch_whole(claim, *errno))?;
        claim.clear(NOT_WATCHED);
    }
    claim.set_unclean(false);
    Ok(())
}

/// Watches the range again after the end of its watch has failed. The kernel goes from mapping to
/// mapping, so some may not be watched any more.
fn make_watch_whole(claim: &mut Claim, errno: Errno) {
    if detection::is_closed(errno) || detection::register(kind(claim), claim.range()).is_ok() {
        return;
    }
    claim.clear(flag::WHOLLY_WATCHED | flag::DENSE);
    if claim.is_offered() {
        claim.set(flag::SUSPECT);
    } else {
        claim.set_unclean(true);
    }
}

/// Turns the error for a missing, watched page into `false`.
fn populated(result: Result<(), Errno>) -> Result<bool, Errno> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::FAULT | Errno::HWPOISON) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Keeps the pages that hold data. `true`: none of them went meanwhile (others may be missing).
fn keep_data(pagemap: &Pagemap, range: PageRange) -> Result<bool, Errno> {
    let mut all = true;
    for extent in listed(pagemap, range, Pages::Data)?.iter() {
        all &= populated(advise::populate_write(*extent))?;
    }
    // A page that was discarded before the scan is not in `data`.
    Ok(all && pagemap.count(range, Pages::Missing)? == 0)
}

/// Keeps the remaining pages of a range that has lost some, and lists the lost ones. A page can go
/// until the moment it is populated. So the function reads the page map again until it could keep
/// every page that the map shows.
fn salvage(range: PageRange, zeros: Zeros) -> Result<List<PageRange>, Errno> {
    let tells = |_: &Pagemap| zeros == Zeros::Stay || pagemap::scan_works();
    let Some(pagemap) = Pagemap::open().ok().filter(tells) else {
        return salvage_by_page(range, zeros, None);
    };
    for _ in 0..MOST_LOOKS {
        let mut all = true;
        for extent in listed(&pagemap, range, Pages::Data)?.iter() {
            match advise::populate_write(*extent) {
                Ok(()) => {}
                Err(Errno::FAULT) => all = false,
                Err(Errno::HWPOISON) => drop_poisoned(*extent)?,
                Err(errno) => return Err(errno),
            }
        }
        if all {
            return listed(&pagemap, range, Pages::Missing);
        }
    }
    // A guard that the program has put into the range (MADV_GUARD_INSTALL) always shows as data.
    salvage_by_page(range, zeros, None)
}

/// The most readings of the page map. Each finds the pages that went since the one before.
const MOST_LOOKS: usize = 4;

/// Drops poisoned pages. Their refill failed, and they become missing again.
fn drop_poisoned(range: PageRange) -> Result<(), Errno> {
    for page in range.pieces(page_size()) {
        match advise::populate_write(page) {
            // SAFETY: the kernel reports the page as poisoned, and such a page has no contents.
            Err(Errno::HWPOISON) => unsafe { advise::drop_pages_though_locked(page)? },
            // The other pages are kept, or missing.
            Ok(()) | Err(Errno::FAULT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Keeps and lists page by page. With a page map it first keeps at once what the map shows as written.
fn salvage_by_page(
    range: PageRange,
    zeros: Zeros,
    pagemap: Option<&Pagemap>,
) -> Result<List<PageRange>, Errno> {
    let (mut kept, mut missing) = (List::new(), List::new());
    if let Some(pagemap) = pagemap {
        for extent in listed(pagemap, range, Pages::Written)?.iter() {
            if populated(advise::populate_write(*extent))? {
                kept.push(*extent)?;
            }
        }
    }
    for page in without(&[range], &kept)?.iter().flat_map(|rest| rest.pieces(page_size())) {
        let may_go = zeros == Zeros::MayGo && own_memory::reads_as_zeros(page);
        if !may_go && !populated(advise::populate_write(page))? {
            add_page(&mut missing, page)?;
        }
    }
    Ok(missing)
}

/// Drops a range's pages, offered or not. Afterwards it is like ordinary memory that was never
/// touched.
///
/// # Errors
/// `ENOMEM`: too many mappings. Other errors: [`detection::is_closed`]. The range is unchanged
/// then.
///
/// # Safety
/// The range's contents are not needed.
pub(super) unsafe fn discard(claim: &mut Claim) -> Result<(), Errno> {
    // If it fails, the range is still watched, and its pages must stay: a write of the next
    // contents to a missing page would raise SIGBUS.
    end_watch(claim)?;
    // SAFETY: the caller promises that the range's contents are not needed.
    unsafe { advise::drop_pages_though_locked(claim.range())? };
    if let Some(side) = claim.side() {
        (side.words, side.offered) = (None, None);
    }
    claim.clear(flag::SUSPECT);
    claim.taken_back();
    Ok(())
}

/// Returns how many bytes of an offered range are gone, without touching them. 0 where that is not
/// known.
pub(crate) fn missing_bytes(pagemap: &Pagemap, range: PageRange) -> usize {
    let count = || pagemap.count(range, Pages::Missing);
    if range.len() < os::page_size() {
        0
    } else {
        count().unwrap_or(0)
    }
}
