//! The limits on the process's own memory (`RLIMIT_AS`, `RLIMIT_DATA`).

#![allow(unsafe_code, reason = "asks the kernel")]

use crate::errno::Errno;
use crate::kernel::kernel;
use std::ffi::c_uint;

/// Returns one of the process's limits. `None`: a filter refuses the call. Keeps errno.
pub fn of(resource: c_uint) -> Option<libc::rlimit64> {
    let _errno = Errno::keep();
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one structure of its own layout, which lives through the call.
    let asked = unsafe { kernel!(libc::SYS_prlimit64, 0, resource, 0, &raw mut limit) };
    (asked == 0).then_some(limit)
}

/// Limits beyond this (four reservations) do not disturb tenure.
pub const FAR: u64 = 64 << 40;

/// Whether a nearer limit is set.
pub fn is_near() -> bool {
    [libc::RLIMIT_AS, libc::RLIMIT_DATA]
        .into_iter()
        .any(|resource| of(resource).is_some_and(|limit| limit.rlim_cur < FAR))
}
