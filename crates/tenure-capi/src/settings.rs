//! The worker's settings.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::{status, Failure};
use crate::sized::{self, Versioned};
use libc::c_int;
use std::mem::size_of;
use std::time::Duration;
use tenure_core::volatile::{self, Settings};

/// For tenure_settings.unoffered_max: tenure finds the bound from the limits of the process.
pub const TENURE_AUTOMATIC: u64 = u64::MAX;

/// The settings for volatile memory. Start from the settings in force: tenure_settings(&s, sizeof
/// s).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_settings {
    /// sizeof(struct tenure_settings).
    pub size: usize,
    /// How long a range stays marked before it is offered to the kernel when memory is not short,
    /// in microseconds (500,000 unless set).
    pub offer_after_us: u64,
    /// How many bytes may be marked and not offered. Beyond that the oldest marked ranges are
    /// offered at once. TENURE_AUTOMATIC (unless set): a quarter of the free memory, at least 16
    /// MiB.
    pub unoffered_max: u64,
}

// SAFETY: `repr(C)`, starts with its size, and is made of integers.
unsafe impl Versioned for tenure_settings {
    const FIRST: usize = size_of::<tenure_settings>();
}

fn in_force() -> tenure_settings {
    let settings = volatile::settings();
    tenure_settings {
        size: size_of::<tenure_settings>(),
        offer_after_us: settings.offer_after.as_micros() as u64,
        unoffered_max: settings.unoffered_max.unwrap_or(TENURE_AUTOMATIC),
    }
}

/// Writes the settings for volatile memory in force to `*out`, which has `size` bytes. Its own size
/// field has the number of bytes that count.
///
/// Errors: EINVAL: NULL, or no room for the size field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_settings(out: *mut tenure_settings, size: usize) -> c_int {
    status("tenure_settings", || {
        if size < size_of::<usize>() {
            return Err(Failure::invalid("no room for the size field; pass sizeof the structure"));
        }
        let mut settings = in_force();
        settings.size = size.min(size_of::<tenure_settings>());
        // SAFETY: `out` is NULL, which `write` refuses, or has `size` writable bytes. All fields
        // are integers of one size, so there is no padding.
        unsafe { sized::write(out, size, &settings) }
    })
}

/// Sets the settings for volatile memory, for the whole process. They take effect at the worker's
/// next scan, at once if it sleeps.
///
/// Errors: EINVAL: NULL, or the size field is too small. E2BIG: something is set that this version
/// does not know.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_configure(settings: *const tenure_settings) -> c_int {
    status("tenure_configure", || {
        if settings.is_null() {
            return Err(Failure::invalid(
                "no settings; pass a structure that tenure_settings has filled in",
            ));
        }
        // SAFETY: `settings` is not NULL here, and is as long as its size field says.
        let wanted = unsafe { sized::read(settings, in_force())? };
        let mut settings = Settings::default();
        settings.offer_after = Duration::from_micros(wanted.offer_after_us);
        settings.unoffered_max =
            (wanted.unoffered_max != TENURE_AUTOMATIC).then_some(wanted.unoffered_max);
        volatile::configure(settings);
        Ok(0)
    })
}

/// Ends tenure's background threads, does their remaining teardowns, and waits until the kernel no
/// longer counts them. Call it before unshare, setns, capset, a seccomp filter, Landlock, and other
/// calls that the kernel allows only to a process with one thread, or that take effect for the
/// calling thread alone. The next call that needs a thread starts it anew, with the rights of its
/// caller. Until then marked ranges stay marked. The threads of tenure_populate_start,
/// tenure_lock_gradually and tenure_lock_within are not among them: end those calls first.
///
/// Returns 0 if they have ended. Returns 1 if they have not: an object has a refill callback, and a
/// thread that touches its purged pages waits for these threads (none was ended; free such objects
/// first), a thread is in a long system call for a second, the kernel takes half a minute to end it,
/// or the thread that listens for memory pressure cannot be told to end (Linux before 5.9, or
/// close_range is refused).
#[unsafe(no_mangle)]
pub extern "C" fn tenure_end_background_threads() -> c_int {
    status("tenure_end_background_threads", || {
        Ok(c_int::from(!tenure_core::end_background_threads()))
    })
}
