//! Unmapping a range with the meaning of munmap(2), part by part.
//!
//! Every address is dealt with once, in ascending order: as soon as a part is gone, another thread's new
//! mapping may be there.

use super::{books, bound, records, settings, slice, teardown, Way};
use crate::os::detach::Hidden;
use crate::os::mapping_list::{Listed, Lister};
use crate::os::pagemap::Pagemap;
use crate::os::{detach, limits, mlock, page_size, uffd};
use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::{fork, worker};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Moving costs 10 µs, as much as unmapping 60 to 200 base pages.
const LEAST_MOVED: usize = 4 << 20;

/// Who knows what is in the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Nothing,
    /// A mapping of tenure's own: a memfd in it is nobody else's.
    Own,
}

/// Unmaps it.
pub(super) fn unmap(range: PageRange, known: Known, least: usize) -> Result<Way, Errno> {
    let way = match range.len() < least {
        true if books::any_marks() => carefully(range),
        true => plain(range),
        false => by_parts(range, known),
    };
    if way == Ok(Way::Moved) {
        bound::hold_back();
        super::stir();
    }
    way
}

/// What is known of it is forgotten first: as soon as it is unmapped another thread may map, mark and lock
/// something there.
fn plain(range: PageRange) -> Result<Way, Errno> {
    books::forget(range);
    bare(range)
}

/// For what the kernel will refuse: then marks and locks stay as they are. (It may not, if another thread
/// has changed the range since.)
fn refused(range: PageRange) -> Result<Way, Errno> {
    let way = bare(range)?;
    books::forget(range);
    Ok(way)
}

fn carefully(range: PageRange) -> Result<Way, Errno> {
    match Lister::open().map(|mut lister| look(range, &mut lister, Known::Nothing)) {
        Ok(Look::Refused) => refused(range),
        _ => plain(range),
    }
}

fn bare(range: PageRange) -> Result<Way, Errno> {
    // SAFETY: what the caller of `munmap` promises.
    unsafe { detach::unmap(range.start, range.len()) }?;
    add(&COUNTERS.retired_plain_bytes, range.len() as u64);
    Ok(Way::Plain)
}

fn by_parts(range: PageRange, known: Known) -> Result<Way, Errno> {
    let Ok(mut lister) = Lister::open() else { return plain(range) };
    let movable = match look(range, &mut lister, known) {
        Look::AsOne => return plain(range),
        Look::Refused => return refused(range),
        Look::Parts { movable } => movable,
    };
    if lister.restart().is_err() {
        return plain(range);
    }
    let mut hidden = match movable && quick_is_possible() {
        true => {
            // No two at once: see `Hidden::take`.
            records::lock_unless_forking().and_then(|_records| Hidden::reserve_like(range).ok())
        }
        false => None,
    };
    // Before the first of it goes.
    let watched = books::forget(range);
    let mut work = Work { way: Way::InSlices, run: None };
    let mut at = range.start;
    while at < range.end {
        // What cannot be listed any more goes as a whole: nothing of it was touched.
        let Ok(found) = lister.at_or_after(at) else {
            work.flush()?;
            bare(PageRange::new(at, range.end))?;
            break;
        };
        let Some(piece) = found.as_ref().and_then(|found| overlap(found, range, at)) else { break };
        let place =
            hidden.as_mut().filter(|_| found.is_some_and(|found| is_movable(&found, piece, known)));
        // What lies before it in slices may go later than it: the order cannot be seen.
        if place.is_some_and(|place| move_away(piece, place, watched)) {
            work.way = Way::Moved;
        } else {
            work.extend(piece)?;
        }
        at = piece.end;
    }
    work.flush()?;
    Ok(work.way)
}

enum Look {
    /// To be left to the kernel as one.
    AsOne,
    /// The same, and the kernel will refuse it.
    Refused,
    /// Whether one of them may be moved away, if a worker runs and there is no limit.
    Parts { movable: bool },
}

