//! Finds the definition of a symbol, before the program runs: a lookup waits for a thread that loads a
//! library, and the program may have that thread wait for this one.

#![allow(unsafe_code, reason = "asks the loader")]

use std::ffi::{c_void, CStr};

/// Returns the next definition in the loader's order; null if there is none.
pub fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated string. The result is relative to the library that makes this call.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Returns the definition that the process uses.
pub fn used(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}
