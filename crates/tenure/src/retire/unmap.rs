//! Unmapping a range with the meaning of munmap(2), part by part.
//!
//! A look at the range's mappings says which [`Class`] it is of, and the class says what is done. Every
//! address is dealt with once, in ascending order: as soon as a part is gone, another thread's new mapping may
//! be there.

#![allow(unsafe_code, reason = "unmaps what the program gives up")]

use super::kind::{is_movable, Known};
use super::{bound, forget, queue, service, slice};
use crate::os::detach::Hidden;
use crate::os::mapping_list::{Listed, Lister};
use crate::os::{detach, limits, watched};
use crate::range::PageRange;
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::fork;
use rustix::io::Errno;

/// How a range was unmapped.
///
/// ```
/// use tenure::retire::{retire, Way};
/// let way = retire(tenure::Mapping::anonymous(64 << 20)?)?;
/// if way == Way::Moved {
///     println!("the worker gives the memory back");
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Way {
    /// By munmap(2) itself.
    Plain,
    /// By munmap(2) in parts, each short enough for the bound on stalls.
    InSlices,
    /// Moved out of sight; its memory follows.
    Moved,
}

/// What a look at the mappings of a range has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Each mapping may go by itself. `movable`: one of them may be moved away, if a worker runs and there is
    /// no limit.
    Parts { movable: bool },
    /// The kernel will refuse to unmap it.
    Refused,
    /// Nothing is known that would help the kernel.
    Unclear,
}

/// Unmaps it.
pub(super) fn unmap(range: PageRange, known: Known, least: usize) -> Result<Way, Errno> {
    let is_small = range.len() < least;
    // Where nothing is marked, a small range is not worth a look.
    if is_small && !forget::any_marks() {
        return whole(range);
    }
    let mut lister = Lister::new();
    match classify(range, &mut lister, known) {
        // Marks and locks stay as they are. (The kernel may not refuse it, if another thread has changed the
        // range since.)
        Class::Refused => {
            let way = by_the_kernel(range)?;
            forget::forget(range);
            Ok(way)
        }
        Class::Parts { movable } if !is_small && lister.restart().is_ok() => {
            let way = by_parts(range, &mut lister, known, movable)?;
            if way == Way::Moved {
                bound::hold_back();
                service::stir();
            }
            Ok(way)
        }
        Class::Parts { .. } | Class::Unclear => whole(range),
    }
}

/// What is known of it is forgotten first: as soon as it is unmapped another thread may map, mark and lock
/// something there.
fn whole(range: PageRange) -> Result<Way, Errno> {
    forget::forget(range);
    by_the_kernel(range)
}

fn by_the_kernel(range: PageRange) -> Result<Way, Errno> {
    // SAFETY: the caller of `munmap` promises that nothing refers to the range, and this is the only call
    // for these addresses.
    unsafe { detach::unmap(range.start, range.len()) }?;
    add(&COUNTERS.retired_plain_bytes, range.len() as u64);
    Ok(Way::Plain)
}

/// munmap(2) does all or nothing: a range with a sealed mapping in it, or whose ends cut a huge page,
/// stays as it is. So every mapping is asked first, by calls that change nothing (but how a mapping that
/// is to be cut in any case is cut up).
///
/// Not inlined, as [`by_parts`]: what one has on the stack is gone before the other's comes. A thread may have 16 KiB of
/// it, and a signal's handler that unmaps, too, may interrupt this.
#[inline(never)]
fn classify(range: PageRange, lister: &mut Lister, known: Known) -> Class {
    let look = Look::at(range, lister, known);
    let movable = look.movable;
    match look.stop {
        Some(Stop::Unlisted) => Class::Unclear,
        Some(Stop::Answered { errno, mapping }) => match errno {
            // No mapping can be asked. Of a range that is one, the first slice gets the kernel's answer for all.
            _ if !detach::mremap_works() => match look.is_one_piece {
                true => Class::Parts { movable: false },
                false => Class::Unclear,
            },
            Errno::PERM => Class::Refused,
            // A cut huge page, if the mapping's own start is answered otherwise: before 5.16 no part of
            // hugetlbfs can be asked.
            Errno::INVAL if detach::may_be_unmapped_from(mapping).is_ok() => Class::Refused,
            _ => Class::Unclear,
        },
        None => match look.pieces {
            0 => Class::Unclear,
            // One of them may be sealed. Before `prepare` it is not known whether the kernel says so.
            2.. if !detach::seals_are_seen() => {
                if movable && !service::is_ready() {
                    service::want_keeper();
                }
                Class::Unclear
            }
            _ if look.ends_inside(range, lister) && !look.is_stuck(range) => {
                Class::Parts { movable }
            }
            _ => Class::Refused,
        },
    }
}

/// The mappings of a range, as far as they were looked at.
struct Look {
    /// Parts of mappings that lie in the range.
    pieces: usize,
    /// The range is one part of one mapping.
    is_one_piece: bool,
    movable: bool,
    /// The range is the middle of a mapping.
    is_middle: bool,
    /// Up to where mappings were found.
    end: usize,
    stop: Option<Stop>,
}

/// Why a look ended early.
enum Stop {
    /// `/proc` cannot be read any more.
    Unlisted,
    /// The kernel says that something of the mapping that begins at `mapping` may not be unmapped, or does not
    /// say it.
    Answered { errno: Errno, mapping: usize },
}

