//! The function that creates tenure's threads: the C library's, unless the launcher has named another
//! one.

#![allow(unsafe_code, reason = "calls the C library's function for threads")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The first function of a thread.
pub type Body = extern "C" fn(*mut c_void) -> *mut c_void;
/// `pthread_create(3)`.
pub type Creation = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Body,
    *mut c_void,
) -> c_int;

/// For the whole process: its threads are created by one function. Null: by the one of that name.
static CREATION: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Has tenure's threads created by this function. The launcher names the definition behind its own:
/// a free may create a thread, and a program's own definition may need a lock under which the
/// program frees. (One of a library that the program loads would be called.)
pub fn create_threads_by(creation: Creation) {
    CREATION.store(creation as *mut c_void, Ordering::Relaxed);
}

/// Creates a thread. Returns the errno.
///
/// # Safety
/// As for `pthread_create(3)`.
pub(super) unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    body: Body,
    argument: *mut c_void,
) -> c_int {
    let at = CREATION.load(Ordering::Relaxed);
    if at.is_null() {
        // SAFETY: the caller keeps the promises of pthread_create.
        return unsafe { libc::pthread_create(thread, attributes, body, argument) };
    }
    // SAFETY: only `create_threads_by` stores it, from a function of this type. The caller keeps the
    // promises of pthread_create.
    unsafe { std::mem::transmute::<*mut c_void, Creation>(at)(thread, attributes, body, argument) }
}
