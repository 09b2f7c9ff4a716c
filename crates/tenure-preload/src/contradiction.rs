//! Locking all memory contradicts a pool that gives memory back. The launcher refuses the two
//! together, but the environment may ask for both.

#![allow(unsafe_code, reason = "reads the environment before the program runs")]

use crate::serving::{ALLOCATIONS, MAPPINGS};
use crate::text::say;
use std::ffi::CStr;
use tenure_launch as launch;

const LOCK: &CStr = c"TENURE_LOCK";

/// Called after the environment was read. The lock exists by then, so the pool gives way.
pub fn settle() {
    // SAFETY: a terminated string. The constructor runs before any thread that could change the
    // environment.
    let lock = unsafe { libc::getenv(LOCK.as_ptr()) };
    if lock.is_null() || !(ALLOCATIONS.are_served() || MAPPINGS.are_served()) {
        return;
    }
    // SAFETY: a terminated string of the environment.
    if let Ok(Some(_)) = launch::lock(unsafe { CStr::from_ptr(lock) }.to_bytes()) {
        ALLOCATIONS.serve_no_more();
        MAPPINGS.serve_no_more();
        say(format_args!(
            "TENURE_LOCK keeps all memory, and TENURE_LARGE and TENURE_MMAP give memory back: the \
             pool stays off; choose one"
        ));
    }
}