/// munmap(2) does all or nothing: a range with a sealed mapping in it, or whose ends cut a huge page,
/// stays as it is. So every mapping is asked first, by calls that change nothing (but how a mapping that
/// is to be cut in any case is cut up).
fn look(range: PageRange, lister: &mut Lister, known: Known) -> Look {
    let mut at = range.start;
    let (mut pieces, mut movable, mut middle) = (0, false, false);
    while at < range.end {
        let Ok(found) = lister.at_or_after(at) else { return Look::AsOne };
        let Some(found) = found else { break };
        let Some(piece) = overlap(&found, range, at) else { break };
        pieces += 1;
        movable |= is_movable(&found, piece, known);
        let cut = found.mapping.end > range.end;
        middle = cut && found.mapping.start < range.start;
        let asked = detach::may_be_unmapped_from(piece.start).and_then(|()| {
            if cut {
                detach::may_be_unmapped_from(range.end)
            } else {
                Ok(())
            }
        });
        if let Err(errno) = asked {
            return not_as_parts(errno, found.mapping.start, pieces == 1 && piece == range);
        }
        at = piece.end;
    }
    if pieces > 1 && !detach::seals_are_seen() {
        if movable && !is_ready() {
            WANTED.store(true, Ordering::Relaxed);
        }
        return Look::AsOne;
    }
    if pieces == 0 {
        return Look::AsOne;
    }
    // Past the end of the address space munmap(2) refuses all of it. A range that ends in a hole is inside
    // if something is mapped above it; the stack mostly is.
    let inside = at >= range.end
        || matches!(lister.at_or_after(range.end), Ok(Some(above))
        if above.mapping.end <= isize::MAX as usize);
    let stuck = middle && detach::seals_are_seen() && detach::cannot_be_split(range);
    match inside && !stuck {
        true => Look::Parts { movable },
        false => Look::Refused,
    }
}

/// After a mapping's answer that it may not be unmapped.
fn not_as_parts(errno: Errno, mapping: usize, alone: bool) -> Look {
    if !detach::mremap_works() {
        // One mapping: the first slice gets the kernel's answer for all of it.
        return match alone {
            true => Look::Parts { movable: false },
            false => Look::AsOne,
        };
    }
    match errno {
        Errno::PERM => Look::Refused,
        // A cut huge page, if the mapping's own start is answered otherwise: before 5.16 no part of
        // hugetlbfs can be asked.
        Errno::INVAL if detach::may_be_unmapped_from(mapping).is_ok() => Look::Refused,
        _ => Look::AsOne,
    }
}

/// Whether nothing in the range is sealed, and its ends cut no huge page.
pub(super) fn all_may_be_unmapped(range: PageRange) -> bool {
    Lister::open().is_ok_and(|mut lister| {
        matches!(look(range, &mut lister, Known::Nothing), Look::Parts { .. })
    })
}

fn overlap(found: &Listed, range: PageRange, at: usize) -> Option<PageRange> {
    let start = found.mapping.start.max(at);
    let end = found.mapping.end.min(range.end);
    (start < end).then(|| PageRange::new(start, end))
}

/// Whether memory may be given back later at all: there is somebody to do it, and nothing that the
/// program may do meanwhile fails for it.
fn quick_is_possible() -> bool {
    let served = is_ready() && worker::is_coming();
    WANTED.store(!served, Ordering::Relaxed);
    served && !fork::missed() && !limits::address_space_is_limited() && !bound::commit_is_limited()
}

/// A range could have been moved if a worker had run.
static WANTED: AtomicBool = AtomicBool::new(false);

pub(super) fn wants_keeper() -> bool {
    WANTED.load(Ordering::Relaxed)
}

pub(super) fn no_longer_wants_keeper() {
    WANTED.store(false, Ordering::Relaxed);
}

static READY: AtomicBool = AtomicBool::new(false);

/// Forks are watched, and the worker knows of us.
pub(super) fn set_ready() {
    READY.store(true, Ordering::Release);
}

pub(super) fn is_ready() -> bool {
    READY.load(Ordering::Acquire)
}

