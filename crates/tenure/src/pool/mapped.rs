//! What a launcher needs that serves a program's `mmap` and `munmap` from the pool.
//!
//! A run is handed out as `mmap` would: zeroed and page-aligned. Parts of it may be unmapped: they
//! become inaccessible and stay reserved, so that no other mapping can land among the pool's, and the
//! program may map over them again with `MAP_FIXED`. When all of it is unmapped the run goes back to
//! the pool. Whatever changes the state of a mapping for good ([`taint`]) has the run mapped anew before
//! anybody else gets it.
//!
//! One thing is not as with `munmap`: what was unmapped whole stays accessible while the run is free, so
//! a stray access reads or changes a free run instead of raising SIGSEGV.
//!
//! No call here allocates, creates a thread, or changes `errno`. None waits for a fork of another thread's
//! (`os::fork::NoWait`): while one is under way `map` answers `None`, and what is unmapped goes to a list
//! without a lock.

mod missing;

pub use missing::drop_zeros;

use super::run::{flag, state, Run};
use super::settings::{settings, HugePages};
use super::territory::{self, Spot, Territory};
use super::{fault, give, release, take};
use crate::os::mapping_list::Lister;
use crate::os::{arena, page_size};
use crate::range::PageRange;
use crate::runtime::fork::NoWait;
use crate::runtime::lock::{Lock, Rank};
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The program has mapped something where no run is so far, at an address that it made up.
static FOREIGN: AtomicBool = AtomicBool::new(false);

/// Held while a run's parts are looked at or changed; not by who would have to wait for a fork, so each change
/// is atomic by itself.
static PARTS: Lock<()> = Lock::new(Rank::PoolMapped, ());

/// A run for `mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS)`: zeroed, at a
/// multiple of `align` (a power of two; at least a page). `None`: ask the kernel.
pub fn map(len: usize, align: usize) -> Option<NonNull<u8>> {
    let _no_wait = NoWait::here();
    let len = len.checked_next_multiple_of(page_size())?;
    let at = super::alloc(len, align.max(page_size()), true)?;
    mark(at);
    Some(at)
}

fn mark(at: NonNull<u8>) {
    if let Some((territory, spot)) = give::find(at.as_ptr() as usize) {
        territory.run(spot).set(flag::MAPPED);
    }
}

/// Whether the address lies in a run that [`map`] handed out: a pointer into it is not this pool's to
/// free, but that of the allocator which made the mapping.
pub fn holds(addr: usize) -> bool {
    give::find(addr).is_some_and(|(territory, spot)| {
        let run = territory.run(spot);
        run.is(flag::MAPPED) && run.state() == state::IN_USE
    })
}

/// `mremap(addr, old_len, new_len, MREMAP_MAYMOVE)` of a run of [`map`]'s: in place where it has the
/// room, else by moving its page tables to another run. What is new reads as zeros. `None`: not the whole
/// of such a run, or its mapping's state was changed, or there is no room; nothing has changed.
///
/// # Safety
/// As for `mremap(2)`.
pub unsafe fn resize(addr: usize, old_len: usize, new_len: usize) -> Option<NonNull<u8>> {
    let _no_wait = NoWait::here();
    let page = page_size();
    let new_len = new_len.checked_next_multiple_of(page).filter(|len| *len > 0)?;
    let (territory, spot) = give::find(addr)?;
    let run = territory.run(spot);
    let whole = run.state() == state::IN_USE
        && run.is(flag::MAPPED)
        && !run.is(flag::TAINTED)
        && run.parts.load(Ordering::Acquire) == 0
        && give::start_of(territory, spot, run) == addr
        && run.size() == old_len.next_multiple_of(page);
    if !whole {
        return None;
    }
    // SAFETY: the caller's promise.
    let at = unsafe { super::realloc(NonNull::new(addr as *mut u8)?, new_len, page, true) }?;
    mark(at);
    Some(at)
}

/// What [`unmap`] did.
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

