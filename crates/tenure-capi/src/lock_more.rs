//! Locks that prefault in the background, and locks within a budget.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::lock::whole_pages;
use crate::populate::{progress_of, room, tell, tenure_populate_progress, tenure_populate_result};
use crate::report::{pointer, status, Failure, Outcome};
use crate::sized;
use libc::{c_int, c_void};
use std::time::{Duration, Instant};
use tenure_core::lock::{self, Gradual, Within};

/// A lock on fault whose pages become resident in the background. Opaque.
pub struct tenure_gradual {
    gradual: Gradual,
}

/// A range with a lock on the part that was used last. Opaque.
pub struct tenure_within {
    within: Within,
}

/// The bytes that a lock within a budget has locked now, and its counters so far.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_within_status {
    /// Bytes locked on fault at the moment; never more than the budget.
    pub locked_bytes: u64,
    /// Bytes that were locked since the start.
    pub moved_in_bytes: u64,
    /// Bytes that were unlocked for them since the start.
    pub moved_out_bytes: u64,
    /// How often the thread has looked at the uses.
    pub looks: u64,
    /// Windows that the kernel refused to lock.
    pub refused: u64,
}

/// Locks the pages that [addr, addr + len) touches on fault now, and prefaults them in the
/// background. The program may use them at once. Each page is locked from the moment it is
/// resident. Files on disk, and private mappings of tmpfs files and memfds, are populated for
/// reading, so that no private copy is made; other memory for writing. Returns NULL on failure.
/// The caller waits 0.1 to 0.2 ms for the start of two threads.
///
/// Errors: as tenure_lock with TENURE_MLOCK_ONFAULT; EAGAIN: no thread could be started. Others:
/// /proc/self/maps could not be read (ENOENT: no /proc is mounted; EMFILE, ENFILE: no file can be
/// opened). Nothing is locked then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_lock_gradually(
    addr: *const c_void,
    len: usize,
) -> *mut tenure_gradual {
    pointer("tenure_lock_gradually", || {
        let (addr, len) = whole_pages(addr, len);
        let gradual = lock::gradually(addr, len)?;
        Ok(Box::into_raw(Box::new(tenure_gradual { gradual })))
    })
}

/// # Safety
/// NULL, or from `tenure_lock_gradually`, and not ended while the result is used.
unsafe fn gradual<'a>(g: *const tenure_gradual) -> Outcome<&'a Gradual> {
    // SAFETY: `g` is NULL, or a lock from `tenure_lock_gradually` that is not ended yet, as this
    // function requires.
    match unsafe { g.as_ref() } {
        Some(held) => Ok(&held.gradual),
        None => Err(Failure::invalid(
            "the lock is NULL; pass the one that tenure_lock_gradually returned",
        )),
    }
}

/// Writes how far the background threads have come to `*out`, which has `size` bytes.
/// In a forked child, which has no locks, it writes zeros.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_gradual_progress(
    g: *const tenure_gradual,
    out: *mut tenure_populate_progress,
    size: usize,
) -> c_int {
    status("tenure_gradual_progress", || {
        // SAFETY: the C caller passes NULL, or a lock from `tenure_lock_gradually` that is not
        // ended yet.
        let now = progress_of(unsafe { gradual(g) }?.progress());
        // SAFETY: the C caller passes NULL or `size` writable bytes. All fields are integers of one
        // size, so there is no padding.
        unsafe { sized::write(out, size, &now) }
    })
}

