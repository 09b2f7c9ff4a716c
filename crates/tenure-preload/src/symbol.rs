//! Finds the definition of a symbol, before the program runs: a lookup waits for a thread that loads a
//! library, and the program may have that thread wait for this one.

#![allow(unsafe_code, reason = "asks the loader")]

use std::ffi::{c_int, c_void, CStr};

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

/// A visitor of [`each_object`].
type Visit<'a> = &'a mut dyn FnMut(&libc::dl_phdr_info) -> bool;

/// Calls `each` for the loaded program and libraries, while it returns `true`. In the constructor only.
///
/// A program may have a function of the C library's name, which nobody has initialised yet.
pub fn each_object(mut each: Visit<'_>) {
    type Each = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
    type Function = unsafe extern "C" fn(Each, *mut c_void) -> c_int;
    let function = next(c"dl_iterate_phdr");
    if !function.is_null() {
        // SAFETY: the C library's function of that name. The callback is given the visitor, which
        // outlives the call, and nobody else uses it.
        unsafe {
            let function = std::mem::transmute::<*mut c_void, Function>(function);
            function(visit, (&raw mut each).cast());
        }
    }
}

/// Ends the walk by returning 1.
unsafe extern "C" fn visit(about: *mut libc::dl_phdr_info, _: usize, each: *mut c_void) -> c_int {
    // SAFETY: the loader's own structure, for the length of the call; `each_object` passes its visitor.
    let (about, each) = unsafe { (&*about, &mut *each.cast::<Visit<'_>>()) };
    (!each(about)).into()
}
