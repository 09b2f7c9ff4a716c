//! The next definitions of this library's functions, in the loader's order.

#![allow(unsafe_code, reason = "calls what the loader has found, as the function that it is")]

use crate::errno::Errno;
use crate::{first_use, keeper, symbol};
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use tenure::launcher::{create_threads_by, ThreadCreation};

/// For the whole process: the loader may call hooks inside a lookup, and hands them no context. Set
/// while a thread looks the definitions up.
static LOOKING: AtomicBool = AtomicBool::new(false);

macro_rules! definitions {
    ($($(#[$when:meta])* $name:ident = $symbol:literal : $kind:ty;)*) => {
        $(
            /// `None` while it is being looked up, and if there is none.
            $(#[$when])*
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
            // For the whole process: a definition has one address, and the hook that calls it gets
            // no context.
            $($(#[$when])* pub static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        mod slow {
            use super::*;
            $(
                $(#[$when])*
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
            $(
                $(#[$when])*
                at::$name.store(symbol::next($symbol), Ordering::Relaxed);
            )*
        }
    };
}

// Looked up in this order. A lookup takes the loader's lock, and overwrites what `dlerror` would tell
// the program. So each definition is looked up before the program runs, and none at its first use.
//
// For a name that the C library lacks the loader allocates a message. Until malloc is known, its memory
// is of `bootstrap_alloc`: otherwise the C library's heap would begin before the program. A lookup that
// succeeds drops the message, so malloc, which every C library has, comes behind those names.
definitions! {
    free_sized = c"free_sized": unsafe extern "C" fn(*mut c_void, usize);
    free_aligned_sized = c"free_aligned_sized": unsafe extern "C" fn(*mut c_void, usize, usize);
    #[cfg(target_env = "gnu")]
    mallinfo2 = c"mallinfo2": unsafe extern "C" fn() -> libc::mallinfo2;
    #[cfg(target_env = "gnu")]
    mallinfo = c"mallinfo": unsafe extern "C" fn() -> libc::mallinfo;
    malloc_trim = c"malloc_trim": unsafe extern "C" fn(usize) -> c_int;
    pvalloc = c"pvalloc": unsafe extern "C" fn(usize) -> *mut c_void;
    valloc = c"valloc": unsafe extern "C" fn(usize) -> *mut c_void;
    mlock2 = c"mlock2": unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
    vmsplice = c"vmsplice": unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_uint) -> isize;
    dlclose = c"dlclose": unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
    capset = c"capset": unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
    unshare = c"unshare": unsafe extern "C" fn(c_int) -> c_int;
    setns = c"setns": unsafe extern "C" fn(c_int, c_int) -> c_int;
    setsockopt = c"setsockopt":
        unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int;
    send = c"send": unsafe extern "C-unwind" fn(c_int, *const c_void, usize, c_int) -> isize;
    sendto = c"sendto": SendTo;
    sendmsg = c"sendmsg": unsafe extern "C-unwind" fn(c_int, *const libc::msghdr, c_int) -> isize;
    sendmmsg = c"sendmmsg":
        unsafe extern "C-unwind" fn(c_int, *mut libc::mmsghdr, c_uint, c_int) -> c_int;
    msync = c"msync": unsafe extern "C-unwind" fn(*mut c_void, usize, c_int) -> c_int;
    malloc = c"malloc": unsafe extern "C" fn(usize) -> *mut c_void;
    free = c"free": unsafe extern "C" fn(*mut c_void);
    calloc = c"calloc": unsafe extern "C" fn(usize, usize) -> *mut c_void;
    realloc = c"realloc": unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
    memalign = c"memalign": unsafe extern "C" fn(usize, usize) -> *mut c_void;
    posix_memalign = c"posix_memalign":
        unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
    aligned_alloc = c"aligned_alloc": unsafe extern "C" fn(usize, usize) -> *mut c_void;
    malloc_usable_size = c"malloc_usable_size": unsafe extern "C" fn(*mut c_void) -> usize;
    syscall = c"syscall": SystemCall;
    mremap = c"mremap": Remap;
    exit_now = c"_exit": unsafe extern "C" fn(c_int) -> !;
    quick_exit = c"quick_exit": unsafe extern "C" fn(c_int) -> !;
}

type SystemCall =
    unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

type SendTo = unsafe extern "C-unwind" fn(
    c_int,
    *const c_void,
    usize,
    c_int,
    *const libc::sockaddr,
    libc::socklen_t,
) -> isize;

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

/// `pthread_create`. Before glibc 2.34 it comes with a library that may be loaded late.
pub fn thread_creation() -> Option<ThreadCreation> {
    /// For the whole process: a function has one address.
    static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut at = AT.load(Ordering::Relaxed);
    if at.is_null() {
        at = symbol::next(c"pthread_create");
        AT.store(at, Ordering::Relaxed);
    }
    if at.is_null() {
        return None;
    }
    // SAFETY: dlsym returned the address of that function, whose type the C headers give.
    let create = unsafe { std::mem::transmute::<*mut c_void, ThreadCreation>(at) };
    create_threads_by(create);
    Some(create)
}

/// For the whole process: a hook's lookup stores it, and the constructor, which gets no context,
/// reads it. The result of [`look_for_queues`].
static HAS_QUEUES: AtomicBool = AtomicBool::new(false);

/// Whether a library for io_uring or AIO was loaded when the definitions were looked up.
pub fn has_queues() -> bool {
    HAS_QUEUES.load(Ordering::Relaxed)
}

fn look_for_queues() {
    let of_libraries = [c"io_uring_queue_init_params", c"io_uring_queue_init", c"io_queue_init"];
    let found = of_libraries.into_iter().any(|name| !symbol::used(name).is_null());
    HAS_QUEUES.store(found, Ordering::Relaxed);
}

/// Looks all of them up. A call from within the lookup, or from another thread meanwhile, finds
/// none: [`crate::bootstrap_alloc`] serves it.
#[cold]
pub fn look_up() {
    /// For the whole process: a definition has one address, so one lookup is enough.
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Ordering::Acquire) || LOOKING.swap(true, Ordering::Acquire) {
        return;
    }
    // dlsym sets errno if a symbol is missing.
    let errno = Errno::keep();
    first_use::first_call();
    // Before malloc, as all names that may be missing.
    look_for_queues();
    keeper::find_whether_alone();
    // When a thread ends or starts another one may hold the loader's lock, and wait for it: a plugin's
    // constructor that joins a thread.
    let _ = tenure::ends_with_the_last_thread();
    thread_creation();
    look_up_each();
    drop(errno);
    DONE.store(true, Ordering::Release);
    LOOKING.store(false, Ordering::Release);
}