/// Waits until all pages are resident, at most `timeout_ms`. Less than 0: for as long as it takes.
/// Returns 0 if they are, and 1 if they are not. `result` may be NULL. It is written when the work
/// is over. A second call returns the same result.
///
/// Errors: as tenure_populate, if a page could not be made resident. The lock stays. ECANCELED: in a
/// forked child, which has no locks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_gradual_wait(
    g: *const tenure_gradual,
    timeout_ms: c_int,
    result: *mut tenure_populate_result,
) -> c_int {
    status("tenure_gradual_wait", || {
        // SAFETY: the C caller passes NULL, or a structure with as many writable bytes as its size
        // field says.
        let size = unsafe { room(result) }?;
        let patience = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        let until = Instant::now().checked_add(patience);
        // SAFETY: the C caller passes NULL, or a lock from `tenure_lock_gradually` that is not
        // ended before this call returns.
        let held = unsafe { gradual(g) }?;
        loop {
            // In a child of fork it counts as finished, also if the signal handler that made the
            // child has interrupted this call.
            if held.is_finished() {
                let outcome = held.wait();
                // SAFETY: `result` is NULL, or has as many writable bytes as its size field says,
                // and `room` has read `size` from there.
                return unsafe { tell(result, size, outcome) };
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match left {
                Some(Duration::ZERO) => return Ok(1),
                left => std::thread::sleep(left.unwrap_or(NAP).min(NAP)),
            }
        }
    })
}

const NAP: Duration = Duration::from_millis(1);

/// Ends the background threads, unlocks, and frees the handle. NULL does nothing. In a forked child
/// it only frees the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_gradual_end(g: *mut tenure_gradual) {
    status("tenure_gradual_end", || {
        if !g.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `tenure_lock_gradually`, and the C
            // caller ends a lock only once and does not use it afterwards.
            drop(unsafe { Box::from_raw(g) });
        }
        Ok(0)
    });
}

/// Keeps the last used pages of [addr, addr + len) locked, `budget` bytes at most. The kernel may
/// page out the rest. It is for a range that is larger than RLIMIT_MEMLOCK allows. A page that was
/// touched is locked some 20 ms later. Returns NULL on failure. Costs 24 bytes for each window that
/// has a resident page (a 16th to a quarter of the budget, 2 MiB or a thousandth of large ones).
///
/// Until tenure_within_end the range must stay mapped as it is. tenure takes pages of shared
/// mappings out of the page table, to see whether they are used again: if private memory were
/// mapped there instead, its contents could be lost.
///
/// Errors: EINVAL: empty or wrapping; volatile; a budget below 16 pages. ENOMEM, EPERM: the
/// budget is more than may still be locked. ENOMEM: part of it is not mapped. EAGAIN: no thread could
/// be started. Others: /proc/self/smaps or /proc/self/pagemap could not be read (EACCES: after setuid).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_lock_within(
    addr: *const c_void,
    len: usize,
    budget: usize,
) -> *mut tenure_within {
    pointer("tenure_lock_within", || {
        let (addr, len) = whole_pages(addr, len);
        // SAFETY: the C caller keeps the range mapped, and the same memory in it, until it ends the
        // lock.
        let within = unsafe { lock::within(addr, len, budget) }?;
        Ok(Box::into_raw(Box::new(tenure_within { within })))
    })
}

/// Writes the bytes that are locked now, and the counters so far, to `*out`, which has `size`
/// bytes. In a forked child, which has no locks, it writes zeros.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_within_status(
    w: *const tenure_within,
    out: *mut tenure_within_status,
    size: usize,
) -> c_int {
    status("tenure_within_status", || {
        // SAFETY: the C caller passes NULL, or a lock from `tenure_lock_within` that is not ended
        // yet.
        let Some(held) = (unsafe { w.as_ref() }) else {
            return Err(Failure::invalid(
                "the lock is NULL; pass the one that tenure_lock_within returned",
            ));
        };
        let now = held.within.status();
        let value = tenure_within_status {
            locked_bytes: now.locked_bytes,
            moved_in_bytes: now.moved_in_bytes,
            moved_out_bytes: now.moved_out_bytes,
            looks: now.looks,
            refused: now.refused,
        };
        // SAFETY: the C caller passes NULL or `size` writable bytes. All fields are integers of one
        // size, so there is no padding.
        unsafe { sized::write(out, size, &value) }
    })
}

/// Unlocks the whole range and frees the handle. NULL does nothing. In a forked child it only frees
/// the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_within_end(w: *mut tenure_within) {
    status("tenure_within_end", || {
        if !w.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `tenure_lock_within`, and the C
            // caller ends a lock only once and does not use it afterwards.
            drop(unsafe { Box::from_raw(w) });
        }
        Ok(0)
    });
}
