//! Marking and unmarking ranges that the program has mapped itself.

use super::known;
use super::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::index::{self, Index};
use crate::keeper::node::{flag, longest, NodeId, Phase, Word};
use crate::keeper::pages::Refusal;
use crate::keeper::settings::{purge_always, Priority};
use crate::keeper::{self, gate, pin};
use crate::os::maps::{self, Unfit};
use crate::range::PageRange;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The word of a range that is volatile: no pin. One that is not has one.
const MARKED: Word = Word(0);

/// Makes `[addr, addr + len)` volatile: from now on the kernel may come to be told that it can take
/// the pages. Marking what is marked already changes nothing; any page-aligned range will do, whether
/// or not it was marked in other pieces before.
///
/// # Cost
/// No system call for a range marked before (about 30 ns, whatever its size); about 3 µs the first
/// time, which checks it.
///
/// # Errors
/// - `EINVAL`: empty, unaligned or wrapping; shared memory or a file's (the kernel cannot discard
///   those); locked; not readable and writable.
/// - `ENOMEM`: part of it is not mapped; or there are 33 million ranges already.
/// - `EOPNOTSUPP`: the kernel refuses `MADV_FREE`.
///
/// Nothing is marked when an error is returned.
///
/// # Safety
/// The promises at the head of [`crate::volatile`].
pub unsafe fn mark(addr: *mut u8, len: usize) -> Result<()> {
    mark_range("mark", addr, len, None)
}

/// [`mark`] with a priority; it holds until the range is marked with another.
///
/// # Errors
/// As [`mark`].
///
/// # Safety
/// As [`mark`].
pub unsafe fn mark_with_priority(addr: *mut u8, len: usize, priority: Priority) -> Result<()> {
    mark_range("mark", addr, len, Some(priority))
}

/// Makes `[addr, addr + len)` non-volatile and tells whether all of it is still there. Pages that
/// are gone read as zeros and can be written. Parts that were never marked count as intact.
///
/// # Cost
/// No system call for a range that was not offered (about 30 ns, whatever its size). Offered: one
/// `MADV_POPULATE_WRITE` (0.5 µs for a 2 MiB huge page, 140 ns for a 4 KiB page) and one unregister
/// (1.2 µs); purged: a look at the page map (4 ns a page) as well.
///
/// # Errors
/// - `EINVAL`: empty, unaligned or wrapping; or no longer writable.
/// - `ENOMEM`: part of it is not mapped, or there is no memory for pages that a fork shares.
///
/// On an error the range is as volatile as before, and nothing is lost by it.
///
/// # Safety
/// As [`mark`].
pub unsafe fn unmark(addr: *mut u8, len: usize) -> Result<Outcome> {
    unmark_range(addr, len, &mut |_| {})
}

/// [`unmark`], and calls `gone` with the byte offsets (from `addr`) of each extent that is gone, in
/// no particular order; every other byte is as it was.
///
/// # Errors
/// As [`unmark`].
///
/// # Safety
/// As [`mark`].
pub unsafe fn unmark_with_map(
    addr: *mut u8,
    len: usize,
    mut gone: impl FnMut(Range<usize>),
) -> Result<Outcome> {
    let base = addr as usize;
    unmark_range(addr, len, &mut |extent| gone(extent.start - base..extent.end - base))
}

fn mark_range(
    call: &'static str,
    addr: *mut u8,
    len: usize,
    priority: Option<Priority>,
) -> Result<()> {
    let range = PageRange::check(call, addr, len)?;
    if priority.is_none() && known::find(range).is_some_and(|id| try_mark(id, range)) {
        return Ok(());
    }
    keeper::ready(call)?;
    if len > longest() {
        return Err(Error::new(
            ErrorKind::BadRange,
            call,
            "the range has more than 2^32 pages",
            "mark it in parts",
        )
        .on(range.start, len));
    }
    mark_slowly(call, range, priority)?;
    keeper::bound::hold_back();
    if purge_always() {
        for id in volatile_ids(range) {
            let _ = pin::offer_and_purge(id);
        }
    }
    Ok(())
}

/// Marks one node that is exactly the range, if its state allows it without waiting.
#[inline]
fn try_mark(id: NodeId, range: PageRange) -> bool {
    let node = id.node();
    loop {
        // The word first: if the node became another range's since, the exchange below fails.
        let word = node.load();
        if word.has(Word::FREE | Word::HELD) || node.range() != range || purge_always() {
            return false;
        }
        if word.pins() == 0 {
            return node.load() == word;
        }
        if word.phase() != Phase::Resident {
            return false;
        }
        if node.try_change(word, Word(word.0 - Word::PIN)) {
            return true;
        }
    }
}

