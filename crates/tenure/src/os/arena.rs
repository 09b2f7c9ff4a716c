//! The memory of a reserved range, by system calls made inline. None goes through the C library, so
//! none sets `errno`, and none reaches a launcher that replaces the library's functions.

use super::apart::{self, Congruent};
use super::mapping_list;
use crate::range::PageRange;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::ffi::c_void;

/// rustix has no name for this flag where it makes its calls through the C library, as under Miri.
const DONTUNMAP: MremapFlags = MremapFlags::from_bits_retain(libc::MREMAP_DONTUNMAP as u32);

/// Reserves addresses: nothing may be accessed, nothing is charged. The start is a multiple of
/// `align`.
///
/// `ENOMEM`: no such stretch of addresses, or over `RLIMIT_AS`.
pub(crate) fn reserve(len: usize, align: usize) -> Result<PageRange, Errno> {
    let aligned = Congruent::aligned(align);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let start = apart::map(len, aligned, ProtFlags::empty(), flags)?;
    // Without this advice gdb's gcore also writes out memory without access: terabytes of it.
    // SAFETY: the advice changes only core dumps, for the mapping just made.
    let _ = unsafe { mm::madvise(start as *mut c_void, len, Advice::LinuxDontDump) };
    Ok(PageRange::new(start, start + len))
}

/// Makes part of a reservation readable and writable, and includes it in core dumps. Contents, if
/// any, stay.
///
/// `ENOMEM`: too many mappings, over `RLIMIT_DATA`, or over the commit limit where the kernel
/// enforces one (`vm.overcommit_memory` 2).
///
/// # Safety
/// The range is part of a reservation of the caller's.
pub(crate) unsafe fn allow(range: PageRange) -> Result<(), Errno> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the caller promises that the range is part of its reservation; access is only added.
    unsafe { mm::mprotect(range.start as *mut c_void, range.len(), access) }?;
    // SAFETY: the call changes only whether core dumps contain the range.
    let _ = unsafe { mm::madvise(range.start as *mut c_void, range.len(), Advice::LinuxDoDump) };
    Ok(())
}

/// Replaces the range's mappings by fresh reserved addresses.
///
/// # Safety
/// Nothing uses the range any more, and it is part of a reservation of the caller's.
pub(crate) unsafe fn reserve_anew(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the caller promises that the range is part of its reservation and that nothing uses
    // it any more.
    unsafe {
        mm::mmap_anonymous(
            range.start as *mut c_void,
            range.len(),
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
        )
    }
    .map(drop)
}

/// Reserves the addresses of the range, if none of them is mapped.
///
/// `EEXIST`: an address is mapped. `ENOMEM`: too many mappings.
pub(crate) fn reserve_free(range: PageRange) -> Result<(), Errno> {
    // SAFETY: `MAP_FIXED_NOREPLACE` fails where anything is mapped, so this replaces nothing.
    let at = unsafe {
        mm::mmap_anonymous(
            range.start as *mut c_void,
            range.len(),
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
        )
    }? as usize;
    // SAFETY: the advice changes only core dumps, for the mapping just made.
    let _ = unsafe { mm::madvise(at as *mut c_void, range.len(), Advice::LinuxDontDump) };
    Ok(())
}

/// Takes access away; contents stay.
///
/// `EPERM`: part of it is sealed. `ENOMEM`: part of it is not mapped, or there are too many
/// mappings. After an error part of the range may be closed.
///
/// # Safety
/// Nothing uses the range any more.
pub(crate) unsafe fn close(range: PageRange) -> Result<(), Errno> {
    // SAFETY: the caller promises that nothing uses the range any more.
    unsafe { mm::mprotect(range.start as *mut c_void, range.len(), MprotectFlags::empty()) }
}

/// Gives the access back that [`close`] took.
///
/// `ENOMEM`: too many mappings, or over a limit.
///
/// # Safety
/// The range is part of a reservation of the caller's.
pub(crate) unsafe fn open(range: PageRange) -> Result<(), Errno> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the caller promises that the range is part of its reservation; access is only added.
    unsafe { mm::mprotect(range.start as *mut c_void, range.len(), access) }
}

/// Why pages were not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMoved {
    /// Source and target are as they were.
    Unchanged,
    /// The pages are where they were, but the state of the target is unknown. The kernel may have
    /// unmapped it before it found no room for another mapping or for page tables, and another
    /// thread may have mapped memory there since.
    TargetLost,
}

/// Moves the pages of `from` to `to`, in place of the pages there. `from` stays mapped and is empty
/// (`MREMAP_DONTUNMAP`, since 5.7), so that no other mapping can land there.
///
/// # Safety
/// Both ranges belong to the caller and are private anonymous memory. Nothing uses `to`, and
/// nothing uses `from` under its old address.
pub(crate) unsafe fn move_pages(from: PageRange, to: usize) -> Result<(), NotMoved> {
    // Before 6.12 the kernel unmaps the target before it finds that the source is not one mapping.
    let Ok(Some(one)) = mapping_list::at_or_after(from.start) else {
        return Err(NotMoved::Unchanged);
    };
    if one.mapping.start > from.start || one.mapping.end < from.end {
        return Err(NotMoved::Unchanged);
    }
    // SAFETY: the caller promises that both ranges are its own, and that nothing uses the target,
    // nor the source under its old address.
    let moved = unsafe {
        mm::mremap_fixed(
            from.start as *mut c_void,
            from.len(),
            from.len(),
            MremapFlags::MAYMOVE | DONTUNMAP,
            to as *mut c_void,
        )
    };
    moved.map(drop).map_err(|_| {
        // If the target is a hole now, no other mapping must land there, among the reserved
        // addresses.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: `MAP_FIXED_NOREPLACE` fails where anything is mapped, so this replaces nothing.
        let _ =
            unsafe { mm::mmap_anonymous(to as *mut c_void, from.len(), ProtFlags::empty(), flags) };
        NotMoved::TargetLost
    })
}

/// `munmap` without the C library.
///
/// # Safety
/// As for `munmap(2)`: nothing uses the range any more.
pub(crate) unsafe fn unmap(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller promises that nothing uses the range any more.
    unsafe { mm::munmap(addr as *mut c_void, len) }
}

/// Gives a mapping another length, at another place if there is no room here. Returns its start.
///
/// # Safety
/// As for `mremap(2)` with MREMAP_MAYMOVE: from then on the mapping is used at the new place only.
pub(crate) unsafe fn resize(range: PageRange, len: usize) -> Result<usize, Errno> {
    let may_move = mm::MremapFlags::MAYMOVE;
    // SAFETY: the caller promises what the call asks for.
    unsafe { mm::mremap(range.start as *mut c_void, range.len(), len, may_move) }
        .map(|at| at as usize)
}

/// How many processors this thread may run on.
pub(crate) fn processors() -> usize {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count().max(1) as usize)
}

/// The limit on addresses (`RLIMIT_AS`), if there is one.
pub(crate) fn address_limit() -> Option<u64> {
    super::limits::limit(libc::RLIMIT_AS).ok()?.0
}

/// Writes a sentence to standard error and ends the process, without allocating.
pub(crate) fn abort_with(text: &[u8]) -> ! {
    // SAFETY: the descriptor is only borrowed for a write, which fails if it is closed.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = super::quiet_write::write_quietly(stderr, text);
    std::process::abort()
}
