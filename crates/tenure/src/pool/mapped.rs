//! The pool behind a program's `mmap` and `munmap`: what a launcher needs.
//!
//! **For** launchers and allocators. **Not for** programs: use [`Buffer`](super::Buffer) or
//! [`alloc`](super::alloc).
//!
//! ```
//! use tenure::pool::mapped;
//! let at = mapped::map(1 << 20, 4096).expect("there is room").as_ptr() as usize;
//! // SAFETY: it is not used again.
//! assert_eq!(unsafe { mapped::unmap(at, 1 << 20) }, mapped::Unmapped::Done);
//! ```
//!
//! A run is zeroed and page-aligned, as what `mmap` returns. When the program unmaps all of it at
//! once, it goes back to the pool, and may not be accessed until it has another owner (unless
//! [`keep_accessible`] allows it). Before any other call on it, or on addresses that the pool holds
//! free, call [`let_go`]: the run leaves the pool, and the part that the program does not have is
//! unmapped. A `munmap` of a part does so, too. So such a call does what it does without the pool,
//! and no later owner of the run inherits its effect. The pool takes the addresses again when all
//! of them are free.
//!
//! The pool does not see system calls that the program makes by itself. Memory that was locked,
//! sealed, protected or unmapped in part by them is found when it is unmapped whole. An advice
//! (`MADV_DONTFORK`) is not found.
//!
//! No call here allocates, creates a thread, or changes `errno`. None waits for a fork of another
//! thread's (`os::fork::NoWait`): while one is under way `map` returns `None`, and what is unmapped
//! goes to a list without a lock.

#![allow(unsafe_code, reason = "stands in for mmap(2) and munmap(2)")]

mod missing;

pub use missing::drop_zeros;

use super::reservation::{self, Reservation, Spot};
use super::run::{flag, state};
use super::settings::{settings, HugePages};
use super::{central_list, free_run, given_up, leave, lookup, resize, split};
use crate::os::{arena, mapping_list, page_size};
use crate::range::PageRange;
use crate::runtime::fork::NoWait;
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often this thread looks at a run that another thread holds.
const MOST_WAITS: usize = 1000;
/// At most so many fresh runs leave the pool as others do. Where a call names addresses beyond
/// them, the pool hands out no more fresh runs.
const NEXT_RUNS: u32 = 64;

/// The program has mapped something at an address of its own choice, where no run is so far.
/// For the whole process, as the pool is.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Returns a run as `mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS)` would:
/// zeroed, at a multiple of `align` (a power of two; at least a page). `None`: ask the kernel.
///
/// ```
/// use tenure::pool::mapped;
/// if let Some(at) = mapped::map(1 << 20, 4096) {
///     // SAFETY: it is not used again.
///     unsafe { mapped::unmap(at.as_ptr() as usize, 1 << 20) };
/// }
/// ```
///
/// # Cost
/// As [`alloc`](super::alloc) with zeroing, and the opening of the run.
#[doc(alias = "mmap")]
pub fn map(len: usize, align: usize) -> Option<NonNull<u8>> {
    let _no_wait = NoWait::quietly();
    let len = len.checked_next_multiple_of(page_size())?;
    loop {
        let at = super::alloc(len, align.max(page_size()), true)?;
        let (reservation, spot) = lookup::find(at.as_ptr() as usize)?;
        let run = reservation.run(spot);
        if !run.is(flag::MOVED) {
            run.set(flag::MAPPED);
            return Some(at);
        }
        // The kernel sees several mappings here, and mremap would report that.
        run.set(flag::TAINTED);
        // SAFETY: allocated above, and no other thread knows it. The flag makes `free` map it anew.
        unsafe { super::free(at) };
    }
}

/// Returns whether the address lies in a run that [`map`] handed out. A pointer into such a run is
/// not this pool's to free: it belongs to the allocator that made the mapping.
///
/// ```
/// use tenure::pool::mapped;
/// let run = mapped::map(1 << 20, 4096).expect("there is room");
/// assert!(mapped::holds(run.as_ptr() as usize));
/// ```
pub fn holds(addr: usize) -> bool {
    lookup::find(addr).is_some_and(|(reservation, spot)| {
        let run = reservation.run(spot);
        run.is(flag::MAPPED) && run.state() == state::IN_USE
    })
}

