//! Ranges of memory that the program has mapped itself.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::{status, Failure, Outcome};
use libc::{c_int, c_uint, c_void};
use tenure_core::{volatile, Outcome as Found, Priority};

/// The priority of memory that the kernel takes first.
pub const TENURE_PRIORITY_LOWEST: c_uint = 0;
/// The priority of memory for which the program sets none.
pub const TENURE_PRIORITY_DEFAULT: c_uint = 4;
/// The priority of memory that the kernel takes last.
pub const TENURE_PRIORITY_HIGHEST: c_uint = 7;

/// Receives an extent that is gone: `offset` and `len` in bytes from the start of the range or
/// buffer of the call, and `arg` as it was passed.
pub type tenure_gone_fn = Option<unsafe extern "C" fn(offset: usize, len: usize, arg: *mut c_void)>;

pub(crate) fn priority(level: c_uint) -> Outcome<Priority> {
    u8::try_from(level).ok().and_then(Priority::new).ok_or_else(|| {
        Failure::invalid(format_args!(
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

/// Makes `[addr, addr + len)` volatile: from now on the worker may offer the pages to the kernel.
/// Marking a marked range again changes nothing. The range is page-aligned; it may have been marked
/// in other pieces before.
///
/// While a range is marked the program must not unmap it, replace it by another mapping, make it
/// read-only or inaccessible, or lock it: call tenure_mnovolatile or tenure_forget before. A touch
/// of a page that is gone raises SIGBUS. Where tenure_detection() is TENURE_DETECTION_WORDS the
/// page reads as zeros instead, and the program must not write to a marked range.
///
/// Cost: no system call for a range that was marked before (about 30 ns, whatever its size). The
/// first mark of a range checks it, which takes about 3 us.
///
/// Errors: EINVAL: empty, unaligned or wrapping; shared memory or a file's; locked; not readable and
/// writable. ENOMEM: part of it is not mapped, or there are 33 million ranges already. EOPNOTSUPP:
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

/// As tenure_mvolatile, with a priority from 0 (the kernel takes it first) to 7 (last). The
/// priority holds until the range is marked with another.
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

/// Makes `[addr, addr + len)` non-volatile. Returns 0 if all of it is still there, and 1 if at
/// least one page is gone. Pages that are gone read as zeros and can be written. Every other byte
/// is as it was. Parts that were never marked count as there.
///
/// Cost: no system call for a range that was not offered to the kernel (about 30 ns, whatever its
/// size). Offered: 0.5 us for a 2 MiB huge page, 140 ns for a 4 KiB page, and 1.2 us. Purged: a
/// look at the page map (4 ns a page) as well.
///
/// Errors: EINVAL: empty, unaligned or wrapping; or no longer writable. ENOMEM: part of it is not
/// mapped, or there is no memory for pages that a fork shares. After an error each part is either
/// volatile as before or the program's again. No loss is forgotten: the next call for that part
/// reports it.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_mnovolatile(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_mnovolatile", || {
        // SAFETY: the C caller owns the range and holds it mapped during the call.
        Ok(found(unsafe { volatile::unmark(addr.cast(), len)? }))
    })
}

/// As tenure_mnovolatile, and reports the purged extents. It calls `gone` for each extent that is
/// gone, with the offset from `addr`, in order, before it returns. `gone` may be NULL.
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

/// Offers the marked part of the range to the kernel now, without the usual wait.
///
/// Errors: EINVAL: nothing in the range is marked, the range is empty, unaligned or wrapping, or
/// the program has locked, protected or replaced the memory meanwhile. ENOMEM: part of it is not
/// mapped any more, or the process has too many mappings. EBUSY: a process made by fork shares the
/// pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_offer_now(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_offer_now", || {
        // SAFETY: the C caller has marked the range, so it does not rely on the contents, and keeps
        // it mapped.
        unsafe { volatile::offer_now(addr.cast(), len)? };
        Ok(0)
    })
}

/// Offers the marked part of the range, and makes the kernel discard it by its own reclaim. It is
/// for tests, and to give memory back at once. The kernel may leave a page that is in use
/// elsewhere. tenure_mnovolatile_map reports the purged extents.
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

/// Makes the range non-volatile and forgets its state in tenure, so that the program may unmap it
/// or use it for something else. The next tenure_mvolatile checks it anew.
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

/// Returns 1 if any page of the range is marked and not unmarked since, and 0 if none is: the memory
/// of objects (tenure_volatile_new, caches) does not count. Returns 0, too, if the range is empty,
/// unaligned or wrapping, because no such range can be marked.
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
