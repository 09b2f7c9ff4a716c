//! Finds the definition of a symbol.

#![allow(unsafe_code, reason = "asks the loader")]

use std::ffi::{c_void, CStr};
use std::sync::atomic::{AtomicPtr, Ordering};

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

/// The C library's definition of a function. It is looked up at its first use.
pub struct OfTheLibrary {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl OfTheLibrary {
    pub const fn new(name: &'static CStr) -> OfTheLibrary {
        OfTheLibrary { name, at: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns null if there is none.
    pub fn get(&self) -> *mut c_void {
        let mut at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            at = next(self.name);
            self.at.store(at, Ordering::Relaxed);
        }
        at
    }
}