/// `munmap` of a range that may lie in the pool in whole or in part. Unlike [`free`](super::free) it
/// takes any range that `munmap` takes, parts that are unmapped already included.
///
/// # Safety
/// As for `munmap(2)`: nothing uses the range any more.
pub unsafe fn unmap(addr: usize, len: usize) -> Unmapped {
    let _no_wait = NoWait::here();
    let Some(territory) = territory::known() else {
        return Unmapped::NotOurs;
    };
    let Some(range) = whole_pages(addr, len) else {
        // munmap says what is wrong with it.
        return Unmapped::NotOurs;
    };
    let ours = territory.range;
    let inside = PageRange { start: range.start.max(ours.start), end: range.end.min(ours.end) };
    if inside.start >= inside.end {
        return Unmapped::NotOurs;
    }
    for (start, end) in [(range.start, inside.start), (inside.end, range.end)] {
        if start < end {
            // SAFETY: the caller's promise; not the pool's.
            if let Err(errno) = unsafe { arena::unmap(start, end - start) } {
                return Unmapped::Failed(errno.raw_os_error());
            }
        }
    }
    let mut result = Unmapped::Done;
    let given_up = release::is_done();
    if given_up || FOREIGN.load(Ordering::Relaxed) {
        territory.gaps(inside, |gap| {
            // SAFETY: the caller's promise; what no run has is reserved, or the program's.
            let gone = unsafe {
                match given_up {
                    true => arena::unmap(gap.start, gap.len()),
                    false => arena::reserve_anew(gap),
                }
            };
            if let Err(errno) = gone {
                result = Unmapped::Failed(errno.raw_os_error());
            }
        });
    }
    territory.over(inside, |spot, part| {
        // SAFETY: the caller's promise.
        if let Err(errno) = unsafe { unmap_part(territory, spot, part) } {
            result = Unmapped::Failed(errno.raw_os_error());
        }
    });
    result
}

/// Tells the pool that the program changes the state of the mappings in the range (protection, locks,
/// NUMA policy, an advice that lasts): a run that the range touches is mapped anew when it is freed.
/// To be called before the change. `false`: the range touches no run in use.
pub fn taint(addr: usize, len: usize) -> bool {
    let mut any = false;
    each_run(addr, len, |run, _| {
        if run.state() == state::IN_USE {
            run.set(flag::TAINTED);
            any = true;
        }
    });
    any
}

/// The program is about to ask for huge pages in a part of its run: the advice stays while the run has pages.
/// `false`: it is no run's part, or there are too many such runs.
pub fn may_have_huge_pages(start: usize, len: usize) -> bool {
    let Some((territory, spot)) = give::find(start) else { return false };
    let (area, run) = (territory.area(spot.class), territory.run(spot));
    let inside =
        start.checked_add(len).is_some_and(|end| end <= territory.start(spot) + area.stride);
    if !inside || run.state() != state::IN_USE {
        return false;
    }
    if run.is(flag::ADVISED) || area.huge > 0 && settings().huge_pages == HugePages::Auto {
        return true;
    }
    let counted = take::count_parted();
    if counted {
        run.set(flag::ADVISED);
    }
    counted
}

/// Whether all of the range is the program's own to map: parts of runs that it has unmapped. Where
/// `MAP_FIXED_NOREPLACE`, or a hint, would find free addresses there, the launcher maps with
/// `MAP_FIXED` instead, after [`place`].
pub fn is_free(addr: usize, len: usize) -> bool {
    let Some(range) = whole_pages(addr, len) else {
        return false;
    };
    let mut covered = 0;
    let _no_wait = NoWait::here();
    let _held = PARTS.lock_unless_mine();
    each_run(addr, len, |run, part| {
        if run.state() != state::IN_USE {
            return;
        }
        if let Some(parts) = Parts::of(run) {
            if part.pages().all(|page| page < parts.pages() && !parts.is_mapped(page)) {
                covered += part.len;
            }
        }
    });
    covered == range.len() / page_size()
}

