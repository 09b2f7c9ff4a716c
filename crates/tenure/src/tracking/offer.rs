//! Offers a range: tells the kernel that it may take the pages.

#![allow(unsafe_code, reason = "lets the kernel discard pages")]

use super::detection::{self, Kind};
use super::list::List;
use super::state::{flag, Claim};
use super::{by_words, changes, holes};
use crate::os::maps::{self, Unfit};
use crate::os::mlock::{self, Seen};
use crate::os::own_pages::{are_own, make_own};
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::touch::read_each_page;
use crate::os::{advise, lru, page_size};
use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::fork;
use crate::runtime::mapping_room::MappingRoom;
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// After this many bytes the worker checks whether a thread wants the range back. 8 MiB of base
/// pages take it about 1 ms.
const STEP: usize = 8 << 20;

/// A watch splits mappings, and scattered offers could use up all that the program may have: 60,000
/// offers left its allocator none. So half belongs to the program.
/// For the whole process: the kernel bounds the mappings of a process.
static ROOM: MappingRoom = MappingRoom::new(2);

/// Returns whether the end of the watch of a part may split mappings, too.
pub(super) fn may_cut(part: PageRange) -> bool {
    ROOM.may_cut(part)
}

/// The reason why a range was not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A thread pinned it before any page was offered.
    Wanted,
    /// It lies inside a huge page of which another part is in use.
    InsideHugePage,
    /// Another process (of a fork) has the pages too, so discarding them frees nothing.
    Shared,
    /// The offer would split mappings, of which the program has few left.
    TooManyMappings,
    /// The page tables of its holes would take too much memory.
    TooSparse,
    /// The program has changed the memory without tenure since it marked it.
    Changed(Unfit),
    /// The program has mapped other memory in its place since it was offered.
    Replaced,
    /// The kernel refused this call.
    Kernel(&'static str, Errno),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Kernel("looking at its pages", errno)
    }
}

impl Refusal {
    /// What the kernel was asked for when it refused to watch the pages.
    pub const WATCHING: &str = "having its pages watched";

    pub fn not_watched(errno: Errno) -> Refusal {
        Refusal::Kernel(Refusal::WATCHING, errno)
    }

    /// There is no background thread, and only it may do this work.
    pub const NO_WORKER: Refusal = Refusal::Kernel("starting the background thread", Errno::AGAIN);

    fn not_own(errno: Errno) -> Refusal {
        Refusal::Kernel("populating its pages for writing", errno)
    }

    fn not_freed(part: PageRange, errno: Errno) -> Refusal {
        match mlock::asked(part) {
            Ok(Seen::Locked) => Refusal::Changed(Unfit::Locked),
            _ => Refusal::Kernel("madvise(MADV_FREE)", errno),
        }
    }
}

/// Returns the userfaultfd that watches the range.
pub(super) fn kind(claim: &Claim) -> Kind {
    if claim.is(flag::REFILLED) {
        Kind::Refill
    } else {
        Kind::Sigbus
    }
}