/// Does `mremap(addr, old_len, new_len, MREMAP_MAYMOVE)` for a run of [`map`] that grows: in place
/// where it has the room, otherwise by a copy of up to 512 KiB to another run. New bytes read as
/// zeros. `None`: it is not the whole of such a run, or there is no room, or the kernel moves its
/// page tables as quickly. Nothing has changed then.
///
/// ```
/// use tenure::pool::mapped;
/// let at = mapped::map(100_000, 4096).expect("there is room").as_ptr() as usize;
/// // SAFETY: nothing refers to the old address.
/// match unsafe { mapped::resize(at, 100_000, 200_000) } {
///     Some(at) => assert!(mapped::holds(at.as_ptr() as usize)),
///     None => println!("make the plain call"),
/// }
/// ```
///
/// # Cost
/// As [`realloc`](super::realloc).
///
/// # Safety
/// As for `mremap(2)`: nothing uses the old address any more if the run moves.
#[doc(alias = "mremap")]
pub unsafe fn resize(addr: usize, old_len: usize, new_len: usize) -> Option<NonNull<u8>> {
    let _no_wait = NoWait::quietly();
    let page = page_size();
    let new_len = new_len.checked_next_multiple_of(page).filter(|len| *len > 0)?;
    let (reservation, spot) = lookup::find(addr)?;
    let run = reservation.run(spot);
    let whole = run.state() == state::IN_USE
        && run.is(flag::MAPPED)
        && lookup::start_of(reservation, spot) == addr
        && run.size() == old_len.checked_next_multiple_of(page)?;
    let room = reservation.area(spot.class).range_of(spot.index).end - addr;
    if !whole || new_len > room && run.size() > resize::COPY_UP_TO {
        return None;
    }
    // SAFETY: the range is a whole run; nothing uses its old address if it moves.
    let at = unsafe { super::realloc(NonNull::new(addr as *mut u8)?, new_len, page, true) }?;
    if let Some((reservation, spot)) = lookup::find(at.as_ptr() as usize) {
        reservation.run(spot).set(flag::MAPPED);
    }
    Some(at)
}

/// The result of [`unmap`].
///
/// ```
/// use tenure::pool::mapped::{unmap, Unmapped};
/// let memory = vec![0_u8; 1];
/// let page = memory.as_ptr() as usize & !4095;
/// // SAFETY: the page is not the pool's, so nothing is unmapped.
/// assert_eq!(unsafe { unmap(page, 4096) }, Unmapped::NotOurs);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unmapped {
    /// No page of the range is the pool's: call `munmap`.
    NotOurs,
    /// All that was mapped in the range is unmapped, whether the pool's or not.
    Done,
    /// It failed as `munmap` would have, with this errno.
    Failed(i32),
}

/// Does `munmap` for a range that may lie in the pool in whole or in part. Unlike
/// [`free`](super::free) it takes any range that `munmap` takes, also with parts that are unmapped
/// already.
///
/// ```
/// use tenure::pool::mapped::{map, unmap, Unmapped};
/// let at = map(1 << 20, 4096).expect("there is room").as_ptr() as usize;
/// // SAFETY: it is not used again.
/// assert_eq!(unsafe { unmap(at, 1 << 20) }, Unmapped::Done);
/// ```
///
/// # Cost
/// System calls that close the run, unless [`keep_accessible`] spares them.
///
/// # Safety
/// As for `munmap(2)`: nothing uses the range any more.
#[doc(alias = "munmap")]
pub unsafe fn unmap(addr: usize, len: usize) -> Unmapped {
    let _no_wait = NoWait::quietly();
    let Some(reservation) = reservation::known() else {
        return Unmapped::NotOurs;
    };
    let Some(range) = whole_pages(addr, len) else {
        // munmap reports the error.
        return Unmapped::NotOurs;
    };
    let ours = reservation.range;
    let inside = PageRange { start: range.start.max(ours.start), end: range.end.min(ours.end) };
    if inside.start >= inside.end {
        return Unmapped::NotOurs;
    }
    for (start, end) in [(range.start, inside.start), (inside.end, range.end)] {
        if start < end {
            // SAFETY: nothing uses the range any more, and this end is not the pool's.
            if let Err(errno) = unsafe { arena::unmap(start, end - start) } {
                return Unmapped::Failed(errno.raw_os_error());
            }
        }
    }
    let mut result = Unmapped::Done;
    pieces(reservation, inside, |piece| {
        let done = match piece {
            // SAFETY: nothing uses the range any more, of which this is a part.
            Piece::Run(spot, part) => unsafe { unmap_part(reservation, spot, part) },
            // SAFETY: nothing uses the range, and the pool has given up its addresses.
            Piece::Gap(gap) if given_up::is_done() => unsafe { arena::unmap(gap.start, gap.len()) },
            // SAFETY: nothing uses the range, and no run of the pool is in the gap.
            Piece::Gap(gap) if holds_foreign() => unsafe { arena::reserve_anew(gap) },
            Piece::Gap(_) => Ok(()),
        };
        if let Err(errno) = done {
            result = Unmapped::Failed(errno.raw_os_error());
        }
    });
    result
}

