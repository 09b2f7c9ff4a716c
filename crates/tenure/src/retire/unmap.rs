//! Unmapping a range with the meaning of munmap(2), part by part.
//!
//! The mappings of the range determine its [`Class`], and the class determines the work. Every
//! address is unmapped once, in ascending order: as soon as a part is unmapped, another thread's
//! new mapping may be there.

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
    /// Moved to a hidden place. Its memory is given back later.
    Moved,
}

/// The class of a range, by its mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Each mapping may be unmapped by itself. `movable`: one of them may be moved away, if a
    /// worker runs and there is no limit.
    Parts { movable: bool },
    /// The kernel will refuse to unmap it.
    Refused,
    /// The kernel does not tell whether it would unmap the range.
    Unclear,
}

/// Unmaps the range.
pub(super) fn unmap(range: PageRange, known: Known, least: usize) -> Result<Way, Errno> {
    let is_small = range.len() < least;
    // If nothing is marked or locked, looking at the mappings of a small range costs more than it
    // gains.
    if is_small && !forget::any_marks() && !forget::may_be_locked(range) {
        return whole(range);
    }
    forget::may_forget(range)?;
    let mut lister = Lister::new();
    match classify(range, &mut lister, known) {
        Class::Refused => refused(range),
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

/// Forgets the marks and locks first: as soon as the range is unmapped another thread may map, mark
/// and lock memory there.
fn whole(range: PageRange) -> Result<Way, Errno> {
    let Some(forgotten) = forget::forget(range) else { return refused(range) };
    by_the_kernel(range).inspect_err(|_| forgotten.stays(&[range]))
}

/// Marks and locks stay as they are. (If another thread has changed the mappings since, the kernel may
/// unmap the range after all.)
fn refused(range: PageRange) -> Result<Way, Errno> {
    let way = by_the_kernel(range)?;
    forget::forget_unmapped(range);
    Ok(way)
}

fn by_the_kernel(range: PageRange) -> Result<Way, Errno> {
    // SAFETY: the caller of `munmap` promises that nothing refers to the range, and this is the
    // only call for these addresses.
    unsafe { detach::unmap(range.start, range.len()) }?;
    add(&COUNTERS.retired_plain_bytes, range.len() as u64);
    Ok(Way::Plain)
}

/// munmap(2) does all or nothing: a range with a sealed mapping in it, or whose ends cut a huge
/// page, stays as it is. So this first probes every mapping, by calls that change nothing. (They
/// may split a mapping at the ends of the range, which the unmapping does in any case.)
///
/// Not inlined, like [`by_parts`]: the stack of one is free before the other runs. A thread may have
/// 16 KiB of stack, and a signal handler that unmaps, too, may interrupt this.
#[inline(never)]
fn classify(range: PageRange, lister: &mut Lister, known: Known) -> Class {
    let look = Look::at(range, lister, known);
    let movable = look.movable;
    match look.stop {
        Some(Stop::Unlisted) => Class::Unclear,
        Some(Stop::Answered { errno, mapping }) => match errno {
            // The kernel cannot probe a mapping. If the range is one piece, the error for its first
            // slice is the error for all of it.
            _ if !detach::mremap_works() => match look.is_one_piece {
                true => Class::Parts { movable: false },
                false => Class::Unclear,
            },
            Errno::PERM => Class::Refused,
            // The range cuts a huge page, if the kernel accepts the mapping's own start. Before
            // 5.16 it cannot probe any part of hugetlbfs.
            Errno::INVAL if detach::may_be_unmapped_from(mapping).is_ok() => Class::Refused,
            _ => Class::Unclear,
        },
        None => match look.pieces {
            0 => Class::Unclear,
            // One of them may be sealed. Before `prepare` tenure does not know whether the probe
            // finds seals.
            2.. if !detach::seals_are_seen() => {
                if movable && !service::is_ready() {
                    service::want_keeper();
                }
                Class::Unclear
            }
            _ if look.ends_inside(range, lister) => Class::Parts { movable },
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
    /// The end of the mappings that were found.
    end: usize,
    stop: Option<Stop>,
}

/// Why a look ended early.
enum Stop {
    /// `/proc` cannot be read any more.
    Unlisted,
    /// The kernel returned this error for the mapping that begins at `mapping`: a part of it may
    /// not be unmapped, or the kernel does not tell.
    Answered { errno: Errno, mapping: usize },
}

impl Look {
    fn at(range: PageRange, lister: &mut Lister, known: Known) -> Look {
        let mut look =
            Look { pieces: 0, is_one_piece: false, movable: false, end: range.start, stop: None };
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

    /// munmap(2) refuses a range that ends past the address space. A range that ends in a hole is
    /// inside if another mapping lies above it; that is mostly the stack.
    fn ends_inside(&self, range: PageRange, lister: &mut Lister) -> bool {
        let top = isize::MAX as usize;
        self.end >= range.end
            || matches!(lister.at_or_after(range.end), Ok(Some(above)) if above.mapping.end <= top)
    }
}

#[inline(never)]
pub(super) fn class(range: PageRange) -> Class {
    classify(range, &mut Lister::new(), Known::Nothing)
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
        // The queue's lock ensures that one thread at a time reserves a place: see `Hidden::take`.
        true => queue::lock_unless_forking().and_then(|_queue| Hidden::reserve_like(range).ok()),
        false => None,
    };
    // Before the first part is unmapped.
    let Some(forgotten) = forget::forget(range) else { return refused(range) };
    let mut slices = Slices { run: None };
    let mut at = range.start;
    let way = each_part(range, lister, &mut at, &mut slices, |found, piece| {
        let place = hidden.as_mut().filter(|_| is_movable(found, piece, known));
        place.is_some_and(|place| move_away(piece, place, forgotten.is_watched()))
    });
    if way.is_err() {
        // What lies between the two was moved away.
        let rest = PageRange { start: at, end: range.end };
        match slices.run {
            Some(run) => forgotten.stays(&[run, rest]),
            None => forgotten.stays(&[rest]),
        }
    }
    way
}

/// Unmaps the mappings of the range in ascending order, those that `move_away` does not move in slices.
/// After an error the parts from `at` on, and the run of `slices`, are still mapped.
fn each_part(
    range: PageRange,
    lister: &mut Lister,
    at: &mut usize,
    slices: &mut Slices,
    mut move_away: impl FnMut(&Listed, PageRange) -> bool,
) -> Result<Way, Errno> {
    let mut way = Way::InSlices;
    while *at < range.end {
        // If the mappings cannot be listed any more, the rest goes in one call: nothing of it was
        // changed.
        let Ok(found) = lister.at_or_after(*at) else {
            slices.flush()?;
            by_the_kernel(PageRange::new(*at, range.end))?;
            break;
        };
        let Some(found) = found else { break };
        let Some(piece) = overlap(&found, range, *at) else { break };
        // Pieces before it in slices may be unmapped later than it: no thread can see the order.
        match move_away(&found, piece) {
            true => way = Way::Moved,
            false => slices.extend(piece)?,
        }
        *at = piece.end;
    }
    slices.flush()?;
    Ok(way)
}

/// Whether memory may be given back later at all: the worker runs, and no call that the program may
/// make meanwhile fails because of it.
fn quick_is_possible() -> bool {
    service::is_served()
        && !fork::missed()
        && !limits::address_space_is_limited()
        && !bound::commit_is_limited()
}

/// `false`: the piece stays in its place.
fn move_away(piece: PageRange, place: &mut Hidden, watched_by_us: bool) -> bool {
    // Another owner's userfaultfd watches the piece. That owner must get the event of a munmap, not
    // of a move.
    if !watched_by_us && watched::is_watched(piece.start, place.unreadable(piece)) {
        return false;
    }
    let Some(mut queue) = queue::lock_unless_forking() else { return false };
    if !queue.has_room() {
        return false;
    }
    // SAFETY: the caller of `munmap` promises that nothing refers to the range. The piece was
    // listed as part of one mapping, and pieces come in ascending order. While this thread holds
    // the queue's lock no fork runs, and no other thread reserves a place.
    let Ok(there) = (unsafe { place.take(piece) }) else { return false };
    // No fork runs until this is done. If the kernel refuses, children that are forked before the
    // teardown get copies.
    let _ = detach::keep_from_children(there);
    detach::name(there);
    queue.add(there);
    true
}

/// Neighbouring pieces that are unmapped in slices.
struct Slices {
    /// What is still mapped of them.
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
            // SAFETY: the caller of `munmap` promises that nothing refers to the range. Each
            // address is unmapped once: a slice that was unmapped is not tried again.
            let unmap = || unsafe { detach::unmap(slice.start, slice.len()) };
            // Parts are gone already, so if the kernel lacked memory for this slice the call is
            // made once more.
            unmap().or_else(|_| unmap())
        })
        .map_err(|(errno, rest)| {
            self.run = Some(rest);
            errno
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, PageSize};
    use crate::os::page_size;
    use tenure_testkit::{in_child, skip, this_test};

    /// Another thread may have mapped its own memory in between by then.
    #[test]
    fn what_lies_between_two_pieces_stays_mapped() {
        in_child(this_test!(), &[], || {
            let page = page_size();
            let mut map = Mapping::anonymous_with(5 * page, PageSize::System).unwrap();
            map.as_mut_slice().fill(7);
            let at = map.as_ptr() as usize;
            std::mem::forget(map);
            let is_mapped = |index: usize| {
                let mut resident = 0;
                let address = (at + index * page) as *mut _;
                // SAFETY: the kernel checks the address, and writes a byte for its one page.
                unsafe { libc::mincore(address, page, &mut resident) == 0 }
            };
            let mut slices = Slices { run: None };
            for index in [0, 1, 3] {
                let start = at + index * page;
                slices.extend(PageRange::new(start, start + page)).unwrap();
            }
            slices.flush().unwrap();
            assert_eq!([0, 1, 2, 3, 4].map(is_mapped), [false, false, true, false, true]);
        });
    }

    /// Also where it consists of several mappings: tenure does not know yet whether it would see
    /// that one of them is sealed.
    #[test]
    fn a_range_that_could_have_been_moved_makes_the_worker_wanted() {
        in_child(this_test!(), &[], || {
            if !detach::mremap_works() {
                skip!("the kernel does not tell what may be unmapped");
            }
            let len = 8 << 20;
            let mut map = Mapping::anonymous_with(2 * len, PageSize::System).unwrap();
            map.as_mut_slice().fill(7);
            let at = map.as_ptr() as usize;
            std::mem::forget(map);
            // SAFETY: the mapping is this test's, and nothing uses it.
            assert_eq!(unsafe { libc::mprotect(at as *mut _, len, libc::PROT_READ) }, 0);
            assert!(!service::wants_keeper());
            unmap(PageRange::new(at, at + 2 * len), Known::Nothing, len).unwrap();
            assert!(service::wants_keeper());
        });
    }
}
