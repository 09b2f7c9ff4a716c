//! Which of the many reasons it was: `mlock` has one number, `ENOMEM`, for most of them.

use super::account::account;
use super::change::Silent;
use super::explain;
use super::look::{self, Trouble};
use crate::error::{Error, ErrorKind};
use crate::os::pagemap::Pagemap;
use crate::os::smaps::{self, Entry};
use crate::os::{advise, internal, limits, maps, memory_limit};
use crate::range::PageRange;
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;

/// Where the range is not mapped, or cannot be looked at.
pub(super) fn trouble(call: &'static str, range: PageRange, trouble: Trouble) -> Error {
    match trouble {
        Trouble::Hole(at) => hole(call, range, at),
        Trouble::Unreadable(errno) => Error::system(call, "looking at the range's mappings", errno)
            .on(range.start, range.len()),
    }
}

pub(super) fn hole(call: &'static str, range: PageRange, at: usize) -> Error {
    Error::new(
        ErrorKind::NotMapped,
        call,
        format!("nothing is mapped at {at:#x}"),
        "pass only mapped memory",
    )
    .on(range.start, range.len())
}

/// The kernel refused to lock on fault, which touches no page: the limit, a hole that came meanwhile,
/// the number of mappings, or no memory for a mapping's own record. `needed` bytes of the range were
/// not locked before, and `charged` of those are by now.
pub(super) fn refused(
    call: &'static str,
    range: PageRange,
    errno: Errno,
    needed: usize,
    charged: usize,
) -> Error {
    let error = |kind, why: String, remedy: String| {
        Error::new(kind, call, why, remedy)
            .with_errno(errno.raw_os_error())
            .on(range.start, range.len())
    };
    if matches!(errno, Errno::NOMEM | Errno::PERM | Errno::AGAIN) {
        if let Ok(mut account) = account() {
            account.locked = account.locked.saturating_sub(charged as u64);
            if account.room().is_some_and(|room| room < needed as u64) {
                let wanted = account.locked + needed as u64;
                return error(
                    ErrorKind::LockLimit,
                    format!(
                        "locking {needed} bytes more would pass the limit on locked memory \
                         (RLIMIT_MEMLOCK): {account}"
                    ),
                    explain::remedy(&account, wanted),
                );
            }
        }
    }
    if errno == Errno::NOMEM {
        if let Ok(Some(at)) = maps::first_hole(range) {
            return hole(call, range, at);
        }
        if let Some(error) = too_many_mappings(call, range) {
            return error;
        }
        return error(
            ErrorKind::OutOfMemory,
            "the kernel has no memory for the record of one more mapping".into(),
            "free memory, or raise the memory cgroup's limit".into(),
        );
    }
    Error::system(call, "mlock2", errno).on(range.start, range.len())
}

fn too_many_mappings(call: &'static str, range: PageRange) -> Option<Error> {
    let most = limits::max_mappings()?;
    let mut count = 0;
    maps::each_mapping(look::everything(), |_| count += 1).ok()?;
    // A lock inside a mapping cuts it in three.
    (count + 2 > most).then(|| {
        Error::new(
            ErrorKind::TooManyMappings,
            call,
            format!(
                "it would cut a mapping, and the process has {count} of the {most} mappings that \
                 vm.max_map_count allows"
            ),
            "lock whole mappings, or raise vm.max_map_count (sysctl)",
        )
        .on(range.start, range.len())
    })
}

/// The kernel said yes and did nothing.
pub(super) fn silent(call: &'static str, range: PageRange, silent: Silent) -> Error {
    match silent {
        Silent::Nothing(at, why) => Error::new(
            ErrorKind::WrongMapping,
            call,
            format!("the memory at {at:#x} cannot be locked: {why}"),
            "leave it out of the range, or map it another way",
        ),
        Silent::Unknown(errno) => Error::system(call, "checking the lock in /proc/self", errno),
    }
    .on(range.start, range.len())
}

/// A lock could not be lowered.
pub(super) fn not_weakened(
    call: &'static str,
    range: PageRange,
    part: PageRange,
    errno: Errno,
) -> Error {
    if errno == Errno::NOMEM {
        if let Some(error) = too_many_mappings(call, range) {
            return error;
        }
    }
    if let Some(error) = limit_lowered(call, range, errno) {
        return error;
    }
    let why =
        format!("the lock of [{:#x}, {:#x}) could not be changed: {errno}", part.start, part.end);
    Error::new(ErrorKind::System, call, why, "free memory and try again")
        .with_errno(errno.raw_os_error())
        .on(range.start, range.len())
}

/// The kernel checks the limit even where nothing is to be charged.
fn limit_lowered(call: &'static str, range: PageRange, errno: Errno) -> Option<Error> {
    if !matches!(errno, Errno::NOMEM | Errno::PERM) {
        return None;
    }
    let account = account().ok()?;
    (!account.is_exempt() && account.soft.is_some_and(|soft| soft < account.locked)).then(|| {
        let why = format!(
            "the kernel checks the limit on locked memory (RLIMIT_MEMLOCK) even where nothing more \
             is charged, and it was lowered below what is locked: {account}"
        );
        Error::new(ErrorKind::LockLimit, call, why, explain::remedy(&account, account.locked))
            .with_errno(errno.raw_os_error())
            .on(range.start, range.len())
    })
}