fn mark_slowly(call: &'static str, range: PageRange, priority: Option<Priority>) -> Result<()> {
    let mut index = index::lock();
    if let Some(id) = index.exact(range) {
        if let Some(priority) = priority {
            id.node().priority.store(priority.level(), Ordering::Relaxed);
        }
        if try_mark(id, range) {
            known::remember(range, id);
            return Ok(());
        }
    }
    let overlapping = index.overlapping(range);
    let gaps = Index::gaps(range, &overlapping);
    for gap in &gaps {
        maps::check_volatile(*gap).map_err(|unfit| explain(call, range, &unfit))?;
    }
    let full = || {
        Error::new(
            ErrorKind::OutOfMemory,
            call,
            "33 million ranges are known already",
            "mark neighbouring ranges as one, or forget ranges that are no longer used",
        )
        .on(range.start, range.len())
    };
    let mut inside = Vec::with_capacity(overlapping.len() + gaps.len());
    for id in overlapping {
        index::hold(id);
        // What is marked beyond the range already stays one with it; what is not is cut off.
        let id = if id.node().load().pins() > 0 {
            match index.cut(id, range) {
                Ok(id) => id,
                Err(id) => {
                    inside.push(id);
                    inside.iter().for_each(|id: &NodeId| index::release(id.node()));
                    return Err(full());
                }
            }
        } else {
            id
        };
        inside.push(id);
    }
    let level = priority.unwrap_or_default().level();
    for gap in gaps {
        match index.insert(gap, Word(MARKED.0 | Word::HELD), level) {
            Some(id) => inside.push(id),
            None => {
                inside.iter().for_each(|id| index::release(id.node()));
                return Err(full());
            }
        }
    }
    inside.sort_unstable_by_key(|id| id.node().start());
    for id in &inside {
        let node = id.node();
        if priority.is_some() {
            node.priority.store(level, Ordering::Relaxed);
        }
        let _ = node.change(|word| (word.pins() > 0).then(|| Word(word.0 - Word::PIN)));
    }
    for id in merge_runs(&mut index, &inside) {
        index::release(id.node());
    }
    if let Some(id) = index.exact(range) {
        known::remember(range, id);
    }
    Ok(())
}

/// Joins held neighbours that are resident and of one priority; answers those that are left.
fn merge_runs(index: &mut Index, held: &[NodeId]) -> Vec<NodeId> {
    let mut left: Vec<NodeId> = Vec::new();
    let mut run: Vec<NodeId> = Vec::new();
    let mut flush = |run: &mut Vec<NodeId>, index: &mut Index| {
        if let [first, rest @ ..] = run.as_slice() {
            index.merge(*first, rest);
            left.push(*first);
        }
        run.clear();
    };
    for id in held {
        let joins = run.last().is_some_and(|last| {
            let (a, b) = (last.node(), id.node());
            a.end() == b.start()
                && a.priority.load(Ordering::Relaxed) == b.priority.load(Ordering::Relaxed)
                && [a, b].iter().all(|n| n.load().phase() == Phase::Resident)
        });
        if !joins {
            flush(&mut run, index);
        }
        run.push(*id);
    }
    flush(&mut run, index);
    left
}

fn unmark_range(addr: *mut u8, len: usize, gone: &mut dyn FnMut(PageRange)) -> Result<Outcome> {
    let call = "unmark";
    let range = PageRange::check(call, addr, len)?;
    if let Some(id) = known::find(range) {
        match try_unmark(id, range) {
            Fast::Done => return Ok(Outcome::Intact),
            Fast::Settle => return settle_all(&[id], range, gone),
            Fast::Slow => {}
        }
    }
    keeper::ready(call)?;
    let pinned = pin_overlapping(call, range)?;
    settle_all(&pinned, range, gone)
}

enum Fast {
    Done,
    /// Pinned, and its pages are to be taken back.
    Settle,
    Slow,
}

