//! The next definitions of this library's functions, in the loader's order.

#![allow(unsafe_code, reason = "calls what the loader has found, as the function that it is")]

use crate::errno::Errno;
use crate::{first_use, symbol};
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// For the whole process: a thread is looking the definitions up.
static LOOKING: AtomicBool = AtomicBool::new(false);

macro_rules! definitions {
    ($($name:ident = $symbol:literal : $kind:ty;)*) => {
        $(
            /// `None` while it is being looked up, and if there is none.
            #[inline]
            pub fn $name() -> Option<$kind> {
                let at = at::$name.load(Ordering::Relaxed);
                if at.is_null() {
                    return slow::$name();
                }
                // SAFETY: `look_up` stored the address of the function of that name, whose type C's
                // headers give.
                Some(unsafe { std::mem::transmute::<*mut c_void, $kind>(at) })
            }
        )*

        #[allow(non_upper_case_globals)]
        pub mod at {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        mod slow {
            use super::*;
            $(
                #[cold]
                pub fn $name() -> Option<$kind> {
                    look_up();
                    let at = at::$name.load(Ordering::Relaxed);
                    if at.is_null() {
                        return None;
                    }
                    // SAFETY: `look_up` stored the address of the function of that name, whose type
                    // C's headers give.
                    Some(unsafe { std::mem::transmute::<*mut c_void, $kind>(at) })
                }
            )*
        }

        fn look_up_each() {
            $(at::$name.store(symbol::next($symbol), Ordering::Relaxed);)*
        }
    };
}

definitions! {
    malloc = c"malloc": unsafe extern "C" fn(usize) -> *mut c_void;
    free = c"free": unsafe extern "C" fn(*mut c_void);
    calloc = c"calloc": unsafe extern "C" fn(usize, usize) -> *mut c_void;
    realloc = c"realloc": unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
    memalign = c"memalign": unsafe extern "C" fn(usize, usize) -> *mut c_void;
    posix_memalign = c"posix_memalign":
        unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
    aligned_alloc = c"aligned_alloc": unsafe extern "C" fn(usize, usize) -> *mut c_void;
    valloc = c"valloc": unsafe extern "C" fn(usize) -> *mut c_void;
    pvalloc = c"pvalloc": unsafe extern "C" fn(usize) -> *mut c_void;
    malloc_usable_size = c"malloc_usable_size": unsafe extern "C" fn(*mut c_void) -> usize;
    free_sized = c"free_sized": unsafe extern "C" fn(*mut c_void, usize);
    free_aligned_sized = c"free_aligned_sized": unsafe extern "C" fn(*mut c_void, usize, usize);
    syscall = c"syscall": SystemCall;
    mremap = c"mremap": Remap;
    mlock2 = c"mlock2": unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
    exit_now = c"_exit": unsafe extern "C" fn(c_int) -> !;
    quick_exit = c"quick_exit": unsafe extern "C" fn(c_int) -> !;
}

type SystemCall =
    unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

type Remap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, ...) -> *mut c_void;

/// One of the definitions, if it was looked up already. Some calls come from places in which no
/// lookup may run.
macro_rules! known {
    ($name:ident) => {
        match $crate::real::is_known(&$crate::real::at::$name) {
            true => $crate::real::$name(),
            false => None,
        }
    };
}
pub(crate) use known;

pub fn is_known(at: &AtomicPtr<c_void>) -> bool {
    !at.load(Ordering::Relaxed).is_null()
}

/// The function that a thread runs.
pub type ThreadBody = extern "C" fn(*mut c_void) -> *mut c_void;
type ThreadCreation = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    ThreadBody,
    *mut c_void,
) -> c_int;

/// `pthread_create`. Before glibc 2.34 it comes with a library that may be loaded late.
pub fn thread_creation() -> Option<ThreadCreation> {
    /// For the whole process: a function has one address.
    static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut at = AT.load(Ordering::Relaxed);
    if at.is_null() {
        at = symbol::next(c"pthread_create");
        AT.store(at, Ordering::Relaxed);
    }
    match at.is_null() {
        true => None,
        // SAFETY: dlsym returned the address of that function, whose type the C headers give.
        false => Some(unsafe { std::mem::transmute::<*mut c_void, ThreadCreation>(at) }),
    }
}

/// Looks all of them up. A call from within the lookup, or from another thread meanwhile, finds
/// none: [`crate::bootstrap_alloc`] serves it.
#[cold]
pub fn look_up() {
    /// For the whole process: the lookup is done.
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Ordering::Acquire) || LOOKING.swap(true, Ordering::Acquire) {
        return;
    }
    // dlsym sets errno if a symbol is missing.
    let errno = Errno::keep();
    first_use::first_call();
    look_up_each();
    thread_creation();
    drop(errno);
    DONE.store(true, Ordering::Release);
    LOOKING.store(false, Ordering::Release);
}
