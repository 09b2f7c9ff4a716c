//! `madvise` and related calls, one function for each effect.

use super::errno::again;
use super::kernel;
use crate::range::PageRange;
use rustix::io::Errno;
use rustix::mm::{madvise, mremap, munmap, Advice, MremapFlags};
use std::ffi::{c_long, c_void};

fn advise(range: PageRange, advice: Advice) -> Result<(), Errno> {
    again(|| {
        // SAFETY: the kernel checks that the range is mapped. An advice that may drop contents
        // comes only from the unsafe functions of this module, whose callers promise that the
        // contents are not needed.
        unsafe { madvise(range.start as *mut c_void, range.len(), advice) }
    })
}

/// Tells the kernel that it may discard the range's pages until they are next written.
///
/// `EINVAL`: locked, shared, file-backed or device memory. A page that is swapped out goes at once.
///
/// # Safety
/// The program has given up the contents of the range: it is marked volatile, or owned and not in
/// use.
pub(crate) unsafe fn free(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxFree)
}

/// Has the kernel count the range's pages as unused.
///
/// `EINVAL`: locked, device or hugetlbfs memory.
pub(crate) fn cold(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxCold)
}

/// Has the kernel reclaim the range now: discards clean lazily freed pages, swaps the others out
/// where there is swap.
pub(crate) fn page_out(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxPageOut)
}

/// Drops the range's pages.
///
/// # Safety
/// The contents of the range are not needed.
pub(crate) unsafe fn drop_pages(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxDontNeed)
}

/// [`drop_pages`] for memory that is locked, which stays so (5.18+).
///
/// # Safety
/// The contents of the range are not needed.
pub(crate) unsafe fn drop_locked_pages(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxDontneedLocked)
}

/// Drops the range's pages, whether they are locked (`mlockall`) or not.
///
/// # Safety
/// The contents of the range are not needed.
pub(crate) unsafe fn drop_pages_though_locked(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the caller promises that the contents of the range are not needed.
    unsafe {
        match drop_pages(range) {
            Err(Errno::INVAL) => drop_locked_pages(range),
            done => done,
        }
    }
}

/// Returns whether the kernel knows `MADV_DONTNEED_LOCKED`: probes with an empty range at this
/// address.
pub(crate) fn knows_locked_drop(range: PageRange) -> bool {
    advise(PageRange { start: range.start, end: range.start }, Advice::LinuxDontneedLocked).is_ok()
}

/// Returns the error with which a filter refuses [`drop_pages`]: asks with an empty range at this
/// address, of which the kernel itself drops nothing.
pub(crate) fn drop_is_refused(range: PageRange) -> Option<Errno> {
    advise(PageRange { start: range.start, end: range.start }, Advice::LinuxDontNeed).err()
}

/// Punches the range out of the shared memory, memfd or hugetlbfs file behind it.
///
/// `EINVAL`: not a shared file mapping, or locked. `EACCES`: not writable.
///
/// # Safety
/// No process that maps the file needs the contents of the range.
pub(crate) unsafe fn remove(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxRemove)
}

/// Returns the error with which the kernel refuses to [`remove`] a page of the file that is mapped
/// shared in the range, in one mapping. The page lies far past the end of the file, where the file
/// has nothing to lose, and is reached through a copy of the mapping. `EINVAL` may be of that page
/// alone, whose offset no file has. `None`: the kernel makes no such copy (`RLIMIT_AS`, too many
/// mappings, hugetlbfs), or the file is longer.
///
/// A child that another thread forks meanwhile keeps the copy.
pub(crate) fn try_to_remove_past_end(
    range: PageRange,
    readable: bool,
) -> Option<Result<(), Errno>> {
    let page = super::page_size();
    // Memory files of such lengths are rare. The second one is for a process under `RLIMIT_AS`.
    let copy = [1 << 40, 1 << 30].into_iter().find_map(|past: usize| {
        let len = range.len() + past + page;
        // SAFETY: with an old length of 0 the kernel maps the shared file a second time, at an
        // address that it chooses, and leaves the first mapping as it is.
        let copy = unsafe { mremap(range.start as *mut c_void, 0, len, MremapFlags::MAYMOVE) };
        copy.ok().map(|start| PageRange::new(start as usize, start as usize + len))
    })?;
    let last = PageRange::new(copy.end - page, copy.end);
    // Inside a file this would succeed: it makes a missing page.
    let there = if readable { populate_read(last) } else { populate_write(last) };
    let removed = match there {
        // SAFETY: the kernel has no page there that it can give, so the page lies past the end of
        // the file. No process can read contents there.
        Err(Errno::FAULT) => Some(unsafe { remove(last) }),
        _ => None,
    };
    // SAFETY: the mapping was made above, and no code refers to it. A failure (too many mappings)
    // leaks address space only.
    let _ = unsafe { munmap(copy.start as *mut c_void, copy.len()) };
    removed
}

