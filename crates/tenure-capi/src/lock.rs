//! Locking: pages that are not paged out.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::{status, value, Failure};
use libc::{c_int, c_uint, c_void};
use tenure_core::lock::{self, Kinds, Scope, When};

/// For tenure_mlock2 and tenure_munlock2: all pages now.
pub const TENURE_MLOCK_LOCKED: c_uint = 1;
/// For tenure_mlock2 and tenure_munlock2: each page from its first touch on.
pub const TENURE_MLOCK_ONFAULT: c_uint = 2;

/// For tenure_mmap, with mmap's own flags: the mapping is locked on fault from the start. Linux
/// does not use this bit, and it does not reach the kernel.
pub const TENURE_MAP_LOCKONFAULT: c_int = 0x0100_0000;

/// The pages that the range touches, as the kernel's own calls take it. What would wrap around stays as
/// it is, to be refused with its own numbers.
pub(crate) fn whole_pages(addr: *const c_void, len: usize) -> (*const u8, usize) {
    // SAFETY: the call reads a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let before = addr as usize % page;
    match len.checked_add(before).and_then(|len| len.checked_next_multiple_of(page)) {
        Some(whole) if len > 0 => (addr.cast::<u8>().wrapping_sub(before), whole),
        _ => (addr.cast(), len),
    }
}

/// The one kind of lock that the flags name.
pub(crate) fn kind(flags: c_uint) -> Result<When, Failure> {
    match flags {
        TENURE_MLOCK_LOCKED => Ok(When::Now),
        TENURE_MLOCK_ONFAULT => Ok(When::OnFault),
        _ => Err(Failure::invalid(format_args!(
            "flags {flags:#x} are not one kind of lock; pass either TENURE_MLOCK_LOCKED (1) or \
             TENURE_MLOCK_ONFAULT (2)"
        ))),
    }
}

/// Locks the pages that [addr, addr + len) touches. TENURE_MLOCK_LOCKED makes all of them resident
/// and keeps them so. TENURE_MLOCK_ONFAULT keeps each page from its first touch on. Pass exactly
/// one of the two. The whole length is charged against RLIMIT_MEMLOCK either way, once.
///
/// Unlike the kernel's mlock2 it changes nothing when it fails, and a lock on fault does not weaken
/// a full lock. Memory that the kernel only pretends to lock (MAP_DROPPABLE) is an error. The two
/// kinds are kept apart: see tenure_munlock2. The lock is not counted: a second call adds nothing.
///
/// Cost: on fault about 7 us for a mapping of any size with nothing locked in it.
///
/// Errors: EINVAL: empty or wrapping; flags are not exactly one kind; part of it is volatile;
/// MAP_DROPPABLE. ENOMEM: over the limit; a hole; too many mappings. With TENURE_MLOCK_LOCKED also
/// a page past the end of its file, a guard page, a page without access, a full tmpfs:
/// tenure_last_error() names the page, and a remedy. EPERM: the limit is 0. EAGAIN: no memory to
/// make all of it resident.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mlock2(addr: *const c_void, len: usize, flags: c_uint) -> c_int {
    status("tenure_mlock2", || {
        let when = kind(flags)?;
        let (addr, len) = whole_pages(addr, len);
        lock::mlock2(addr, len, when)?;
        Ok(0)
    })
}

/// Clears the kinds of lock named from the pages that [addr, addr + len) touches, and no others. A
/// range that was locked in both ways and is cleared of TENURE_MLOCK_LOCKED stays locked on fault.
/// Pages that stay locked are not unlocked for an instant.
///
/// Cost: one system call where nothing is locked. Otherwise a reading of /proc/self/smaps (10 ns
/// for each resident page of the process).
///
/// Errors: EINVAL: empty or wrapping; no kind, or an unknown kind. ENOMEM: part of it is not
/// mapped; too many mappings; the limit is now below the locked bytes. Others: /proc/self/smaps could
/// not be read. Nothing is changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_munlock2(addr: *const c_void, len: usize, flags: c_uint) -> c_int {
    status("tenure_munlock2", || {
        let all = TENURE_MLOCK_LOCKED | TENURE_MLOCK_ONFAULT;
        if flags & !all != 0 {
            return Err(unknown(
                flags & !all,
                "TENURE_MLOCK_LOCKED (1) and TENURE_MLOCK_ONFAULT (2)",
            ));
        }
        let kinds = Kinds {
            now: flags & TENURE_MLOCK_LOCKED != 0,
            on_fault: flags & TENURE_MLOCK_ONFAULT != 0,
        };
        let (addr, len) = whole_pages(addr, len);
        lock::munlock2(addr, len, kinds)?;
        Ok(0)
    })
}

