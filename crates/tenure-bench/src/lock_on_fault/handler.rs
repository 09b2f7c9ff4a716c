//! Lock on fault by hand: `PROT_NONE`, and a handler of SIGSEGV that makes pages readable and locks
//! them, a batch at a time.

#![allow(unsafe_code, reason = "opens pages in a handler of SIGSEGV")]

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);
static BATCH: AtomicUsize = AtomicUsize::new(1);
static REFUSED: AtomicI32 = AtomicI32::new(0);

/// Has every first touch of `range` make `batch` pages readable and locked, for the rest of this
/// process.
///
/// # Errors
/// An error of `sigaction`.
pub(super) fn install(range: Range<usize>, page: usize, batch: usize) -> io::Result<()> {
    START.store(range.start, Relaxed);
    END.store(range.end, Relaxed);
    PAGE.store(page, Relaxed);
    BATCH.store(batch, Relaxed);
    // SAFETY: an all-zero sigaction is one without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler calls only async-signal-safe functions; the old action is not needed.
    match unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reports a refusal by the kernel for the touched page, not for the speculative rest of a batch.
///
/// # Errors
/// `Unsupported` with the reason, if there was one.
pub(super) fn check() -> io::Result<()> {
    match REFUSED.load(Relaxed) {
        0 => Ok(()),
        errno => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("mprotect or mlock of a touched page: {}", io::Error::from_raw_os_error(errno)),
        )),
    }
}

extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t; for SIGSEGV it holds the address.
    let addr = unsafe { (*info).si_addr() } as usize;
    let (start, end, page) = (START.load(Relaxed), END.load(Relaxed), PAGE.load(Relaxed));
    if !(start..end).contains(&addr) {
        // A fault of another cause: it kills the process.
        // SAFETY: restores the default action, under which the access is repeated.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    let first = addr & !(page - 1);
    // First the touched page, which is inside the file; then, speculatively, the rest of the batch,
    // which may reach over the end of the mapping.
    if !readable_and_locked(first, page) {
        // SAFETY: errno is this thread's own.
        REFUSED.store(unsafe { *libc::__errno_location() }, Relaxed);
        // One mapping again, so that the accesses finish and the reason can be reported.
        // SAFETY: the whole range is the caller's file mapping.
        unsafe { libc::mprotect(start as *mut libc::c_void, end - start, libc::PROT_READ) };
        return;
    }
    let rest = (BATCH.load(Relaxed) - 1) * page;
    if rest > 0 {
        readable_and_locked(first + page, rest);
    }
}

fn readable_and_locked(addr: usize, len: usize) -> bool {
    let addr = addr as *mut libc::c_void;
    // SAFETY: inside the mapping of the file or the unused reservation behind it, of which no
    // reference is held; neither call changes contents.
    unsafe { libc::mprotect(addr, len, libc::PROT_READ) == 0 && libc::mlock(addr, len) == 0 }
}
