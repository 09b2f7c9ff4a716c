//! Finds the definition of a symbol, before the program runs: a lookup waits for a thread that loads a
//! library, and the program may have that thread wait for this one.

#![allow(unsafe_code, reason = "asks the loader")]

use std::ffi::{c_int, c_void, CStr};
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

/// A visitor of [`each_object`].
type Visit<'a> = &'a mut dyn FnMut(&libc::dl_phdr_info) -> bool;

/// Calls `each` for the loaded program and libraries, while it returns `true`. Its first call is in the
/// constructor, and looks the loader's function up.
///
/// A program may have a function of the C library's name, which nobody has initialised yet.
pub fn each_object(mut each: Visit<'_>) {
    /// For the whole process: a function has one address.
    static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    type Each = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
    type Function = unsafe extern "C" fn(Each, *mut c_void) -> c_int;
    let mut function = AT.load(Ordering::Relaxed);
    if function.is_null() {
        function = next(c"dl_iterate_phdr");
        AT.store(function, Ordering::Relaxed);
    }
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

/// The aligned words of the variable in which glibc's loader keeps its state. In the constructor only.
#[cfg(target_env = "gnu")]
pub fn loaders_words() -> impl Iterator<Item = *const u64> + Clone {
    const SYMBOL: c_int = 1; // RTLD_DL_SYMENT
    let start = used(c"_rtld_global").cast::<u64>().cast_const();
    let mut about = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let mut symbol: *mut c_void = std::ptr::null_mut();
    // SAFETY: the call fills in the structure, and a pointer to the symbol's entry in the loader's own
    // table; it fails for an address that is nobody's.
    let found =
        unsafe { libc::dladdr1(start.cast(), about.as_mut_ptr(), &mut symbol, SYMBOL) } != 0;
    let bytes = match found && !symbol.is_null() && start.is_aligned() {
        // SAFETY: the entry that the call has found, in a table that stays mapped with the loader.
        true => unsafe { (*symbol.cast::<libc::Elf64_Sym>()).st_size as usize },
        false => 0,
    };
    (0..bytes / size_of::<u64>()).map(move |n| start.wrapping_add(n))
}

/// Other C libraries have no such variable.
#[cfg(not(target_env = "gnu"))]
pub fn loaders_words() -> impl Iterator<Item = *const u64> + Clone {
    std::iter::empty()
}