/// Tells the pool that the program is about to map something over the range with `MAP_FIXED`, or to
/// move a mapping there: what it unmapped before counts as mapped again. `false`: the range touches
/// nothing of the pool's.
pub fn place(addr: usize, len: usize) -> bool {
    let (mut any, mut free) = (false, false);
    let _no_wait = NoWait::here();
    let held = PARTS.lock_unless_mine();
    each_run(addr, len, |run, part| {
        any = true;
        free |= run.state() != state::IN_USE;
        // Free runs too: whoever takes one that is tainted leaves it to the program.
        run.set(flag::TAINTED);
        if let Some(parts) = Parts::of(run) {
            let pages = parts.pages();
            part.pages().filter(|page| *page < pages).for_each(|page| parts.map(page));
        }
    });
    drop(held);
    if let Some((territory, range)) = inside(addr, len) {
        territory.gaps(range, |gap| {
            FOREIGN.store(true, Ordering::Relaxed);
            // Or what the program maps there would be handed out as a fresh run.
            territory.close(gap);
            any = true;
        });
    }
    if free {
        // Or the program's new pages would be offered in the place of the run's.
        super::keep::wait_for_slice();
    }
    any
}

/// Whether the range touches a run that was ever used: where the pool has given up addresses
/// ([`give_up_addresses`](super::give_up_addresses)) a range may lie among the pool's and be the program's.
pub fn touches(addr: usize, len: usize) -> bool {
    let mut any = false;
    each_run(addr, len, |_, _| any = true);
    any
}

/// How many bytes from `addr` on, at most `len`, are one mapping to the kernel; `len` where nothing is mapped,
/// or that cannot be told: the kernel's own call then says what is wrong.
pub fn same_mapping(addr: usize, len: usize) -> usize {
    let found = Lister::open().and_then(|mut lister| lister.at_or_after(addr));
    match found {
        Ok(Some(found)) if found.mapping.start <= addr => len.min(found.mapping.end - addr),
        _ => len,
    }
}

/// Whether the program may have mapped something among the addresses that no run has.
pub(super) fn holds_foreign() -> bool {
    FOREIGN.load(Ordering::Relaxed)
}

/// The part of a run that a range covers, in pages from where the program's part starts.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    len: usize,
}

impl Part {
    fn pages(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.len
    }
}

fn whole_pages(addr: usize, len: usize) -> Option<PageRange> {
    let page = page_size();
    let end = addr.checked_add(len.checked_next_multiple_of(page)?)?;
    (addr % page == 0 && addr < end).then_some(PageRange { start: addr, end })
}

/// The pages that the range touches, as far as they are the pool's addresses; `None`: none of them is.
fn inside(addr: usize, len: usize) -> Option<(&'static Territory, PageRange)> {
    let territory = territory::known()?;
    let page = page_size();
    let end = addr.saturating_add(len).checked_next_multiple_of(page).unwrap_or(usize::MAX);
    let range = PageRange {
        start: (addr / page * page).max(territory.range.start),
        end: end.min(territory.range.end),
    };
    (range.start < range.end).then_some((territory, range))
}

/// Calls `each` for every run that was ever used and that the range touches.
fn each_run(addr: usize, len: usize, mut each: impl FnMut(&Run, Part)) {
    let Some((territory, range)) = inside(addr, len) else { return };
    let page = page_size();
    territory.over(range, |spot, part| {
        let run = territory.run(spot);
        let start = give::start_of(territory, spot, run);
        let first = part.start.saturating_sub(start) / page;
        let len = part.end.saturating_sub(start.max(part.start)) / page;
        each(run, Part { first, len });
    });
}

