//! Unmapping without stalls.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::{status, Failure};
use crate::sized::{self, Versioned};
use libc::{c_int, c_void};
use std::mem::size_of;
use std::time::Duration;
use tenure_core::retire::{self, Files, Settings};

/// For tenure_retire_settings.pending_max: tenure finds the bound from the limits of the process.
pub const TENURE_PENDING_AUTOMATIC: u64 = u64::MAX;
/// For tenure_retire_settings.files: the call gives up file mappings before it returns.
pub const TENURE_FILES_AT_ONCE: u64 = 0;
/// For tenure_retire_settings.files: the worker gives up file mappings later, as other memory.
/// Until then the file system cannot be unmounted, and a memfd cannot be sealed against writes.
pub const TENURE_FILES_LATER: u64 = 1;

/// How tenure_munmap works. Start from the settings in force: tenure_retire_settings(&s, sizeof s).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_retire_settings {
    /// sizeof(struct tenure_retire_settings).
    pub size: usize,
    /// Ranges below this many bytes are unmapped by plain munmap.
    pub min_bytes: u64,
    /// How long another thread may have to wait for one step of a teardown, in microseconds (1,000 unless
    /// set).
    pub longest_stall_us: u64,
    /// How many resident bytes may wait for their teardown; TENURE_PENDING_AUTOMATIC unless set.
    pub pending_max: u64,
    /// TENURE_FILES_AT_ONCE (unless set) or TENURE_FILES_LATER.
    pub files: u64,
}

// SAFETY: `repr(C)`, starts with its size, and is made of integers.
unsafe impl Versioned for tenure_retire_settings {
    const FIRST: usize = size_of::<tenure_retire_settings>();
}

fn in_force() -> tenure_retire_settings {
    let settings = retire::settings();
    tenure_retire_settings {
        size: size_of::<tenure_retire_settings>(),
        min_bytes: settings.min_bytes as u64,
        longest_stall_us: settings.longest_stall.as_micros() as u64,
        pending_max: settings.pending_max.unwrap_or(TENURE_PENDING_AUTOMATIC),
        files: match settings.files {
            Files::Later => TENURE_FILES_LATER,
            _ => TENURE_FILES_AT_ONCE,
        },
    }
}

/// Unmaps as munmap does, and a large mapping in some 10 us, and 0.2 ms for each GiB at most. When the call returns, the
/// addresses are free: a touch raises SIGSEGV, and a new mapping may take them. The worker gives
/// the memory back in the background, and other threads can map, unmap and fault meanwhile. As with
/// munmap the range may hold any mappings and holes, and the length is rounded up to pages.
///
/// The first call of a process (or of a forked child) for a large range creates the background
/// thread, which allocates. Allocators call tenure_munmap_raw. If it cannot create a thread, it
/// unmaps the range in slices: the caller waits, and other threads do not. Memory that waits counts
/// as the process's: see tenure_munmap_drain.
///
/// Errors: munmap's. EINVAL: empty, unaligned, past the end of the address space, or its ends cut a
/// huge page of hugetlbfs. EPERM: sealed. ENOMEM: it would cut a mapping in two, and there are
/// vm.max_map_count already. EDEADLK: a signal handler calls it in the middle of a call of its thread
/// for memory that is marked volatile; unmap it later. Nothing is changed then.
///
/// A large range goes in parts. If the kernel refuses a part late (a filter that fails munmap), the
/// other parts are gone. Sometimes tenure cannot find out before whether the kernel will refuse: with
/// such a filter; for a sealed mapping where mremap is refused; without /proc; with too many mappings,
/// for memory with both MADV_DONTDUMP and MADV_DONTFORK. Memory that stays then is no longer marked,
/// and counts as purged. From then on each unmark of memory that is not marked says so, too. If another
/// thread has used locks meanwhile, guards no longer end the locks of this memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_munmap(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_munmap", || {
        // SAFETY: the C caller has the duties of munmap: nothing in the program uses the range any
        // more.
        unsafe { retire::munmap(addr.cast(), len)? };
        Ok(0)
    })
}

/// As tenure_munmap, for an allocator: it neither allocates nor creates a thread, and a signal
/// handler may call it. Until tenure_munmap_prepare (or tenure_munmap of a large range) was called
/// in the process it works in slices, which take the caller as long as munmap takes or longer.
///
/// Errors: as tenure_munmap. It leaves tenure_last_error() as it was, because a message would take
/// memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_munmap_raw(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_munmap_raw", || {
        // SAFETY: the C caller has the duties of munmap: nothing in the program uses the range any
        // more.
        match unsafe { retire::munmap_raw(addr.cast(), len) } {
            Ok(_) => Ok(0),
            Err(errno) => Err(Failure::unexplained(errno)),
        }
    })
}

/// Registers the fork handlers and starts the background thread, for tenure_munmap_raw. Call it
/// once in a process, and again in a forked child, where memory may be allocated. Later calls cost
/// a few loads. tenure_munmap does it by itself.
///
/// Errors: EAGAIN: no thread could be created.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_munmap_prepare() -> c_int {
    status("tenure_munmap_prepare", || {
        retire::prepare()?;
        Ok(0)
    })
}

/// Waits until all memory that tenure_munmap has taken is back, at most `timeout_ms`. Less than 0:
/// for as long as it takes. The caller helps. Returns 0 if it is back, and 1 if it is not.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_munmap_drain(timeout_ms: c_int) -> c_int {
    status("tenure_munmap_drain", || {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Ok(c_int::from(!retire::drain(timeout)))
    })
}

/// Writes the settings of tenure_munmap in force to `*out`, which has `size` bytes.
///
/// Errors: EINVAL: NULL, or no room for the size field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_retire_settings(
    out: *mut tenure_retire_settings,
    size: usize,
) -> c_int {
    status("tenure_retire_settings", || {
        if size < size_of::<usize>() {
            return Err(Failure::invalid("no room for the size field; pass sizeof the structure"));
        }
        let mut settings = in_force();
        settings.size = size.min(size_of::<tenure_retire_settings>());
        // SAFETY: `out` is NULL, which `write` refuses, or has `size` writable bytes. All fields
        // are integers of one size, so there is no padding.
        unsafe { sized::write(out, size, &settings) }
    })
}

/// Sets how tenure_munmap works, for the whole process and from the next call on.
///
/// Errors: EINVAL: NULL, the size field is too small, or an unknown value of files. E2BIG: something is set
/// that this version does not know.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_retire_configure(settings: *const tenure_retire_settings) -> c_int {
    status("tenure_retire_configure", || {
        if settings.is_null() {
            return Err(Failure::invalid(
                "no settings; pass a structure that tenure_retire_settings has filled in",
            ));
        }
        // SAFETY: `settings` is not NULL here, and is as long as its size field says.
        let wanted = unsafe { sized::read(settings, in_force())? };
        let mut settings = Settings::default();
        settings.min_bytes = usize::try_from(wanted.min_bytes).unwrap_or(usize::MAX);
        settings.longest_stall = Duration::from_micros(wanted.longest_stall_us);
        settings.pending_max =
            (wanted.pending_max != TENURE_PENDING_AUTOMATIC).then_some(wanted.pending_max);
        settings.files = match wanted.files {
            TENURE_FILES_AT_ONCE => Files::AtOnce,
            TENURE_FILES_LATER => Files::Later,
            _ => {
                return Err(Failure::invalid(
                    "files is neither TENURE_FILES_AT_ONCE nor TENURE_FILES_LATER",
                ))
            }
        };
        retire::configure(settings);
        Ok(0)
    })
}
