//! Finds the cause of a failed lock: `mlock` returns one number, `ENOMEM`, for most causes.

use super::account::account;
use super::explain;
use super::inspect::{self, Trouble};
use crate::error::{Error, ErrorKind};
use crate::os::pagemap::{self, Pagemap};
use crate::os::smaps::{self, Entry};
use crate::os::{
    files, internal, limits, maps, memory_group, mlock, page_size, populate, room_now, touch,
};
use crate::range::PageRange;
use crate::text::{text, Text, Words};
use rustix::io::Errno;

/// The error for a range that is not mapped, or that cannot be inspected.
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
        text!("nothing is mapped at {at:#x}"),
        "pass only mapped memory",
    )
    .on(range.start, range.len())
}

/// The error after the kernel refused to lock on fault, which touches no page. The causes are the
/// limit, a hole that came meanwhile, the number of mappings, or no memory for a mapping's own
/// record. `needed` bytes of the range were not locked before, and `charged` of those are by now.
pub(super) fn refused(
    call: &'static str,
    range: PageRange,
    errno: Errno,
    needed: usize,
    charged: usize,
) -> Error {
    let error = |kind, why: Text, remedy: Text| {
        Error::new(kind, call, why, remedy)
            .with_errno(errno.raw_os_error())
            .on(range.start, range.len())
    };
    let mut limit_is_known = false;
    if matches!(errno, Errno::NOMEM | Errno::PERM | Errno::AGAIN) {
        if let Ok(mut account) = account() {
            limit_is_known = true;
            account.locked = account.locked.saturating_sub(charged as u64);
            if account.room().is_some_and(|room| room < needed as u64) {
                let wanted = account.locked + needed as u64;
                return error(
                    ErrorKind::LockLimit,
                    text!(
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
        let (why, remedy) = match limit_is_known {
            true => (
                "the kernel has no memory for the record of one more mapping",
                "free memory, or raise the memory cgroup's limit",
            ),
            false => (
                "it would pass the limit on locked memory (RLIMIT_MEMLOCK), or there is no memory: \
                 without /proc this cannot be told",
                "raise the limit, free memory, or mount /proc",
            ),
        };
        return error(ErrorKind::OutOfMemory, why.into(), remedy.into());
    }
    Error::system(call, "mlock2", errno).on(range.start, range.len())
}

fn too_many_mappings(call: &'static str, range: PageRange) -> Option<Error> {
    let most = limits::max_mappings()?;
    let mut count = 0;
    maps::each_mapping(inspect::everything(), |_| count += 1).ok()?;
    // A lock inside a mapping splits it into three.
    (count + 2 > most).then(|| {
        Error::new(
            ErrorKind::TooManyMappings,
            call,
            text!(
                "it would cut a mapping, and the process has {count} of the {most} mappings that \
                 vm.max_map_count allows"
            ),
            "lock whole mappings, or raise vm.max_map_count (sysctl)",
        )
        .on(range.start, range.len())
    })
}

/// The reason why a successful call locked nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silent {
    /// It locked nothing at this address, for the reason given.
    Nothing(usize, &'static str),
    /// It is not known whether it locked.
    Unknown(Errno),
}

/// The error after the kernel reported success and locked nothing.
pub(super) fn silent(call: &'static str, range: PageRange, silent: Silent) -> Error {
    match silent {
        Silent::Nothing(at, why) => Error::new(
            ErrorKind::WrongMapping,
            call,
            text!("the memory at {at:#x} cannot be locked: {why}"),
            "leave it out of the range, or map it another way",
        ),
        Silent::Unknown(errno) => Error::system(call, "checking the lock in /proc/self", errno),
    }
    .on(range.start, range.len())
}

/// A part that stays locked more than necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotLowered {
    pub part: PageRange,
    /// The call that failed.
    pub step: &'static str,
    pub errno: Errno,
}

/// The error for a lock that could not be lowered.
pub(super) fn not_weakened(
    call: &'static str,
    range: PageRange,
    NotLowered { part, step, errno }: NotLowered,
) -> Error {
    if errno == Errno::NOMEM {
        if let Some(error) = too_many_mappings(call, range) {
            return error;
        }
    }
    if let Some(error) = limit_lowered(call, range, errno) {
        return error;
    }
    if mlock::is_refused(errno) {
        return Error::system(call, step, errno).on(range.start, range.len());
    }
    let why = text!(
        "the lock of [{:#x}, {:#x}) could not be changed, {step} failed: {}",
        part.start,
        part.end,
        Words(errno)
    );
    Error::new(ErrorKind::System, call, why, "free memory and try again")
        .with_errno(errno.raw_os_error())
        .on(range.start, range.len())
}

/// The error for a lowered limit: the kernel checks the limit even where nothing is to be charged.
pub(super) fn limit_lowered(call: &'static str, range: PageRange, errno: Errno) -> Option<Error> {
    if !matches!(errno, Errno::NOMEM | Errno::PERM) {
        return None;
    }
    let account = account().ok()?;
    (!account.is_exempt() && account.soft.is_some_and(|soft| soft < account.locked)).then(|| {
        let why = text!(
            "the kernel checks the limit on locked memory (RLIMIT_MEMLOCK) even if a call charges \
             nothing, and the limit is now below the locked bytes: {account}"
        );
        Error::new(ErrorKind::LockLimit, call, why, explain::remedy(&account, account.locked))
            .with_errno(errno.raw_os_error())
            .on(range.start, range.len())
    })
}

/// The error with the cause behind `mlock`'s result. It is called before anything is undone: the
/// pages before the failed one are then resident, and the search for it is a walk over them.
pub(super) fn unfilled(call: &'static str, range: PageRange, errno: Errno) -> Error {
    if let Ok(Some(at)) = maps::first_hole(range) {
        return hole(call, range, at);
    }
    if let Some(error) = limit_lowered(call, range, errno) {
        return error;
    }
    let (kind, why, remedy) = match errno {
        // Any other page that cannot be made resident gives ENOMEM.
        Errno::AGAIN => no_memory(errno),
        _ => match first_refused(range) {
            Some(refused) => of_page(&refused),
            None => (
                ErrorKind::System,
                text!(
                    "the kernel could not make all of it resident ({}), and the failed page \
                     is not known: every page that can be tried is resident by now",
                    Words(errno)
                ),
                "try again, or lock on fault",
            ),
        },
    };
    let errno = if kind == ErrorKind::Poisoned { Errno::HWPOISON } else { errno };
    Error::new(kind, call, why, remedy)
        .with_errno(errno.raw_os_error())
        .on(range.start, range.len())
}

type Cause = (ErrorKind, Text, &'static str);

/// A page that a full lock would make resident, but cannot.
struct Refused {
    at: usize,
    entry: Entry,
    /// The error of the trial; `EFAULT` where no trial is possible.
    errno: Errno,
}

/// Finds the first such page. It tries the pages as a lock does, mapping by mapping. A list of
/// missing pages would not suffice: the page map may not be readable (the process has changed its
/// user), and pages that were used before their access was removed are not missing.
fn first_refused(range: PageRange) -> Option<Refused> {
    let mut entries = Vec::new();
    smaps::each_entry(range, |entry| entries.push(entry)).ok()?;
    let mut untried = Vec::new();
    for entry in entries.into_iter().filter(|entry| inspect::special(entry).is_none()) {
        let Some(part) = inspect::overlap(&entry.mapping, range) else { continue };
        if !accessible(&entry) {
            return Some(Refused { at: part.start, entry, errno: Errno::ACCESS });
        }
        let write = entry.mapping.writable && !entry.mapping.shared;
        match populate::first_refused(part, write) {
            None => {}
            // Before 5.14, and where the mapping may only be written or executed, no trial is
            // possible.
            Some((_, errno)) if populate::may_be_refused(errno) => untried.push((part, entry)),
            Some((at, errno)) => return Some(Refused { at, entry, errno }),
        }
    }
    let pagemap = Pagemap::open();
    untried.into_iter().find_map(|(part, entry)| {
        let at = match &pagemap {
            Ok(pagemap) => pagemap.first_absent(part).ok()??.start,
            // The process has changed its user. A read fails at a page that nothing stands behind.
            Err(_) if entry.mapping.readable => touch::read_each_page(part).err()?.page?,
            Err(_) => return None,
        };
        Some(Refused { at, entry, errno: Errno::FAULT })
    })
}

/// Returns whether a lock fills this mapping: it does if the mapping allows any access.
fn accessible(entry: &Entry) -> bool {
    ["rd", "wr", "ex"].iter().any(|access| entry.has(access))
}

fn of_page(refused: &Refused) -> Cause {
    let Refused { at, entry, errno } = refused;
    match *errno {
        Errno::ACCESS => (
            ErrorKind::NoAccess,
            text!(
                "the page at {at:#x} is mapped without access (PROT_NONE), so it cannot be made \
                 resident"
            ),
            "lock it on fault, or mprotect it first",
        ),
        Errno::HWPOISON => (
            ErrorKind::Poisoned,
            text!("the hardware has lost the page at {at:#x}"),
            "unmap it, and map the data anew",
        ),
        Errno::FAULT => no_page(*at, entry),
        errno => no_memory(errno),
    }
}

/// The cause if nothing backs the page: a guard, the end of the file, a full file system,
/// userfaultfd.
fn no_page(at: usize, entry: &Entry) -> Cause {
    let no_backing = |why: Text, remedy| (ErrorKind::NoBacking, why, remedy);
    if pagemap::is_guard(at) {
        return no_backing(
            text!("the page at {at:#x} is a guard page (MADV_GUARD_INSTALL)"),
            "leave it out of the range, or lock on fault",
        );
    }
    if entry.mapping.inode == 0 || ["um", "uw", "ui"].iter().any(|flag| entry.has(flag)) {
        return no_backing(
            text!("the page at {at:#x} is missing and must not be made (userfaultfd, or a guard)"),
            "lock on fault, or fill the page first",
        );
    }
    let name = &entry.name;
    let offset = entry.mapping.offset + (at - entry.mapping.start) as u64;
    let size = files::size_behind(None, entry);
    let inside = size.is_some_and(|size| offset < size.next_multiple_of(page_size() as u64));
    if inside {
        let full = files::free_behind(None, entry).is_some_and(|free| free < page_size() as u64);
        return match full {
            true => (
                ErrorKind::NoSpace,
                text!(
                    "the file system has no room for the page at {at:#x}, a hole at offset {offset} \
                     of {name}"
                ),
                "free room there, raise its size (mount -o remount,size=…), or lock on fault",
            ),
            false => no_backing(
                text!(
                    "the kernel could not give the page at {at:#x}, offset {offset} of {name}: an \
                     error of its disk or file system"
                ),
                "see the kernel log (dmesg), check the disk, or lock on fault",
            ),
        };
    }
    let end = match size {
        Some(size) => text!(", which has {size} bytes"),
        // The kernel's own tmpfs is never full.
        None if !internal::is_shmem(entry.mapping.device) => ", or its file system is full".into(),
        None => "".into(),
    };
    no_backing(
        text!("the page at {at:#x} lies past the end of its file: offset {offset} of {name}{end}"),
        "lock only up to the end of the file, or lock on fault",
    )
}

fn no_memory(errno: Errno) -> Cause {
    let room = room_now::room(memory_group::own_group().as_ref());
    (
        ErrorKind::OutOfMemory,
        text!(
            "the kernel could not make all of it resident ({}): {} bytes are free of {}, the \
             machine's memory or the tightest memory cgroup's limit",
            Words(errno),
            room.free,
            room.limit
        ),
        "free memory, raise the memory cgroup's limit, or lock on fault",
    )
}
