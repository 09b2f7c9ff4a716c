//! Moves a mapping away from its addresses by moving its page tables.
//!
//! Nothing here allocates, and `errno` stays as it is. The launcher sees what is unmapped, moved or
//! replaced ([`kernel::shown_call`]).

use super::apart::{self, Congruent};
use super::{generation, kernel, mapping_list, mlock, raw_map, signal::Blocked};
use crate::range::PageRange;
use rustix::io::Errno;
use rustix::mm::{madvise, mprotect, munmap, Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ffi::{c_long, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

/// The size of memory under one page table. The kernel moves such a table by one entry, where
/// source and target have the same offset in it.
const PUD: usize = 1 << 30;

/// Reserved address space to which the mappings of a range are moved, in ascending order. Dropping
/// this value unmaps the rest of it.
pub(crate) struct Hidden {
    /// The start of the part that is still reserved.
    base: usize,
    end: usize,
    /// The distance from an address of the range to its new address.
    distance: usize,
    /// The process that reserved it. A child that a signal handler forks meanwhile has a hole
    /// there, or later other memory of its own.
    generation: u64,
}

impl Hidden {
    /// Reserves a place for `range`, congruent to it modulo 1 GiB (modulo a huge page for ranges
    /// that are shorter than 1 GiB, or where there is no such address space). Otherwise the kernel
    /// would move every page-table entry singly (8 ns each).
    ///
    /// The caller reserves before it unmaps anything of the range, so that this does not take the
    /// range's place.
    ///
    /// `ENOMEM`: no address space, too many mappings, over `RLIMIT_AS`. `EAGAIN`:
    /// `mlockall(MCL_FUTURE)` and `RLIMIT_MEMLOCK`.
    pub fn reserve_like(range: PageRange) -> Result<Hidden, Errno> {
        let reaches = [PUD, super::HUGE_PAGE];
        let fitting = if range.len() < PUD { &reaches[1..] } else { &reaches[..] };
        let generation = generation::current();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let mut last = Errno::NOMEM;
        for reach in fitting {
            let like = Congruent::like(range.start, *reach);
            match apart::map(range.len(), like, ProtFlags::empty(), flags) {
                Ok(base) => {
                    apart::leave_a_page();
                    let end = base + range.len();
                    let distance = base.wrapping_sub(range.start);
                    let hidden = Hidden { base, end, distance, generation };
                    // With this mark the kernel does not join it with a mapping of the program's:
                    // see `after_failure`.
                    // SAFETY: the call changes a flag of a mapping that only this function knows.
                    unsafe { madvise(base as *mut c_void, range.len(), Advice::LinuxDontFork) }?;
                    return Ok(hidden);
                }
                Err(errno) => last = errno,
            }
        }
        Err(last)
    }

    /// Returns an address in it that no thread can read.
    pub fn unreadable(&self, piece: PageRange) -> usize {
        piece.start.wrapping_add(self.distance)
    }

    /// Moves `piece` there. When it returns, the old addresses are not mapped.
    ///
    /// # Errors
    /// Those of `mremap`, and `EFAULT` in a child of the process that reserved the place. Then the
    /// piece is as it was.
    ///
    /// # Safety
    /// Nothing refers to the piece. It lies in one mapping, in the range that this place was
    /// reserved for, and after the pieces that were moved before. No other place is reserved at the
    /// same time, and no fork happens meanwhile, not even from a signal handler.
    pub unsafe fn take(&mut self, piece: PageRange) -> Result<PageRange, Errno> {
        if generation::current() != self.generation {
            return Err(Errno::FAULT);
        }
        let len = piece.len();
        let at = piece.start.wrapping_add(self.distance);
        debug_assert!(self.base <= at && at + len <= self.end);
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED).into();
        let (from, size) = (piece.start as c_long, len as c_long);
        let arguments = [from, size, size, flags, at as c_long, 0];
        // SAFETY: the caller promises that nothing refers to the source, and only this value knows
        // the target.
        let moved = unsafe { kernel::shown_call(libc::SYS_mremap, arguments) };
        if let Err(errno) = moved {
            self.after_failure(at, len);
            return Err(errno);
        }
        unmap_ours(self.base, at);
        self.base = at + len;
        Ok(PageRange::new(at, at + len))
    }

    /// After a failed move the place of the piece may be unmapped, and another thread may have
    /// mapped memory there since. The place is whole if the kernel lists it as one mapping with
    /// both ends, which surely belong to this value. A joined mapping of this one and a foreign one
    /// is not possible: no new mapping has these flags, and no other place is reserved meanwhile.
    fn after_failure(&mut self, at: usize, len: usize) {
        let listed = mapping_list::at_or_after(self.base);
        let whole = listed
            .ok()
            .flatten()
            .is_some_and(|found| found.mapping.start <= self.base && found.mapping.end >= self.end);
        if !whole {
            unmap_ours(self.base, at);
            self.base = at + len;
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // Blocks signals, so that no handler forks between the look and the unmap.
        let _blocked = Blocked::all();
        if generation::current() == self.generation {
            unmap_ours(self.base, self.end);
        }
    }
}

fn unmap_ours(start: usize, end: usize) {
    if start < end {
        // SAFETY: part of a mapping that only this value knows and that no code uses. A failure
        // (the mapping count is at its limit) leaks address space only.
        let _ = unsafe { munmap(start as *mut c_void, end - start) };
    }
}

/// Returns whether munmap(2) may take `[addr, …)` from there. An mremap of a page to its own size
/// changes nothing and makes the same checks. `EPERM`: sealed (but see [`seals_are_seen`]).
/// `EINVAL`: inside a huge page of hugetlbfs (or at one, before 5.16). `EFAULT`: nothing is mapped
/// there.
pub(crate) fn may_be_unmapped_from(addr: usize) -> Result<(), Errno> {
    let page = super::page_size() as c_long;
    // All five arguments: for hugetlbfs the kernel looks at the new address even if it is not to be
    // used, and returns `EINVAL` for what another function has left in the register.
    let arguments = [addr as c_long, page, page, 0, 0, 0];
    // SAFETY: an mremap to the same size, not allowed to move, changes nothing.
    unsafe { kernel::call(libc::SYS_mremap, arguments) }.map(drop)
}

/// Returns whether [`may_be_unmapped_from`] works: no seccomp filter refuses mremap.
pub(crate) fn mremap_works() -> bool {
    let Ok(page) = super::reserve::map_own(super::page_size(), super::page_size()) else {
        return false;
    };
    let works = may_be_unmapped_from(page.start).is_ok();
    unmap_ours(page.start, page.end);
    works
}

/// A range that was the middle of a mapping, and is a mapping of its own now: unmapping it takes no
/// split, for which there may be too many mappings (`vm.max_map_count`).
pub(crate) struct SplitOff {
    /// Takes the flag away by which it was split off.
    undo: Advice,
}

/// The kernel has no mapping left for it (`vm.max_map_count`).
pub(crate) struct TooManyMappings {
    /// There was one mapping left, and the kernel has split at one end. Unmapping the range takes no
    /// other split.
    pub may_be_unmapped: bool,
}

impl SplitOff {
    /// Returns `None` if the range is not the middle of a mapping, or the kernel cannot be asked. The
    /// range is kept out of core dumps, or out of children, until it is unmapped: a new mapping joins
    /// none with such a flag. No flag is taken away that the program has set.
    ///
    /// # Errors
    /// The kernel has too few mappings left.
    pub fn from_middle(range: PageRange) -> Result<Option<SplitOff>, TooManyMappings> {
        let is_middle = |of: PageRange| of.start < range.start && range.end < of.end;
        // Where the program has set one flag already, that advice splits nothing.
        for (advice, undo) in [
            (Advice::LinuxDontDump, Advice::LinuxDoDump),
            (Advice::LinuxDontFork, Advice::LinuxDoFork),
        ] {
            if !mapping_at(range.start).is_some_and(is_middle) {
                return Ok(None);
            }
            match advise(range, advice) {
                // The kernel's ENOMEM, which madvise returns as EAGAIN.
                Err(Errno::NOMEM | Errno::AGAIN) => {
                    let may_be_unmapped = !mapping_at(range.start).is_some_and(is_middle);
                    return Err(TooManyMappings { may_be_unmapped });
                }
                Err(_) => return Ok(None),
                Ok(()) if mapping_at(range.start) == Some(range) => {
                    return Ok(Some(SplitOff { undo }));
                }
                Ok(()) => {}
            }
        }
        Ok(None)
    }

    /// The kernel has not unmapped this part of the range.
    pub fn undo(&self, part: PageRange) {
        let _ = advise(part, self.undo);
    }
}

/// Returns whether the process may have two mappings more (`vm.max_map_count`): it makes them, or
/// three if the first does not join another one of tenure's. `false` under `mlockall(MCL_FUTURE)`, or
/// if a filter refuses the question.
pub(crate) fn has_room_for_unlocked_mappings() -> bool {
    let page = super::page_size();
    let Ok(three) = super::reserve::map_own(3 * page, page) else { return false };
    let middle = (three.start + page) as *mut c_void;
    // SAFETY: a page of the mapping above, which nothing uses.
    let protects = || unsafe { mprotect(middle, page, MprotectFlags::empty()) }.is_ok();
    let has_room = mlock::asked(three) == Ok(mlock::Seen::Unlocked) && protects();
    unmap_ours(three.start, three.end);
    has_room
}

fn advise(range: PageRange, advice: Advice) -> Result<(), Errno> {
    // SAFETY: the callers give advice on which the memory's contents do not depend.
    unsafe { madvise(range.start as *mut c_void, range.len(), advice) }
}

/// The bounds of the mapping at the address, or above it.
fn mapping_at(addr: usize) -> Option<PageRange> {
    let found = mapping_list::at_or_after(addr).ok()??.mapping;
    Some(PageRange { start: found.start, end: found.end })
}

const UNKNOWN: u8 = 0;
const SEEN: u8 = 1;
const UNSEEN: u8 = 2;
/// Whether [`may_be_unmapped_from`] recognises sealed mappings.
/// For the whole process: all threads run on one kernel.
static SEALS: AtomicU8 = AtomicU8::new(UNKNOWN);

/// mseal(2), of Linux 6.10; its number is the same on every architecture.
fn mseal(start: usize, len: usize) -> Result<(), Errno> {
    const MSEAL: c_long = 462;
    let arguments = [start as c_long, len as c_long, 0, 0, 0, 0];
    // SAFETY: the callers seal nothing, or a page of their own.
    unsafe { kernel::call(MSEAL, arguments) }.map(drop)
}

/// Returns whether [`may_be_unmapped_from`] recognises sealed mappings, or there are none. From
/// Linux 6.12 to 6.16 the kernel does not check the seal of a mapping whose size stays. Also
/// `false` where mappings can be sealed and [`learn_whether_seals_are_seen`] was not called.
pub(crate) fn seals_are_seen() -> bool {
    match SEALS.load(Ordering::Relaxed) {
        SEEN => true,
        // Sealing an empty range succeeds where the kernel has the call.
        UNKNOWN if mseal(0, 0).is_err() => {
            SEALS.store(SEEN, Ordering::Relaxed);
            true
        }
        _ => false,
    }
}

/// Finds out by sealing a page, which then stays mapped for good.
pub(crate) fn learn_whether_seals_are_seen() {
    if seals_are_seen() || SEALS.load(Ordering::Relaxed) != UNKNOWN {
        return;
    }
    // Threads that come here together each seal a page. A lock would not do: a fork could hold it.
    let page = super::page_size();
    let Ok(page) = super::reserve::map_own(page, page) else { return };
    if mseal(page.start, page.len()).is_err() {
        unmap_ours(page.start, page.end);
        return;
    }
    let seen = may_be_unmapped_from(page.start) == Err(Errno::PERM);
    SEALS.store(if seen { SEEN } else { UNSEEN }, Ordering::Relaxed);
}

/// Unmaps part of a range that the program wants unmapped.
///
/// # Safety
/// Nothing refers to the part.
pub(crate) unsafe fn unmap(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller promises that nothing refers to the range.
    unsafe { kernel::shown_call(libc::SYS_munmap, [start as c_long, len as c_long, 0, 0, 0, 0]) }
        .map(drop)
}

/// Keeps the hidden range out of children made by fork.
pub(crate) fn keep_from_children(hidden: PageRange) -> Result<(), Errno> {
    // SAFETY: the call changes a flag of a mapping of tenure's own.
    unsafe { madvise(hidden.start as *mut c_void, hidden.len(), Advice::LinuxDontFork) }
}

/// Gives the range a name in `/proc/self/maps`, where the kernel can (5.17, anonymous memory).
pub(crate) fn name(hidden: PageRange) {
    const NAME: &std::ffi::CStr = c"tenure: retired";
    let (set, what) = (libc::PR_SET_VMA.into(), libc::PR_SET_VMA_ANON_NAME as c_long);
    let (start, len) = (hidden.start as c_long, hidden.len() as c_long);
    let arguments = [set, what, start, len, NAME.as_ptr().addr() as c_long, 0];
    // SAFETY: the call names a mapping; the kernel copies the string.
    let _ = unsafe { kernel::call(libc::SYS_prctl, arguments) };
}

/// Takes a page range of a hidden mapping out of memory, locked or not.
///
/// # Safety
/// The range comes from [`Hidden::take`].
pub(crate) unsafe fn zap(range: PageRange) -> Result<(), Errno> {
    let (start, len) = (range.start as *mut c_void, range.len());
    // SAFETY: the caller promises a range of `Hidden::take`, to which nothing refers.
    match unsafe { madvise(start, len, Advice::LinuxDontNeed) } {
        // Locked (5.18+; before that, munmap frees the pages).
        // SAFETY: this advice also drops locked pages. The caller promises a range of
        // `Hidden::take`, to which no reference exists.
        Err(Errno::INVAL) => unsafe { madvise(start, len, Advice::LinuxDontneedLocked) },
        other => other,
    }
}

/// mmap(2) of private anonymous memory over the mappings there.
///
/// # Safety
/// Nothing refers to the memory that is mapped there.
pub(crate) unsafe fn map_fixed(
    start: usize,
    len: usize,
    protection: i32,
    flags: i32,
) -> Result<(), Errno> {
    let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the caller promises that nothing refers to the mapped memory, which the call
    // replaces.
    unsafe { raw_map::map(start, len, protection, flags, -1, 0) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::reserve::Scratch;
    use rustix::mm::mmap_anonymous;

    #[test]
    fn a_forked_child_leaves_its_parents_place_alone() {
        let page = crate::os::page_size();
        let scratch = Scratch::new(page, false).unwrap();
        let mut hidden = Hidden::reserve_like(scratch.range()).unwrap();
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let at = hidden.base as *mut u8;
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: the child has a hole there, or this fails; `take` gets a page of this test's.
            let good = unsafe {
                let flags = flags | MapFlags::FIXED_NOREPLACE;
                mmap_anonymous(at.cast(), page, protection, flags).is_ok_and(|own| own == at.cast())
                    && hidden.take(scratch.range()) == Err(Errno::FAULT)
            };
            drop(hidden);
            let start = at as usize;
            let stays = may_be_unmapped_from(start) == Ok(());
            // SAFETY: ends the child, whose locks may be held by threads that it does not have.
            unsafe { libc::_exit(i32::from(!(good && stays))) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above, and the kernel writes the local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        // SAFETY: only `scratch` refers to the page, and it is forgotten.
        let there = unsafe { hidden.take(scratch.range()) }.unwrap();
        unmap_ours(there.start, there.end);
        std::mem::forget(scratch);
    }

    #[test]
    fn a_seal_is_told_or_known_not_to_be() {
        learn_whether_seals_are_seen();
        let page = crate::os::page_size();
        let sealed = crate::os::reserve::map_own(page, page).unwrap();
        if mseal(sealed.start, page).is_err() {
            assert!(seals_are_seen());
            unmap_ours(sealed.start, sealed.end);
            return;
        }
        let told = may_be_unmapped_from(sealed.start) == Err(Errno::PERM);
        assert_eq!(seals_are_seen(), told);
    }

    #[test]
    fn a_same_size_mremap_tells_holes_and_changes_nothing() {
        let mut scratch = Scratch::new(4 * crate::os::page_size(), false).unwrap();
        scratch.bytes().fill(3);
        let start = scratch.range().start;
        assert_eq!(may_be_unmapped_from(start), Ok(()));
        assert_eq!(may_be_unmapped_from(start + crate::os::page_size()), Ok(()));
        assert!(scratch.bytes().iter().all(|b| *b == 3));
        let gone = scratch.range();
        drop(scratch);
        // Another test's thread may have mapped there since, so only these two results are certain.
        assert!(matches!(may_be_unmapped_from(gone.start), Ok(()) | Err(Errno::FAULT)));
    }
}