impl Look {
    fn at(range: PageRange, lister: &mut Lister, known: Known) -> Look {
        let mut look = Look {
            pieces: 0,
            is_one_piece: false,
            movable: false,
            is_middle: false,
            end: range.start,
            stop: None,
        };
        while look.end < range.end {
            let Ok(found) = lister.at_or_after(look.end) else {
                look.stop = Some(Stop::Unlisted);
                break;
            };
            let Some(found) = found else { break };
            let Some(piece) = overlap(&found, range, look.end) else { break };
            let is_cut = found.mapping.end > range.end;
            look.pieces += 1;
            look.is_one_piece = look.pieces == 1 && piece == range;
            look.movable |= is_movable(&found, piece, known);
            look.is_middle = is_cut && found.mapping.start < range.start;
            let start = detach::may_be_unmapped_from(piece.start);
            let asked = match is_cut {
                true => start.and_then(|()| detach::may_be_unmapped_from(range.end)),
                false => start,
            };
            if let Err(errno) = asked {
                look.stop = Some(Stop::Answered { errno, mapping: found.mapping.start });
                break;
            }
            look.end = piece.end;
        }
        look
    }

    /// Past the end of the address space munmap(2) refuses all of it. A range that ends in a hole is inside
    /// if something is mapped above it; the stack mostly is.
    fn ends_inside(&self, range: PageRange, lister: &mut Lister) -> bool {
        let top = isize::MAX as usize;
        self.end >= range.end
            || matches!(lister.at_or_after(range.end), Ok(Some(above)) if above.mapping.end <= top)
    }

    /// Unmapping it makes one mapping more, and the process has as many as it may.
    fn is_stuck(&self, range: PageRange) -> bool {
        self.is_middle && detach::seals_are_seen() && detach::cannot_be_split(range)
    }
}

/// Whether nothing in the range is sealed, and its ends cut no huge page.
#[inline(never)]
pub(super) fn all_may_be_unmapped(range: PageRange) -> bool {
    matches!(classify(range, &mut Lister::new(), Known::Nothing), Class::Parts { .. })
}

fn overlap(found: &Listed, range: PageRange, at: usize) -> Option<PageRange> {
    let start = found.mapping.start.max(at);
    let end = found.mapping.end.min(range.end);
    (start < end).then(|| PageRange::new(start, end))
}

#[inline(never)]
fn by_parts(
    range: PageRange,
    lister: &mut Lister,
    known: Known,
    movable: bool,
) -> Result<Way, Errno> {
    let mut hidden = match movable && quick_is_possible() {
        // No two at once: see `Hidden::take`.
        true => queue::lock_unless_forking().and_then(|_queue| Hidden::reserve_like(range).ok()),
        false => None,
    };
    // Before the first of it goes.
    let watched = forget::forget(range);
    let mut slices = Slices { run: None };
    let mut way = Way::InSlices;
    let mut at = range.start;
    while at < range.end {
        // What cannot be listed any more goes as a whole: nothing of it was touched.
        let Ok(found) = lister.at_or_after(at) else {
            slices.flush()?;
            by_the_kernel(PageRange::new(at, range.end))?;
            break;
        };
        let Some(found) = found else { break };
        let Some(piece) = overlap(&found, range, at) else { break };
        let place = hidden.as_mut().filter(|_| is_movable(&found, piece, known));
        // What lies before it in slices may go later than it: the order cannot be seen.
        match place.is_some_and(|place| move_away(piece, place, watched)) {
            true => way = Way::Moved,
            false => slices.extend(piece)?,
        }
        at = piece.end;
    }
    slices.flush()?;
    Ok(way)
}

/// Whether memory may be given back later at all: the worker is there to do it, and nothing that the
/// program may do meanwhile fails for it.
fn quick_is_possible() -> bool {
    service::is_served()
        && !fork::missed()
        && !limits::address_space_is_limited()
        && !bound::commit_is_limited()
}

/// `false`: it is where it was.
fn move_away(piece: PageRange, place: &mut Hidden, watched_by_us: bool) -> bool {
    // Another owner watches it: the kernel is to tell that one of a munmap, not of a move.
    if !watched_by_us && watched::is_watched(piece.start, place.unreadable(piece)) {
        return false;
    }
    let Some(mut queue) = queue::lock_unless_forking() else { return false };
    if !queue.has_room() {
        return false;
    }
    // SAFETY: the caller of `munmap` promises that nothing refers to the range. The piece was listed as part of
    // one mapping, pieces come in ascending order, and the queue's lock keeps forks and other places away.
    let Ok(there) = (unsafe { place.take(piece) }) else { return false };
    // No fork until this is done. Refused, children that are forked before the teardown hold copies.
    let _ = detach::keep_from_children(there);
    detach::name(there);
    queue.add(there);
    drop(queue);
    add(&COUNTERS.retired_moved, 1);
    add(&COUNTERS.retired_moved_bytes, piece.len() as u64);
    true
}

/// Neighbouring pieces that are unmapped in slices.
struct Slices {
    run: Option<PageRange>,
}

impl Slices {
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
        slice::each(run, |slice| {
            // SAFETY: the caller of `munmap` promises that nothing refers to the range, and each address of it
            // is unmapped once: a slice that is gone is not asked for again.
            let unmap = || unsafe { detach::unmap(slice.start, slice.len()) };
            // Parts are gone already, so what the kernel lacked memory for is asked for once more.
            unmap().or_else(|_| unmap())
        })
    }
}