#[inline]
fn try_unmark(id: NodeId, range: PageRange) -> Fast {
    let node = id.node();
    loop {
        let word = node.load();
        if word.has(Word::FREE | Word::HELD) || node.range() != range {
            return Fast::Slow;
        }
        if word.pins() > 0 {
            // Unmarked already; if another thread is at it, wait with the others.
            return if word.phase() == Phase::Resident && node.load() == word {
                Fast::Done
            } else {
                Fast::Slow
            };
        }
        if node.try_change(word, Word(word.used().0 + Word::PIN)) {
            return if word.phase() == Phase::Resident { Fast::Done } else { Fast::Settle };
        }
    }
}

/// Pins every marked node of the range, split to it; answers those that this call has pinned and
/// those that another thread is taking back.
fn pin_overlapping(call: &'static str, range: PageRange) -> Result<Vec<NodeId>> {
    let mut index = index::lock();
    if let Some(id) = index.exact(range) {
        known::remember(range, id);
        match try_unmark(id, range) {
            Fast::Done => return Ok(Vec::new()),
            Fast::Settle => return Ok(vec![id]),
            Fast::Slow => {}
        }
    }
    let overlapping = index.overlapping(range);
    for gap in Index::gaps(range, &overlapping) {
        let hole = maps::first_hole(gap);
        if let Ok(Some(at)) = hole {
            return Err(explain(call, range, &Unfit::Hole(at)));
        }
    }
    let mut pinned = Vec::with_capacity(overlapping.len());
    for id in overlapping {
        index::hold(id);
        if id.node().load().pins() > 0 {
            index::release(id.node());
            continue;
        }
        // Where no more ranges can be known, more than was asked for becomes non-volatile: harmless.
        let id = index.cut(id, range).unwrap_or_else(|whole| whole);
        let _ = id.node().change(|word| Some(Word(word.used().0 + Word::PIN)));
        index::release(id.node());
        pinned.push(id);
    }
    Ok(pinned)
}

/// Takes the pages of pinned nodes back. On an error they are marked again.
fn settle_all(
    pinned: &[NodeId],
    range: PageRange,
    gone: &mut dyn FnMut(PageRange),
) -> Result<Outcome> {
    let mut outcome = Outcome::Intact;
    for id in pinned {
        let settled = pin::settle(*id, Some(range), &mut |extent| {
            outcome = Outcome::Purged;
            gone(extent);
            0
        });
        if let Err(errno) = settled {
            for id in pinned {
                let _ =
                    id.node().change(|word| (word.pins() > 0).then(|| Word(word.0 - Word::PIN)));
            }
            let error = Error::system("unmark", "madvise(MADV_POPULATE_WRITE)", errno);
            return Err(error.on(range.start, range.len()));
        }
    }
    Ok(outcome)
}

/// Offers what is marked in the range to the kernel now, skipping the wait.
///
/// # Errors
/// `EINVAL`: nothing in the range is marked, or the range is bad. Other errors are the kernel's:
/// `ENOMEM` for too many mappings, `EINVAL` for memory that was locked meanwhile. `EBUSY`: a fork
/// shares the pages.
///
/// # Safety
/// As [`mark`].
pub unsafe fn offer_now(addr: *mut u8, len: usize) -> Result<()> {
    each_volatile("offer_now", addr, len, |id| pin::offer_now(id).map(|()| 0)).map(drop)
}

/// Offers what is marked in the range and has the kernel discard it; answers how many bytes of it
/// are gone. For tests, and to give room back at once. The discarding is the kernel's own reclaim.
///
/// # Errors
/// As [`offer_now`].
///
/// # Safety
/// As [`mark`].
pub unsafe fn purge_now(addr: *mut u8, len: usize) -> Result<usize> {
    each_volatile("purge_now", addr, len, pin::offer_and_purge)
}

fn each_volatile(
    call: &'static str,
    addr: *mut u8,
    len: usize,
    mut each: impl FnMut(NodeId) -> std::result::Result<usize, Refusal>,
) -> Result<usize> {
    let range = PageRange::check(call, addr, len)?;
    keeper::ready(call)?;
    let ids = cut_volatile(range);
    if ids.is_empty() {
        return Err(Error::new(
            ErrorKind::NotMarked,
            call,
            "no page of the range is marked volatile",
            "mark it first",
        )
        .on(range.start, range.len()));
    }
    let mut total = 0;
    for id in ids {
        total += each(id).map_err(|refusal| refused(call, range, refusal))?;
    }
    Ok(total)
}

