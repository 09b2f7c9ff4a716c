//! Which of the many reasons it was: `mlock` has one number, `ENOMEM`, for most of them.

use super::account::account;
use super::explain;
use super::look::{self, Trouble};
use crate::error::{Error, ErrorKind};
use crate::os::{limits, maps};
use crate::range::PageRange;
use rustix::io::Errno;

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

/// What became of a lock that the kernel accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silent {
    /// It locked nothing at this address, for the reason given.
    Nothing(usize, &'static str),
    /// Whether it did cannot be found out.
    Unknown(Errno),
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
pub(super) fn limit_lowered(call: &'static str, range: PageRange, errno: Errno) -> Option<Error> {
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