/// Offers the range. On the background thread. After `Ok` the kernel may take some pages at least,
/// and the range is offered. After `Err` it may take none, and the range is not offered.
/// `split_huge`: offer even where that splits a huge page of which another part is in use.
pub(super) fn offer(claim: &mut Claim, split_huge: bool) -> Result<(), Refusal> {
    let range = claim.range();
    if range.len() == 0 || claim.is(flag::TORN) {
        return Err(Refusal::Wanted);
    }
    changes::look(claim).map_err(Refusal::Changed)?;
    let by_words = !detection::by_userfaultfd();
    if !by_words && !claim.is(flag::WHOLLY_WATCHED) && !ROOM.may_cut(range) {
        return Err(Refusal::TooManyMappings);
    }
    let pagemap = Pagemap::open().ok();
    if !is_exclusive(claim) && is_shared(claim, range, pagemap.as_ref()) {
        return Err(Refusal::Shared);
    }
    let parts = offerable_parts(claim, range, pagemap.as_ref(), split_huge)?;
    let mut has_zeros = false;
    if by_words {
        // A range that became unreadable since its look must not kill the background thread.
        maps::check_volatile(range).map_err(Refusal::Changed)?;
        by_words::remember(claim, range)?;
    } else if !claim.is(flag::DENSE | flag::WHOLLY_WATCHED) {
        if !holes::fit(range, pagemap.as_ref()) {
            return Err(Refusal::TooSparse);
        }
        // The whole range is made readable before any of it is offered. An offer may be cut short,
        // and a hole in the part that was left out would count as purged with the rest.
        for piece in range.pieces(STEP) {
            if claim.is_wanted() {
                return Err(Refusal::Wanted);
            }
            holes::make_readable(claim, piece, &[], pagemap.as_ref())?;
            let written = |pagemap: &Pagemap| pagemap.count(piece, Pages::Written);
            let is_written = pagemap.as_ref().map(|pagemap| written(pagemap) == Ok(piece.len()));
            has_zeros |= is_written != Some(true);
            // Nor are the pages of zeros that an offer before has left to be populated. A GiB of them
            // took a GiB at the second pin, and a page that was never written counted as purged.
            if is_written == Some(false) {
                claim.set(flag::SPARSE);
            }
        }
    }
    let told = tell(claim, &parts, by_words, has_zeros, pagemap.as_ref());
    if !claim.is_offered() {
        if let Some(side) = claim.side() {
            side.words = None;
        }
        return Err(told.err().unwrap_or(Refusal::Wanted));
    }
    if told.is_ok() && !by_words && !claim.is_raw() {
        claim.set(flag::WHOLLY_WATCHED);
        // Safe code reaches owned memory only through its owner, so later a page goes missing only
        // by being discarded.
        if claim.is(flag::SPARSE) {
            claim.clear(flag::DENSE);
        } else {
            claim.set(flag::DENSE);
        }
    }
    add(&COUNTERS.offers, 1);
    add(&COUNTERS.offered_bytes, range.len() as u64);
    Ok(())
}

/// Watches the parts and frees them lazily, piece by piece. `has_zeros`: they may have pages that
/// were never written. `Err`: it was cut short. Then the range's word says whether anything was
/// offered, and its side data lists the offered parts.
fn tell(
    claim: &mut Claim,
    parts: &[PageRange],
    by_words: bool,
    has_zeros: bool,
    pagemap: Option<&Pagemap>,
) -> Result<(), Refusal> {
    let range = claim.range();
    let whole = parts == [range];
    // tenure must know the offered parts, so their list comes first.
    let mut told = List::new();
    let pieces = || parts.iter().flat_map(|part| part.pieces(STEP));
    told.reserve(pieces().count())?;
    let had_side = claim.known_side().is_some();
    claim.side_mut()?;
    let (mut result, mut owners) = (Ok(()), Ok(Owners::Unknown));
    // Pages that are made again from here on may already be covered by this offer.
    claim.clear(flag::MADE_AGAIN);
    // Owned memory stays registered as a whole from its first offer on.
    let watched = claim.is(flag::WHOLLY_WATCHED);
    for piece in pieces() {
        if claim.is_wanted() {
            result = Err(Refusal::Wanted);
            break;
        }
        if !by_words && !watched {
            // The flag is set first, so that the next thread that takes the range back ends a
            // registration that failed half way.
            claim.set(flag::WATCHED);
            let mut registered = detection::register(kind(claim), piece);
            if has_zeros && !claim.is(flag::DENSE) {
                let copied = || holes::have_forks_copy(claim, kind(claim), piece, pagemap);
                registered = registered.and_then(|()| copied());
            }
            if let Err(errno) = registered {
                claim.clear(flag::DENSE);
                result = Err(Refusal::not_watched(errno));
                break;
            }
        }
        if !claim.begin_offer() {
            result = Err(Refusal::Wanted);
            break;
        }
        if told.is_empty() {
            owners = find_owners(claim, pieces(), pagemap);
        }
        let may_go = match owners {
            Ok(Owners::This) => Ok(()),
            Ok(Owners::Unknown) => {
                make_own(piece, !claim.is(flag::DENSE)).map_err(Refusal::not_own)
            }
            Err(refusal) => Err(refusal),
        };
        if may_go.is_err() {
            result = may_go;
            if told.is_empty() {
                // Nothing was freed, so also what was suspected meanwhile is there.
                claim.clear(flag::SUSPECT);
                claim.taken_back();
            }
            break;
        }
        told.push(piece)?;
        // SAFETY: a part of a range that is marked volatile, or owned and not pinned, so its
        // contents may go. The claim keeps it from being unmapped meanwhile.
        if let Err(errno) = unsafe { advise::free(piece) } {
            // Locked since the look. The kernel may have freed one mapping before it met another that
            // is locked, so the piece counts as offered and stays watched. It is freed later, with
            // the rest.
            add(&COUNTERS.refused_offers, 1);
            result = Err(Refusal::not_freed(piece, errno));
            claim.set(flag::MADE_AGAIN);
        }
    }
    let told = (claim.is_offered() && (!whole || result.is_err())).then_some(told);
    match claim.side() {
        side if told.is_none() && !had_side => *side = None,
        Some(side) => side.offered = told,
        None => {}
    }
    if !claim.is_offered() && claim.is(flag::WATCHED) && !watched {
        end_failed_watch(claim);
    }
    result
}

