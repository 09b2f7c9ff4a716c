//! Ranges of memory that the program has mapped itself.

use crate::report::{status, Failure, Outcome};
use libc::{c_int, c_uint, c_void};
use tenure_core::{volatile, Outcome as Found, Priority};

/// The priority of what goes first.
pub const TENURE_PRIORITY_LOWEST: c_uint = 0;
/// The priority of what nothing else is said about.
pub const TENURE_PRIORITY_DEFAULT: c_uint = 4;
/// The priority of what goes last.
pub const TENURE_PRIORITY_HIGHEST: c_uint = 7;

/// Told about an extent that is gone: `offset` and `len` in bytes from the start of what was asked
/// about; `arg` as it was passed.
pub type tenure_gone_fn = Option<unsafe extern "C" fn(offset: usize, len: usize, arg: *mut c_void)>;

pub(crate) fn priority(level: c_uint) -> Outcome<Priority> {
    u8::try_from(level).ok().and_then(Priority::new).ok_or_else(|| {
        Failure::invalid(format!(
            "priority {level} is outside 0 (given up first) to 7 (last); {TENURE_PRIORITY_DEFAULT} \
             is the default"
        ))
    })
}

pub(crate) fn found(outcome: Found) -> c_int {
    match outcome {
        Found::Intact => 0,
        Found::Purged => 1,
    }
}

/// Makes `[addr, addr + len)` volatile: the kernel may come to be told that it can take the pages.
/// Marking what is marked already changes nothing; any page-aligned range will do, whether or not
/// it was marked in other pieces before.
///
/// While a range is marked it must not be unmapped, replaced by another mapping, made read-only or
/// inaccessible, or locked: call tenure_mnovolatile or tenure_forget before. A page that is gone
/// raises SIGBUS when it is touched. Where tenure_detection() is TENURE_DETECTION_WORDS it reads as
/// zeros instead, and a marked range must not be written.
///
/// Cost: no system call for a range marked before (about 30 ns, whatever its size); about 3 us the
/// first time, which checks it.
///
/// Errors: EINVAL: empty, unaligned or wrapping; shared memory or a file's; locked; not readable and
/// writable. ENOMEM: part of it is not mapped, or 33 million ranges are known already. EOPNOTSUPP:
/// the kernel refuses MADV_FREE. EAGAIN: the worker's thread could not be started. Nothing is marked
/// then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mvolatile(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_mvolatile", || {
        // SAFETY: the C caller keeps the range mapped as it is until it unmarks or forgets it, and
        // does not rely on its contents before it has unmarked it.
        unsafe { volatile::mark(addr.cast(), len)? };
        Ok(0)
    })
}

/// tenure_mvolatile with a priority, from 0 (given up first) to 7 (last). It holds until the range is
/// marked with another.
///
/// Errors: as tenure_mvolatile; EINVAL also for a priority above 7.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mvolatile_priority(
    addr: *mut c_void,
    len: usize,
    priority: c_uint,
) -> c_int {
    status("tenure_mvolatile_priority", || {
        let priority = self::priority(priority)?;
        // SAFETY: the C caller keeps the range mapped as it is until it unmarks or forgets it, and
        // does not rely on its contents before it has unmarked it.
        unsafe { volatile::mark_with_priority(addr.cast(), len, priority)? };
        Ok(0)
    })
}

/// Makes `[addr, addr + len)` non-volatile and returns 0 if all of it is still there, 1 if at least
/// one page is gone. Pages that are gone read as zeros and can be written; every other byte is as it
/// was. Parts that were never marked count as there.
///
/// Cost: no system call for a range that was not offered to the kernel (about 30 ns, whatever its
/// size). Offered: 0.5 us for a 2 MiB huge page, 140 ns for a 4 KiB page, and 1.2 us; purged: a look
/// at the page map (4 ns a page) as well.
///
/// Errors: EINVAL: empty, unaligned or wrapping; or no longer writable. ENOMEM: part of it is not
/// mapped, or there is no memory for pages that a fork shares. After an error each part is either
/// volatile as before or the program's again; no loss is forgotten: the next call for it tells it.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_mnovolatile(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_mnovolatile", || {
        // SAFETY: the C caller owns the range and holds it mapped during the call.
        Ok(found(unsafe { volatile::unmark(addr.cast(), len)? }))
    })
}

/// tenure_mnovolatile that also says what went: `gone` is called for each extent that is gone, with
/// its offset from `addr`, in no particular order, before the function returns. It may be NULL.
///
/// Errors: as tenure_mnovolatile.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_mnovolatile_map(
    addr: *mut c_void,
    len: usize,
    gone: tenure_gone_fn,
    arg: *mut c_void,
) -> c_int {
    status("tenure_mnovolatile_map", || {
        // SAFETY: the C caller owns the range and holds it mapped during the call. The callback is
        // the caller's own function, and gets its own argument.
        let outcome = unsafe {
            volatile::unmark_with_map(addr.cast(), len, |extent| {
                if let Some(gone) = gone {
                    gone(extent.start, extent.len(), arg);
                }
            })?
        };
        Ok(found(outcome))
    })
}

/// Offers what is marked in the range to the kernel now, without the usual wait.
///
/// Errors: EINVAL: nothing in the range is marked, the range is empty, unaligned or wrapping, or
/// it was locked meanwhile. ENOMEM: the process has too many mappings. EBUSY: a process made by fork
/// shares the pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_offer_now(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_offer_now", || {
        // SAFETY: the C caller has marked the range, so it does not rely on the contents, and keeps
        // it mapped.
        unsafe { volatile::offer_now(addr.cast(), len)? };
        Ok(0)
    })
}

/// Offers what is marked in the range and has the kernel discard it by its own reclaim: for tests,
/// and to give room back at once. The kernel may leave a page that is in use elsewhere;
/// tenure_mnovolatile_map says what went.
///
/// Errors: as tenure_offer_now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_purge_now(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_purge_now", || {
        // SAFETY: the C caller has marked the range, so it does not rely on the contents, and keeps
        // it mapped.
        unsafe { volatile::purge_now(addr.cast(), len)? };
        Ok(0)
    })
}

/// Makes the range non-volatile and drops all that tenure knows of it, so that the program may unmap
/// it or use it for something else; the next tenure_mvolatile checks it anew.
///
/// Errors: as tenure_mnovolatile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_forget(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_forget", || {
        // SAFETY: the C caller owns the range and holds it mapped during the call.
        unsafe { volatile::forget(addr.cast(), len)? };
        Ok(0)
    })
}

/// 1 if any page of the range is volatile, 0 if none is, or if the range is empty, unaligned or
/// wrapping, which no marked one can be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_is_volatile(addr: *const c_void, len: usize) -> c_int {
    status("tenure_is_volatile", || Ok(c_int::from(volatile::is_volatile(addr.cast(), len))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_the_cores() {
        for (level, core) in [
            (TENURE_PRIORITY_LOWEST, Priority::LOWEST),
            (TENURE_PRIORITY_DEFAULT, Priority::DEFAULT),
            (TENURE_PRIORITY_HIGHEST, Priority::HIGHEST),
        ] {
            assert!(priority(level).is_ok_and(|priority| priority == core));
        }
        assert!(priority(8).is_err() && priority(256 + 4).is_err());
    }
}