/// The effect of a call on the range that it names.
///
/// ```
/// use tenure::pool::mapped::{let_go, map, Call};
/// let at = map(1 << 20, 4096).expect("there is room").as_ptr() as usize;
/// let_go(at, 4096, Call::Changes); // before the program's mprotect of its first page
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// It uses the mappings there as they are, or looks for free addresses.
    Uses,
    /// It leaves a state there that lasts: a protection, a lock, an advice.
    Changes,
    /// It puts another mapping there.
    Replaces,
}

/// Tells the pool that the program is about to make a call that names the range. On return the part
/// of the range that the program does not have is not mapped, so the kernel acts as without the
/// pool. No run that the call changes is handed out again.
///
/// A block of [`alloc`](super::alloc) stays the pool's, because it is yet to be freed. If the call
/// changes it, it is mapped anew when it is freed.
///
/// `false`: nothing has changed.
///
/// ```
/// use tenure::pool::mapped::{let_go, map, Call};
/// let at = map(1 << 20, 4096).expect("there is room").as_ptr() as usize;
/// assert!(let_go(at, 4096, Call::Changes)); // the run leaves the pool
/// ```
pub fn let_go(addr: usize, len: usize, call: Call) -> bool {
    let _no_wait = NoWait::quietly();
    // The kernel refuses every call whose range wraps.
    if addr.checked_add(len).is_none_or(|end| end.checked_next_multiple_of(page_size()).is_none()) {
        return false;
    }
    let Some((reservation, range)) = inside(addr, len) else { return false };
    let (mut any, mut left) = (false, NEXT_RUNS);
    pieces(reservation, range, |piece| match piece {
        Piece::Run(spot, part) => any |= let_go_of_part(reservation, spot, part, call),
        Piece::Gap(gap) => any |= let_go_of_gap(reservation, gap, call, &mut left),
    });
    any
}

fn let_go_of_part(reservation: &Reservation, spot: Spot, part: PageRange, call: Call) -> bool {
    let run = reservation.run(spot);
    match run.state() {
        state::LEFT => {
            leave::wait();
            return false;
        }
        state::IN_USE => {
            let live = lookup::live(reservation, spot);
            if !run.is(flag::MAPPED) {
                let changed = call != Call::Uses && part.start < live.end && live.start < part.end;
                if changed {
                    run.set(flag::TAINTED);
                }
                return changed;
            }
            if call == Call::Uses && part.start >= live.start && part.end <= live.end {
                return false;
            }
        }
        _ => {}
    }
    leave::any(reservation, spot);
    true
}

/// Lets go of addresses that no run has had. At most `left` fresh runs leave the pool: otherwise
/// each run in the terabytes that a program may name would become a hole.
fn let_go_of_gap(reservation: &Reservation, gap: PageRange, call: Call, left: &mut u32) -> bool {
    if given_up::is_done() {
        return false;
    }
    let mut at = gap.start;
    while at < gap.end {
        let Some(class) = reservation.is_next(at, *left) else { break };
        let Some(spot) = reservation.fresh(class) else { break };
        *left = left.saturating_sub(1);
        reservation.run(spot).set_state(state::MOVING);
        let all = reservation.area(class).range_of(spot.index);
        if all.end <= gap.start {
            central_list::put(reservation, spot, state::RETURNED);
        } else {
            leave::whole(reservation, spot);
            at = all.end;
        }
    }
    if at < gap.end && call == Call::Replaces {
        FOREIGN.store(true, Ordering::Relaxed);
        // Otherwise `alloc` would hand out the program's next mapping there as a fresh run.
        reservation.close(PageRange::new(at, gap.end));
    }
    true
}