#[derive(Clone, Copy)]
enum Owners {
    This,
    Unknown,
}

/// Finds out who has the pages of a range, after its word says that it is offered: a child that is
/// made from here on knows that. A child from before, made without fork handlers, must keep its
/// pages. All pieces before any is freed: what is left out now would wait for the next pin.
fn find_owners(
    claim: &Claim,
    pieces: impl Iterator<Item = PageRange>,
    pagemap: Option<&Pagemap>,
) -> Result<Owners, Refusal> {
    let mut owners = Owners::This;
    for piece in pieces {
        if claim.is_wanted() {
            return Err(Refusal::Wanted);
        }
        match are_own(piece, pagemap) {
            Some(true) => {}
            Some(false) => {
                // The next offer looks before it has anything watched.
                claim.tracked().exclusive_at.store(0, Ordering::Relaxed);
                return Err(Refusal::Shared);
            }
            None => owners = Owners::Unknown,
        }
    }
    Ok(owners)
}

/// Offers the offered parts of a range once more. Threads that touched purged pages have had them
/// made again, and such a page belongs to the program until it is offered again. A child that also
/// has such a page knows that the range is offered.
///
/// A thread that pins the range meanwhile waits for the claim, so it finds the pages that go now as
/// gone.
pub(super) fn tell_again(claim: &mut Claim) -> Result<(), Refusal> {
    if !claim.is_offered() {
        return Err(Refusal::Wanted);
    }
    let watched = detection::by_userfaultfd() && claim.is(flag::WATCHED | flag::WHOLLY_WATCHED);
    if !watched || claim.is(flag::SUSPECT | flag::TORN) {
        // A purge would go unseen. All of the range counts as lost already.
        claim.clear(flag::MADE_AGAIN);
        return Err(Refusal::Wanted);
    }
    let range = claim.range();
    if !is_exclusive(claim) && is_shared(claim, range, Pagemap::open().ok().as_ref()) {
        return Err(Refusal::Shared);
    }
    let told = offered_parts(claim)?;
    if !changes::is_same_memory(claim, kind(claim), &told).map_err(Refusal::Changed)? {
        return Err(Refusal::Replaced);
    }
    // The flag is cleared before the offer: a page that is made again meanwhile sets it again.
    claim.clear(flag::MADE_AGAIN);
    for piece in told.iter().flat_map(|part| part.pieces(STEP)) {
        if claim.is_wanted() {
            claim.set(flag::MADE_AGAIN);
            return Err(Refusal::Wanted);
        }
        // SAFETY: the piece is offered, so the program has given up its contents. The claim keeps
        // the range offered and watched meanwhile.
        if let Err(errno) = unsafe { advise::free(piece) } {
            claim.set(flag::MADE_AGAIN);
            return Err(Refusal::not_freed(piece, errno));
        }
    }
    Ok(())
}

/// Returns the parts of an offered range that were really offered.
pub(super) fn offered_parts(claim: &Claim) -> Result<List<PageRange>, Errno> {
    match claim.known_side().and_then(|side| side.offered.as_ref()) {
        Some(told) => List::of(told),
        None => List::of(&[claim.range()]),
    }
}

/// Ends a registration that failed half way. If that fails now, the next thread that pins the range
/// does it.
pub(super) fn end_failed_watch(claim: &mut Claim) {
    match detection::unregister(kind(claim), claim.range()) {
        Ok(()) => claim.clear(flag::WATCHED | flag::WHOLLY_WATCHED),
        Err(_) => claim.set_unclean(true),
    }
}

/// Returns whether no fork can have shared the pages since they were last checked.
fn is_exclusive(claim: &Claim) -> bool {
    claim.tracked().exclusive_at.load(Ordering::Relaxed) == fork::count().wrapping_add(1)
}

