//! Where a symbol is defined.

use std::ffi::{c_void, CStr};

/// The next definition in the loader's order; null if there is none.
pub fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated string. The result is relative to the library that makes this call.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// The definition that the process uses.
pub fn used(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}