/// Tells the pool that the kernel has refused the call that [`let_go`] announced. The call was to
/// replace the mappings in the range.
///
/// ```
/// use tenure::pool::mapped::{let_go, map, was_refused, Call};
/// let at = map(1 << 20, 4096).expect("there is room").as_ptr() as usize;
/// let_go(at, 4096, Call::Replaces);
/// was_refused(at, 4096); // the program's mmap with MAP_FIXED has failed
/// ```
#[doc(alias = "MAP_FIXED")]
pub fn was_refused(addr: usize, len: usize) {
    let Some((reservation, range)) = inside(addr, len) else { return };
    pieces(reservation, range, |piece| match piece {
        Piece::Gap(gap) if !given_up::is_done() => reservation.reopen(gap),
        _ => {}
    });
}

/// Sets whether a run that was unmapped stays accessible until it has another owner (default: no).
/// If it does, a stray access reads or changes a free run instead of raising SIGSEGV, and memory
/// that the program has locked or sealed by system calls of its own is not found. It spares three
/// system calls a mapping: 7 µs at 64 KiB, 26 µs at 1 MiB, and 600 µs at 16 MiB (100 µs with huge
/// pages).
///
/// ```
/// tenure::pool::mapped::keep_accessible(true); // as `tenure run --unmapped=open` does
/// ```
pub fn keep_accessible(yes: bool) {
    leave::keep_accessible(yes);
}

/// Tells the pool that the program is about to ask for huge pages in a part of its run. The advice
/// stays while the run has pages. `false`: the range is not part of one run, or there are too many
/// such runs.
///
/// ```
/// use tenure::pool::mapped;
/// let at = mapped::map(4 << 20, 4096).expect("there is room").as_ptr() as usize;
/// let stays = mapped::may_have_huge_pages(at, 4 << 20);
/// # let _ = stays;
/// ```
#[doc(alias = "MADV_HUGEPAGE")]
pub fn may_have_huge_pages(start: usize, len: usize) -> bool {
    let Some((reservation, spot)) = lookup::find(start) else { return false };
    let (area, run) = (reservation.area(spot.class), reservation.run(spot));
    let inside =
        start.checked_add(len).is_some_and(|end| end <= reservation.start(spot) + area.stride);
    if !inside || run.state() != state::IN_USE {
        return false;
    }
    if run.is(flag::ADVISED) || area.huge > 0 && settings().huge_pages == HugePages::Auto {
        return true;
    }
    let counted = split::count_parted();
    if counted {
        run.set(flag::ADVISED);
    }
    counted
}

/// Returns whether a range begins or ends among the addresses that the pool has reserved, whoever has them by now. The
/// kernel does not count what is mapped there, and joins only mappings that are counted alike.
///
/// ```
/// use tenure::pool::mapped;
/// let run = mapped::map(1 << 20, 4096).expect("there is room").as_ptr() as usize;
/// assert!(mapped::is_among_runs(run, 4096));
/// # // SAFETY: nothing refers to the run.
/// # unsafe { mapped::unmap(run, 1 << 20) };
/// assert!(!mapped::is_among_runs(&raw const run as usize, 8));
/// ```
///
/// # Cost
/// A few loads.
pub fn is_among_runs(addr: usize, len: usize) -> bool {
    reservation::holds(addr) || reservation::holds(addr.saturating_add(len.max(1) - 1))
}

/// Returns whether any part of the range is the pool's. Runs in it may have left the pool, and
/// where the pool has given up addresses ([`give_up_addresses`](super::give_up_addresses)) other
/// mappings may lie in it.
///
/// ```
/// use tenure::pool::mapped;
/// let at = mapped::map(1 << 20, 4096).expect("there is room").as_ptr() as usize;
/// assert!(mapped::touches(at, 4096));
/// ```
pub fn touches(addr: usize, len: usize) -> bool {
    let mut any = false;
    if let Some((reservation, range)) = inside(addr, len) {
        pieces(reservation, range, |piece| {
            any |= match piece {
                Piece::Run(spot, _) if reservation.run(spot).state() == state::LEFT => {
                    // The caller makes no other call to the pool.
                    leave::wait();
                    false
                }
                Piece::Run(..) => true,
                Piece::Gap(_) => !given_up::is_done(),
            }
        });
    }
    any
}

/// Returns how many bytes from `addr` on, at most `len`, belong to one mapping of the kernel's.
/// Returns `len` if nothing is mapped there, or if the kernel does not tell. The kernel's own call
/// then reports the error.
///
/// ```
/// let memory = tenure::Mapping::anonymous(8192)?;
/// assert_eq!(tenure::pool::mapped::same_mapping(memory.as_ptr() as usize, 8192), 8192);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// About 2 µs.
pub fn same_mapping(addr: usize, len: usize) -> usize {
    let found = mapping_list::at_or_after(addr);
    match found {
        Ok(Some(found)) if found.mapping.start <= addr => len.min(found.mapping.end - addr),
        _ => len,
    }
}