/// Returns whether another process has some of the pages too. Reclaim would take them from this
/// process and free nothing.
fn is_shared(claim: &Claim, range: PageRange, pagemap: Option<&Pagemap>) -> bool {
    let now = fork::count().wrapping_add(1);
    let shared = pagemap.and_then(|pagemap| pagemap.any_shared(range).ok());
    if shared == Some(false) {
        claim.tracked().exclusive_at.store(now, Ordering::Relaxed);
    }
    // If it is not known, `tell` decides.
    shared == Some(true)
}

/// Returns the parts that may be offered without splitting a huge page that is partly in other use:
/// the whole huge pages, and each end that is not inside a huge page.
fn offerable_parts(
    claim: &Claim,
    range: PageRange,
    pagemap: Option<&Pagemap>,
    split_huge: bool,
) -> Result<List<PageRange>, Refusal> {
    if !claim.is_raw() || split_huge {
        return Ok(List::of(&[range])?);
    }
    let (low, high) = match range.huge_part() {
        None => (range.end, range.end),
        Some(middle) => (middle.start, middle.end),
    };
    let free_end = |from: usize, to: usize| {
        let end = (from < to).then(|| PageRange::new(from, to))?;
        let huge = pagemap.map_or(0, |pagemap| pagemap.count(end, Pages::Huge).unwrap_or(0));
        (huge == 0).then_some(end)
    };
    let middle = (low < high).then(|| PageRange::new(low, high));
    let ends = (free_end(range.start, low), free_end(high, range.end));
    let mut parts: List<PageRange> = List::new();
    for part in [ends.0, middle, ends.1].into_iter().flatten() {
        match parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => parts.push(part)?,
        }
    }
    if parts.is_empty() {
        return Err(Refusal::InsideHugePage);
    }
    Ok(parts)
}

/// Has the kernel discard as much of an offered range as it may, and returns how many bytes are
/// gone. For tests, and for programs that want the memory back now. On the background thread.
pub(super) fn purge(claim: &mut Claim) -> Result<usize, Refusal> {
    let range = claim.range();
    let pagemap = Pagemap::open().ok();
    // After a loss of the descriptors nothing tells whether other memory is there by now. All of the
    // range counts as lost then, whatever is there.
    let is_unsure = |claim: &Claim| claim.is_raw() && claim.is(flag::SUSPECT);
    if !is_unsure(claim) {
        // Only the offered parts are watched.
        let told = offered_parts(claim)?;
        if changes::is_same_memory(claim, kind(claim), &told).map_err(Refusal::Changed)? {
            claim.clear(flag::MADE_AGAIN);
            // SAFETY: the parts are offered, so the program has given up their contents.
            unsafe { page_out(&told, pagemap.as_ref()) }
                .inspect_err(|_| claim.set(flag::MADE_AGAIN))?;
        } else if !is_unsure(claim) {
            return Err(Refusal::Replaced);
        }
    }
    match pagemap {
        Some(pagemap) => Ok(pagemap.count(range, Pages::Missing)?),
        // A process that has dropped its privileges cannot read its own page map. A missing,
        // watched page cannot be read. Without a watch it reads as zeros, and is not counted.
        None => {
            let pages = range.pieces(page_size());
            Ok(pages.filter(|page| read_each_page(*page).is_err()).map(|page| page.len()).sum())
        }
    }
}

/// Has the kernel discard what it may of these parts.
///
/// # Safety
/// Their contents are not needed.
unsafe fn page_out(told: &[PageRange], pagemap: Option<&Pagemap>) -> Result<(), Refusal> {
    for attempt in 0..4u64 {
        if attempt > 0 {
            // A page that another processor faulted in last waits on that processor's list, and
            // until it has left the list the kernel cannot mark it. Another thread's look at a page
            // (a walk of smaps, a migration) holds a reference to it for a moment, too.
            std::thread::sleep(std::time::Duration::from_millis(attempt - 1));
            lru::drain();
        }
        let mut left = false;
        for part in told.iter() {
            // SAFETY: the caller promises that the contents are not needed.
            unsafe { advise::free(*part) }.map_err(|errno| Refusal::not_freed(*part, errno))?;
            advise::page_out(*part)
                .map_err(|errno| Refusal::Kernel("madvise(MADV_PAGEOUT)", errno))?;
            left |= match pagemap {
                Some(pagemap) => pagemap.count(*part, Pages::Data)? > 0,
                None => true,
            };
        }
        if !left {
            break;
        }
    }
    Ok(())
}