/// Locks everything that is mapped (MCL_CURRENT), everything that will be mapped (MCL_FUTURE), or
/// both. With MCL_ONFAULT each page is locked from its first touch on. A call without MCL_FUTURE
/// ends an earlier future lock. The flags are those of <sys/mman.h>. Unlike the kernel's call it
/// does not weaken a full lock.
///
/// Errors: EINVAL: neither MCL_CURRENT nor MCL_FUTURE, or an unknown flag; memory is volatile (with
/// MCL_CURRENT). ENOMEM: the mappings are larger than the limit. EPERM: the limit is 0. Others:
/// /proc/self/smaps could not be read. Nothing is changed then.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_mlockall(flags: c_int) -> c_int {
    status("tenure_mlockall", || {
        lock::mlockall(scope(flags)?)?;
        Ok(0)
    })
}

/// Clears the locks of tenure_mlockall. MCL_CURRENT: full locks of present mappings. MCL_ONFAULT:
/// locks on fault of present mappings, and future ones. MCL_FUTURE: the lock of future mappings.
/// Pages that stay locked are not unlocked for an instant.
///
/// Errors: EINVAL: no flag, or an unknown one. ENOMEM: a future lock ends while something stays
/// locked, and the mappings are larger than the limit. Others: /proc/self/smaps could not be read.
/// Nothing is changed then.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_munlockall2(flags: c_int) -> c_int {
    status("tenure_munlockall2", || {
        lock::munlockall2(scope(flags)?)?;
        Ok(0)
    })
}

/// As mmap(2). With TENURE_MAP_LOCKONFAULT among the flags the mapping is locked on fault from the
/// start: no page that is ever touched is paged out, and no page is resident yet. With MAP_FIXED as
/// well, the old mapping is replaced only when the new one is locked. Returns MAP_FAILED (not NULL)
/// on failure.
///
/// Errors: mmap's. With TENURE_MAP_LOCKONFAULT also EAGAIN: over RLIMIT_MEMLOCK; EPERM: the limit
/// is 0; EINVAL: MAP_LOCKED as well, or MAP_DROPPABLE. The call maps nothing then, and keeps the
/// old mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: i64,
) -> *mut c_void {
    value("tenure_mmap", libc::MAP_FAILED, || {
        if flags & TENURE_MAP_LOCKONFAULT == 0 {
            // SAFETY: the C caller has the duties of mmap: with MAP_FIXED the program does not use
            // the old mapping at `addr`.
            let at = unsafe { lock::mmap(addr.cast(), len, prot, flags, fd, off)? };
            return Ok(at.cast());
        }
        let flags = flags & !TENURE_MAP_LOCKONFAULT;
        // SAFETY: the C caller has the duties of mmap: with MAP_FIXED the program does not use the
        // old mapping at `addr`.
        let at = unsafe { lock::mmap_on_fault(addr.cast(), len, prot, flags, fd, off)? };
        Ok(at.cast())
    })
}

fn scope(flags: c_int) -> Result<Scope, Failure> {
    use libc::{MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT};
    let all = MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT;
    if flags & !all != 0 {
        let names = "MCL_CURRENT, MCL_FUTURE and MCL_ONFAULT";
        return Err(unknown(flags & !all, names));
    }
    Ok(Scope {
        current: flags & MCL_CURRENT != 0,
        future: flags & MCL_FUTURE != 0,
        on_fault: flags & MCL_ONFAULT != 0,
    })
}

fn unknown(flags: impl std::fmt::LowerHex, known: &str) -> Failure {
    Failure::invalid(format_args!("unknown flags {flags:#x}; there are {known}"))
}
