//! Two other calls that unmap populated memory: a shrinking mremap(2), and mmap(2) with
//! `MAP_FIXED`.

#![allow(unsafe_code, reason = "unmaps what the program gives up")]

use super::kind::Known;
use super::unmap::{self, Class};
use super::{bound, forget, settings, slice};
use crate::os::{detach, errno, limits, mapping_list, page_size};
use crate::range::PageRange;
use crate::runtime::fork::NoWait;

/// Unmaps the tail that mremap(2) from `old_len` to a smaller `new_len` bytes would cut off, as
/// [`munmap`](super::munmap) does. `true`: the tail is unmapped, and an mremap from `new_len` to
/// `new_len` bytes with the caller's flags finishes the call. `false`: nothing was done, or only a
/// part; make the plain call. If huge pages of hugetlbfs begin at `addr`, nothing is done, and what
/// is marked behind them stays marked.
///
/// Not for `MREMAP_FIXED` and `MREMAP_DONTUNMAP`. Nothing allocates, and `errno` is kept.
///
/// ```
/// let mut memory = tenure::Mapping::anonymous(4096)?;
/// // SAFETY: too small to matter, so nothing is done.
/// assert!(!unsafe { tenure::retire::detach_tail(memory.as_mut_ptr(), 4096, 4096) });
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As [`munmap`](super::munmap).
///
/// # Safety
/// As mremap(2): nothing refers to the tail any more.
#[doc(alias = "mremap")]
pub unsafe fn detach_tail(addr: *mut u8, old_len: usize, new_len: usize) -> bool {
    let _errno = errno::Kept::now();
    let _no_wait = NoWait::here();
    let (start, page) = (addr as usize, page_size());
    let sizes = (old_len.checked_next_multiple_of(page), new_len.checked_next_multiple_of(page));
    let (Some(old), Some(new)) = sizes else { return false };
    let end = start.checked_add(old).filter(|end| *end <= isize::MAX as usize);
    let (Some(end), true) = (end, start % page == 0 && start != 0 && new > 0) else { return false };
    if new >= old {
        return false;
    }
    let tail = PageRange::new(start + new, end);
    // The plain call would leave the marks of a small tail on what is mapped there next.
    let is_small = tail.len() < settings::min_bytes();
    if is_small && !forget::any_marks() && !forget::may_be_locked(tail) {
        return false;
    }
    // mremap also shrinks several mappings and holes. Its errno is for the page at the start. It rounds
    // the sizes to the huge pages of hugetlbfs, if these begin there.
    let pages_fit = mapping_list::at_or_after(start).is_ok_and(|found| {
        found.is_none_or(|found| {
            found.mapping.start > start || found.page_size.is_none_or(|size| size <= page)
        })
    });
    pages_fit
        && detach::may_be_unmapped_from(start).is_ok()
        && unmap::unmap(tail, Known::Nothing, 0).is_ok()
}

/// Does `mmap(addr, len, protection, flags, -1, 0)` of private anonymous memory with `MAP_FIXED` in
/// slices. The plain call holds the address space's lock exclusively for as long as unmapping the
/// old pages takes. `None`: it is not such a call, or it is small, and nothing is marked or locked
/// through tenure; make the plain call. Before a call of another kind, unmark what is marked there.
///
/// Each slice is such an mmap, so a racing thread sees the old page or the new mapping's page, and
/// nothing else. The call allocates nothing. It is one mmap where a slice could fail and the plain
/// call does not: near `vm.max_map_count`, with a limit on addresses or data (`RLIMIT_AS`,
/// `RLIMIT_DATA`), with a commit limit, and under `mlockall(MCL_FUTURE)`.
///
/// # Errors
/// `Some(Err(errno))`: mmap's errno. If another thread has used up the last mappings meanwhile, part
/// of the old mappings may be gone. What is left is as it was, but what was marked volatile in it may
/// count as lost; and if another thread has used locks meanwhile, guards no longer end its locks.
///
/// ```
/// let mut memory = tenure::Mapping::anonymous(4096)?;
/// let (read_write, flags) = (3, 0x32); // MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED
/// // SAFETY: nothing refers to the page.
/// let done = unsafe { tenure::retire::map_over(memory.as_mut_ptr(), 4096, read_write, flags) };
/// assert!(done.is_none()); // too small to matter: make the plain call
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As mmap(2), six system calls, and one for each slice.
///
/// # Safety
/// As mmap(2) with `MAP_FIXED`: nothing refers to the old mappings there.
#[doc(alias = "mmap")]
#[doc(alias = "MAP_FIXED")]
pub unsafe fn map_over(
    addr: *mut u8,
    len: usize,
    protection: i32,
    flags: i32,
) -> Option<Result<*mut u8, i32>> {
    const NEEDED: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    const ALLOWED: i32 = NEEDED | libc::MAP_NORESERVE | libc::MAP_STACK;
    const PROTECTIONS: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let _errno = errno::Kept::now();
    let _no_wait = NoWait::here();
    let (start, page) = (addr as usize, page_size());
    let size = len.checked_next_multiple_of(page)?;
    let end = start.checked_add(size).filter(|end| *end <= isize::MAX as usize)?;
    let fits = flags & NEEDED == NEEDED
        && flags & !ALLOWED == 0
        && protection & !PROTECTIONS == 0
        && start % page == 0
        && start != 0
        && size > 0;
    if !fits {
        return None;
    }
    let range = PageRange::new(start, end);
    let is_large = size >= settings::min_bytes();
    // The plain call would leave them on what it maps.
    let is_known = || forget::any_marks() || forget::may_be_locked(range);
    if !is_large && !is_known() {
        return None;
    }
    let in_slices = match unmap::class(range) {
        Class::Parts { .. } if is_large => true,
        Class::Parts { .. } | Class::Unclear if is_known() => false,
        _ => return None,
    };
    if let Err(errno) = forget::may_forget(range) {
        return Some(Err(errno.raw_os_error()));
    }
    // SAFETY: the caller promises that nothing refers to the old mappings, which the call replaces.
    let map = |slice: PageRange| unsafe {
        detach::map_fixed(slice.start, slice.len(), protection, flags)
    };
    let Some(forgotten) = forget::forget(range) else {
        let done = map(range).inspect(|()| forget::forget_under_new_mapping(range));
        return Some(done.map(|()| addr).map_err(|errno| errno.raw_os_error()));
    };
    // A slice beside the rest of the old mappings is a mapping more, and the kernel counts its bytes
    // before it takes the old ones off.
    let is_limited = || limits::address_space_is_limited() || bound::commit_is_limited();
    let done = match in_slices && !is_limited() && detach::has_room_for_unlocked_mappings() {
        true => slice::each(range, map),
        false => map(range).map_err(|errno| (errno, range)),
    };
    Some(done.map(|()| addr).map_err(|(errno, rest)| {
        forgotten.stays(&[rest]);
        errno.raw_os_error()
    }))
}