/// The marked nodes of the range, cut at its ends so that nothing beyond is touched.
fn cut_volatile(range: PageRange) -> Vec<NodeId> {
    let mut index = index::lock();
    let mut ids = Vec::new();
    for id in index.overlapping(range) {
        index::hold(id);
        let marked = id.node().load().pins() == 0;
        let id = match marked {
            true => index.cut(id, range).unwrap_or_else(|whole| whole),
            false => id,
        };
        index::release(id.node());
        if marked {
            ids.push(id);
        }
    }
    ids
}

fn volatile_ids(range: PageRange) -> Vec<NodeId> {
    if !gate::installed() {
        return Vec::new();
    }
    let index = index::lock();
    index.overlapping(range).into_iter().filter(|id| id.node().load().pins() == 0).collect()
}

/// Makes the range non-volatile and drops all that tenure knows of it, so that the program may unmap
/// it or use it for something else; the next [`mark`] checks it anew.
///
/// # Errors
/// As [`unmark`].
///
/// # Safety
/// As [`mark`].
pub unsafe fn forget(addr: *mut u8, len: usize) -> Result<()> {
    let range = PageRange::check("forget", addr, len)?;
    let _ = unmark_range(addr, len, &mut |_| {})?;
    let mut index = index::lock();
    for id in index.overlapping(range) {
        index::hold(id);
        let id = index.cut(id, range).unwrap_or_else(|whole| whole);
        index.remove(id);
    }
    Ok(())
}

/// Drops all that tenure knows of a range that is being unmapped, without taking its pages back. `true`:
/// part of it is watched by tenure's own userfaultfd, which no event of the kernel's goes to.
pub(crate) fn forget_unmapped(range: PageRange) -> bool {
    if !gate::installed() || !index::any() {
        return false;
    }
    let mut watched = false;
    let mut index = index::lock();
    for id in index.overlapping(range) {
        index::hold(id);
        let id = index.cut(id, range).unwrap_or_else(|whole| whole);
        watched |= id.node().is(flag::REGISTERED);
        index.remove(id);
    }
    watched
}

/// Whether any page of the range is volatile. What locks memory asks this first.
pub fn is_volatile(addr: *const u8, len: usize) -> bool {
    PageRange::check("is_volatile", addr, len).is_ok_and(|range| !volatile_ids(range).is_empty())
}

/// What a failed check means for the caller.
fn explain(call: &'static str, range: PageRange, unfit: &Unfit) -> Error {
    let error = |kind, why: String, remedy: &'static str| Error::new(kind, call, why, remedy);
    match unfit {
        Unfit::Hole(at) => error(
            ErrorKind::NotMapped,
            format!("nothing is mapped at {at:#x}"),
            "pass only mapped memory",
        ),
        Unfit::Locked => error(
            ErrorKind::Locked,
            "part of it is locked in memory, so the kernel may not take it".into(),
            "munlock it first, or leave it out of mlockall",
        ),
        Unfit::Shared(at) => error(
            ErrorKind::WrongMapping,
            format!("the memory at {at:#x} is mapped shared, and the kernel discards private anonymous memory only"),
            "use MAP_PRIVATE|MAP_ANONYMOUS memory",
        ),
        Unfit::File(at, inode) => error(
            ErrorKind::WrongMapping,
            format!("the memory at {at:#x} belongs to a file, memfd or device (inode {inode})"),
            "use MAP_PRIVATE|MAP_ANONYMOUS memory; file pages are discarded by the kernel anyway",
        ),
        Unfit::Protection(at) => error(
            ErrorKind::WrongMapping,
            format!("the memory at {at:#x} is not both readable and writable"),
            "mprotect it to PROT_READ|PROT_WRITE first",
        ),
        Unfit::Unknown(errno) => {
            Error::system(call, "looking up the mapping in /proc/self/maps", *errno)
        }
    }
    .on(range.start, range.len())
}

fn refused(call: &'static str, range: PageRange, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Wanted => Error::new(
            ErrorKind::NotMarked,
            call,
            "another thread unmarked it meanwhile",
            "mark it again",
        ),
        Refusal::InsideHugePage => Error::new(
            ErrorKind::WrongMapping,
            call,
            "it is part of a huge page that is in use otherwise",
            "mark whole huge pages, or the neighbouring memory too",
        ),
        Refusal::Shared => Error::system(
            call,
            "not tried: a process made by fork still shares the pages; the call",
            rustix::io::Errno::BUSY,
        ),
        Refusal::Kernel(errno) => Error::system(call, "madvise(MADV_FREE)", errno),
    }
    .on(range.start, range.len())
}