/// Takes a shared range's pages out of the page table. They stay in their file, memfd or tmpfs, and
/// a touch maps them again. `EINVAL`: locked.
///
/// # Safety
/// The mapping is shared: of private memory this would lose the contents.
pub(crate) unsafe fn unmap_shared(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxDontNeed)
}

/// Sets a flag of the mapping, and splits the mapping where the range is a part of it. At
/// `vm.max_map_count` the kernel returns `EAGAIN` each time, so this is tried once only.
/// The launcher sees it: a run of its pool keeps the flag.
fn flag(range: PageRange, advice: Advice) -> Result<(), Errno> {
    let arguments = [range.start as c_long, range.len() as c_long, advice as c_long, 0, 0, 0];
    // SAFETY: the advices given here change how the kernel treats the pages, not their contents;
    // the kernel checks that the range is mapped.
    unsafe { kernel::shown_call(libc::SYS_madvise, arguments) }.map(drop)
}

/// Asks for huge pages. Must come before the first touch: a page that is there already stays a base
/// page.
pub(crate) fn want_huge_pages(range: PageRange) -> Result<(), Errno> {
    flag(range, Advice::LinuxHugepage)
}

/// Asks for base pages only.
pub(crate) fn want_base_pages(range: PageRange) -> Result<(), Errno> {
    flag(range, Advice::LinuxNoHugepage)
}

/// Joins whole huge pages of the range now (`MADV_COLLAPSE`, 6.1+).
pub(crate) fn collapse(range: PageRange) -> Result<(), Errno> {
    // Neither rustix nor libc knows it on every target.
    const MADV_COLLAPSE: c_long = 25;
    let arguments = [range.start as c_long, range.len() as c_long, MADV_COLLAPSE, 0, 0, 0];
    // SAFETY: the call changes which pages hold the bytes, not the bytes; the kernel checks that
    // the range is mapped.
    unsafe { kernel::call(libc::SYS_madvise, arguments) }.map(drop)
}

/// Keeps the range out of core dumps.
pub(crate) fn keep_from_dumps(range: PageRange) -> Result<(), Errno> {
    flag(range, Advice::LinuxDontDump)
}

/// Keeps the kernel from merging the range's pages with equal ones (KSM). `EINVAL`: the kernel merges
/// none.
pub(crate) fn keep_from_merges(range: PageRange) -> Result<(), Errno> {
    flag(range, Advice::LinuxUnmergeable)
}

/// Makes the range read as zeros in a child after fork.
pub(crate) fn wipe_on_fork(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the pages are tenure's own, and stay as they are in this process.
    unsafe { madvise(range.start as *mut c_void, range.len(), Advice::LinuxWipeOnFork) }
}

/// Makes every page of the range resident for writing, its bytes unchanged and dirty. So a lazily
/// freed page is kept from then on.
///
/// `EFAULT`: a page that userfaultfd watches is missing. `ENOMEM`: no memory, or not mapped.
/// `EINVAL`: not writable or a special mapping, or a kernel before 5.14. `EHWPOISON`: a page is
/// poisoned.
pub(crate) fn populate_write(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxPopulateWrite)
}

/// Makes every page of the range readable, as [`super::populate::for_reading`] does, or fails where
/// the kernel does not know `MADV_POPULATE_READ`.
pub(crate) fn populate_read(range: PageRange) -> Result<(), Errno> {
    advise(range, Advice::LinuxPopulateRead)
}