/// Everything was charged, but not everything could be made resident. Called before anything is put
/// back, for the page at which the kernel stopped is the first that is missing.
pub(super) fn not_filled(call: &'static str, range: PageRange, errno: Errno) -> Error {
    let error = |kind, why: String, remedy: &'static str| {
        Error::new(kind, call, why, remedy)
            .with_errno(errno.raw_os_error())
            .on(range.start, range.len())
    };
    if let Ok(Some(at)) = maps::first_hole(range) {
        return hole(call, range, at);
    }
    if let Some(error) = limit_lowered(call, range, errno) {
        return error;
    }
    let Some((page, entry)) = first_missing(range) else {
        return no_memory(call, range, errno);
    };
    let at = page.start;
    if !entry.mapping.readable {
        return error(
            ErrorKind::NoAccess,
            format!("the page at {at:#x} is mapped without access (PROT_NONE), so it cannot be made resident"),
            "lock it on fault, or mprotect it first",
        );
    }
    let write = entry.mapping.writable && !entry.mapping.shared;
    let probed =
        if write { advise::populate_write(page) } else { advise::populate_read_plain(page) };
    match probed {
        Err(Errno::HWPOISON) => Error::new(
            ErrorKind::Poisoned,
            call,
            format!("the hardware has lost the page at {at:#x}"),
            "unmap it, and map the data anew",
        )
        .on(range.start, range.len()),
        // Before 5.14 there is no such probe (EINVAL); EFAULT was then the most likely by far.
        Err(Errno::FAULT | Errno::INVAL) if errno == Errno::NOMEM => no_page(&error, page, &entry),
        _ => no_memory(call, range, errno),
    }
}

/// The first page that is not there, of mappings that a lock makes resident, with its mapping.
fn first_missing(range: PageRange) -> Option<(PageRange, Entry)> {
    let mut entries = Vec::new();
    smaps::each_entry(range, |entry| entries.push(entry)).ok()?;
    let pagemap = Pagemap::open().ok()?;
    entries.into_iter().filter(|entry| look::special(entry).is_none()).find_map(|entry| {
        let part = look::overlap(&entry.mapping, range)?;
        pagemap.first_absent(part).ok()?.map(|page| (page, entry))
    })
}

/// Nothing stands behind the page: a guard, the end of the file, a full file system, userfaultfd.
fn no_page(
    error: &impl Fn(ErrorKind, String, &'static str) -> Error,
    page: PageRange,
    entry: &Entry,
) -> Error {
    let at = page.start;
    if Pagemap::open().is_ok_and(|pagemap| pagemap.is_guard(page)) {
        return error(
            ErrorKind::NoBacking,
            format!("the page at {at:#x} is a guard page (MADV_GUARD_INSTALL)"),
            "leave it out of the range, or lock on fault",
        );
    }
    if entry.mapping.inode == 0 {
        return error(
            ErrorKind::NoBacking,
            format!(
                "the page at {at:#x} is missing and must not be made (userfaultfd, or a guard)"
            ),
            "lock on fault, or fill the page first",
        );
    }
    let offset = entry.mapping.offset + (at - entry.mapping.start) as u64;
    let size = file_size(entry);
    if size.is_some_and(|size| offset < size) {
        return error(
            ErrorKind::NoSpace,
            format!(
                "the file system has no room for the page at {at:#x}, a hole at offset {offset} of \
                 {}",
                entry.name
            ),
            "free room there, raise its size (mount -o remount,size=…), or lock on fault",
        );
    }
    let end = match size {
        Some(size) => format!(", which has {size} bytes"),
        // Of a deleted file nobody tells; a memfd's file system is never full.
        None if !internal::is_shmem(entry.mapping.device) => ", or its file system is full".into(),
        None => String::new(),
    };
    error(
        ErrorKind::NoBacking,
        format!(
            "the page at {at:#x} lies past the end of its file: offset {offset} of {}{end}",
            entry.name
        ),
        "lock only up to the end of the file, or lock on fault",
    )
}

/// The size of the file behind a mapping, where its path still leads to it.
fn file_size(entry: &Entry) -> Option<u64> {
    let found = std::fs::metadata(&entry.name).ok()?;
    (found.ino() == entry.mapping.inode).then_some(found.len())
}

fn no_memory(call: &'static str, range: PageRange, errno: Errno) -> Error {
    let room = memory_limit::room(memory_limit::own_group().as_ref());
    Error::new(
        ErrorKind::OutOfMemory,
        call,
        format!(
            "the kernel could not make all of it resident ({errno}): {} bytes are free of {}, the \
             machine's memory or the tightest memory cgroup's limit",
            room.free, room.limit
        ),
        "free memory, raise the memory cgroup's limit, or lock on fault",
    )
    .with_errno(errno.raw_os_error())
    .on(range.start, range.len())
}