/// Whether a mapping is of a kind that may stay for a while without anybody's noticing.
fn is_movable(found: &Listed, piece: PageRange, known: Known) -> bool {
    // A lock is charged until its pages are gone (`VmLck`), and a limit may come to hold meanwhile.
    if piece.len() < LEAST_MOVED || mlock::seen(piece) != Ok(mlock::Seen::Unlocked) {
        return false;
    }
    let (mapping, name) = (&found.mapping, found.name());
    let special = name.starts_with(b"[")
        && !name.starts_with(b"[anon:")
        && !name.starts_with(b"[anon_shmem:");
    if special {
        return false; // the stack, the heap, the kernel's own pages
    }
    if mapping.inode == 0 {
        return !mapping.shared;
    }
    // Shared memory without a name is in nobody else's hands.
    if mapping.shared && name.starts_with(b"/dev/zero (deleted)") {
        return true;
    }
    if known == Known::Own && name.starts_with(b"/memfd:") {
        return true;
    }
    if !settings::files_later() || found.page_size != page_size() {
        return false;
    }
    let kept = [b"/dev/".as_slice(), b"/proc/", b"/sys/", b"/SYSV", b"/[", b"/anon_hugepage"];
    let shm = name.starts_with(b"/dev/shm/");
    name.starts_with(b"/") && (shm || !kept.iter().any(|start| name.starts_with(start)))
}

/// `false`: it is where it was.
fn move_away(piece: PageRange, place: &mut Hidden, watched_by_us: bool) -> bool {
    // Somebody else watches it: the kernel is to tell them of a munmap, not of a move.
    if !watched_by_us && uffd::is_watched(piece.start, place.unreadable(piece)) {
        return false;
    }
    let Some(mut records) = records::lock_unless_forking() else { return false };
    if !records.has_room() {
        return false;
    }
    // SAFETY: what the caller of `munmap` promises; the piece was listed as one mapping.
    let Ok(there) = (unsafe { place.take(piece) }) else { return false };
    // No fork until this is done. Refused, children that are forked before the teardown hold copies.
    let _ = detach::keep_from_children(there);
    detach::name(there);
    records.add(there);
    drop(records);
    add(&COUNTERS.retired_moved, 1);
    add(&COUNTERS.retired_moved_bytes, piece.len() as u64);
    true
}

/// Neighbouring pieces that are unmapped in slices.
struct Work {
    way: Way,
    run: Option<PageRange>,
}

impl Work {
    fn extend(&mut self, piece: PageRange) -> Result<(), Errno> {
        match &mut self.run {
            Some(run) if run.end == piece.start => run.end = piece.end,
            _ => {
                self.flush()?;
                self.run = Some(piece);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Errno> {
        let Some(run) = self.run.take() else { return Ok(()) };
        in_slices(run, |slice| {
            // SAFETY: what the caller of `munmap` promises; each address once.
            unsafe { detach::unmap(slice.start, slice.len()) }
        })
    }
}

/// Calls `work` for the range, slice by slice from its start. What has no pages goes with the slice behind
/// it. A slice may fail where the whole would not: its end cuts a huge page of 1 GiB (`EINVAL`), or a mapping
/// that the whole would not split, and there are `vm.max_map_count` (`ENOMEM`). Then the rest goes as one.
pub(super) fn in_slices(
    range: PageRange,
    mut work: impl FnMut(PageRange) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let pagemap = Pagemap::open().ok();
    let mut at = range.start;
    while at < range.end {
        let rest = PageRange::new(at, range.end);
        let there = pagemap.as_ref().map_or(at, |pagemap| pagemap.first_there(rest));
        let step = slice::bytes();
        let slice = PageRange::new(at, (there / step * step).saturating_add(step).min(range.end));
        let began = Instant::now();
        match work(slice) {
            Ok(()) => {
                teardown::took(slice.end - there.max(at).min(slice.end - 1), began.elapsed());
                add(&COUNTERS.retired_in_slices_bytes, slice.len() as u64);
                at = slice.end;
            }
            Err(Errno::INVAL | Errno::NOMEM) if slice.end < range.end => {
                work(rest)?;
                add(&COUNTERS.retired_in_slices_bytes, rest.len() as u64);
                return Ok(());
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