/// Unmaps a part of one run.
///
/// # Safety
/// Nothing uses it any more.
unsafe fn unmap_part(territory: &Territory, spot: Spot, range: PageRange) -> Result<(), Errno> {
    let run = territory.run(spot);
    match run.state() {
        state::IN_USE => {}
        // What the program had mapped over a free run.
        // SAFETY: the caller's promise; a dead run is the program's.
        state::DEAD => return unsafe { arena::reserve_anew(range) },
        // The same, before the run was found to be dead.
        // SAFETY: as above; whoever takes a tainted run leaves it alone.
        _ if run.is(flag::TAINTED) => return unsafe { arena::reserve_anew(range) },
        // Unmapped already.
        _ => return Ok(()),
    }
    let page = page_size();
    let start = give::start_of(territory, spot, run);
    let live = PageRange { start, end: start + run.size().next_multiple_of(page) };
    let cut = PageRange { start: range.start.max(live.start), end: range.end.min(live.end) };
    if cut.start >= cut.end {
        return Ok(());
    }
    let held = PARTS.lock_unless_mine();
    let parts = Parts::of(run);
    if cut == live && parts.is_none() {
        drop(held);
        give::claim("munmap", start, territory, spot, run);
        give::give(territory, spot);
        return Ok(());
    }
    let parts = match parts {
        Some(parts) => parts,
        None => Parts::new(run, live.len() / page)?,
    };
    run.set(flag::TAINTED);
    // SAFETY: the caller's promise. In one step, so that a racing thread finds data or SIGSEGV.
    unsafe { arena::reserve_anew(cut) }?;
    let pages = (cut.start - start) / page..(cut.end - start) / page;
    let was_last = pages.map(|page| parts.unmap(page)).fold(false, std::ops::BitOr::bitor);
    if !was_last || held.is_none() {
        // Without the lock another thread may be reading the parts: then the run's addresses are lost.
        return Ok(());
    }
    forget_parts(run);
    drop(held);
    if run.claim(state::IN_USE, state::MOVING).is_err() {
        fault::freed_before("munmap", start, territory, spot);
    }
    give::give(territory, spot);
    Ok(())
}

/// Which pages of a run are still mapped: a mapping of its own with their number, how many are mapped,
/// and a bit for each.
struct Parts(*const AtomicUsize);

const BITS: usize = usize::BITS as usize;

impl Parts {
    fn of(run: &Run) -> Option<Parts> {
        match run.parts.load(Ordering::Acquire) {
            0 => None,
            at => Some(Parts(at as *const AtomicUsize)),
        }
    }

    /// All mapped.
    fn new(run: &Run, pages: usize) -> Result<Parts, Errno> {
        let bytes = Parts::bytes(pages);
        let parts = Parts(arena::map(bytes)? as *const AtomicUsize);
        parts.word(0).store(pages, Ordering::Relaxed);
        (0..pages).for_each(|page| parts.map(page));
        let at = parts.0 as usize;
        match run.parts.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(parts),
            Err(other) => {
                // SAFETY: mapped above, and known to nobody.
                let _ = unsafe { arena::unmap(at, bytes) };
                Ok(Parts(other as *const AtomicUsize))
            }
        }
    }

    fn bytes(pages: usize) -> usize {
        ((2 + pages.div_ceil(BITS)) * size_of::<usize>()).next_multiple_of(page_size())
    }

    fn word(&self, number: usize) -> &AtomicUsize {
        // SAFETY: `new` mapped two words, and those with a bit for each page, all zero.
        unsafe { &*self.0.add(number) }
    }

    fn bits(&self, page: usize) -> (&AtomicUsize, usize) {
        (self.word(2 + page / BITS), 1 << (page % BITS))
    }

    fn pages(&self) -> usize {
        self.word(0).load(Ordering::Relaxed)
    }

    fn is_mapped(&self, page: usize) -> bool {
        let (word, bit) = self.bits(page);
        word.load(Ordering::Relaxed) & bit != 0
    }

    fn map(&self, page: usize) {
        let (word, bit) = self.bits(page);
        if word.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.word(1).fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether it was the last one.
    fn unmap(&self, page: usize) -> bool {
        let (word, bit) = self.bits(page);
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
            && self.word(1).fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// The run goes back whole: its parts are not needed any more.
pub(super) fn forget_parts(run: &Run) {
    if run.parts.load(Ordering::Relaxed) == 0 {
        return;
    }
    let at = run.parts.swap(0, Ordering::AcqRel);
    if at != 0 {
        let parts = Parts(at as *const AtomicUsize);
        // SAFETY: the mapping of `Parts::new`, which nobody finds any more.
        let _ = unsafe { arena::unmap(at, Parts::bytes(parts.pages())) };
    }
}

/// The lock, for a fork.
pub(super) fn lock() -> &'static Lock<()> {
    &PARTS
}