/// Whether the program may have mapped something among the addresses that no run has.
pub(super) fn holds_foreign() -> bool {
    FOREIGN.load(Ordering::Relaxed)
}

/// A part of a range.
enum Piece {
    /// A part of a run that was used before.
    Run(Spot, PageRange),
    /// Addresses that no run has had.
    Gap(PageRange),
}

/// Calls `each` for the parts of the range, inside the reservation, in order.
fn pieces(reservation: &Reservation, range: PageRange, mut each: impl FnMut(Piece)) {
    let mut at = range.start;
    reservation.over(range, |spot, part| {
        if at < part.start {
            each(Piece::Gap(PageRange { start: at, end: part.start }));
        }
        at = part.end;
        each(Piece::Run(spot, part));
    });
    if at < range.end {
        each(Piece::Gap(PageRange { start: at, end: range.end }));
    }
}

fn whole_pages(addr: usize, len: usize) -> Option<PageRange> {
    let page = page_size();
    let end = addr.checked_add(len.checked_next_multiple_of(page)?)?;
    (addr % page == 0 && addr < end).then_some(PageRange { start: addr, end })
}

/// The pages of the range whose addresses are the pool's; `None`: none of them is.
fn inside(addr: usize, len: usize) -> Option<(&'static Reservation, PageRange)> {
    let reservation = reservation::known()?;
    let page = page_size();
    let end = addr.saturating_add(len).checked_next_multiple_of(page).unwrap_or(usize::MAX);
    let range = PageRange {
        start: (addr / page * page).max(reservation.range.start),
        end: end.min(reservation.range.end),
    };
    (range.start < range.end).then_some((reservation, range))
}

/// Unmaps a part of one run.
///
/// # Safety
/// Nothing uses the part any more.
unsafe fn unmap_part(reservation: &Reservation, spot: Spot, part: PageRange) -> Result<(), Errno> {
    let run = reservation.run(spot);
    // A run of this state is usually on its way out.
    for _ in 0..MOST_WAITS {
        if run.state() != state::MOVING {
            break;
        }
        leave::wait();
        crate::os::futex::yield_now();
    }
    match run.state() {
        state::IN_USE => {}
        state::LEFT => {
            leave::wait();
            // SAFETY: nothing uses the part any more, and it has left the pool.
            return unsafe { arena::unmap(part.start, part.len()) };
        }
        // It is unmapped already.
        _ => return Ok(()),
    }
    let live = lookup::live(reservation, spot);
    let cut = PageRange { start: part.start.max(live.start), end: part.end.min(live.end) };
    if cut.start >= cut.end {
        return Ok(());
    }
    let is_whole = cut == live;
    let is_mapping = run.is(flag::MAPPED);
    if !is_mapping && run.state() != state::IN_USE {
        // The run has left the pool since, and has lost its flags.
        // SAFETY: the caller promises that nothing uses the part any more.
        return unsafe { unmap_part(reservation, spot, part) };
    }
    if is_mapping {
        if is_whole && leave::is_as_it_was(reservation, spot) {
            if run.claim(state::IN_USE, state::MOVING).is_err() {
                // Another thread changes the run, too: it unmaps the run or makes it leave the
                // pool.
                // SAFETY: the caller promises that nothing uses the part any more.
                return unsafe { unmap_part(reservation, spot, part) };
            }
            if leave::close(reservation, spot) {
                free_run::put(reservation, spot);
                return Ok(());
            }
            // The run is sealed in part, or there are too many mappings: munmap reports the error.
            let all = reservation.area(spot.class).range_of(spot.index);
            // SAFETY: the run is this thread's, and opening it only adds access. If munmap fails
            // the program gets back the pages that were closed.
            let _ = unsafe { arena::open(all) };
            run.set_state(state::IN_USE);
        }
        leave::any(reservation, spot);
        // SAFETY: nothing uses the part any more, and it has left the pool.
        return unsafe { arena::unmap(part.start, part.len()) };
    }
    if is_whole {
        free_run::claim("munmap", live.start, reservation, spot, run);
        free_run::put(reservation, spot);
        return Ok(());
    }
    // A part of an allocation that the program has yet to free.
    run.set(flag::TAINTED);
    // SAFETY: nothing uses the part. The call replaces it in one step, so a thread that races with
    // it finds data or SIGSEGV.
    unsafe { arena::reserve_anew(cut) }
}
