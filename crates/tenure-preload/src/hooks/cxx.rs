//! C++'s operators new and delete, of their own where the next allocator defines them: jemalloc,
//! mimalloc and tcmalloc do, and their operators do not pass through `malloc`. Where the next
//! definition is the C++ library's, it calls `malloc`, and nothing is done here.

use super::malloc::{free_run, large, owns};
use crate::next;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

const DEFAULT_ALIGN: usize = 16;

/// The next definition of an operator, looked up at its first use.
fn next_of(cache: &AtomicPtr<c_void>, name: &'static [u8]) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = next::by_name(name.as_ptr().cast::<c_char>());
    if found.is_null() {
        super::Errno::set(libc::ENOSYS);
        crate::text::say(format_args!("an operator of C++ was called that no library defines"));
        // SAFETY: ends the process: the program could not have been linked.
        unsafe { libc::abort() };
    }
    cache.store(found, Ordering::Relaxed);
    found
}

macro_rules! operators {
    ($($symbol:ident($first:ident: $first_kind:ty $(, $more:ident: $more_kind:ty)*) $(-> $answer:ty)? = $try:expr;)*) => {
        $(
            #[no_mangle]
            #[allow(non_snake_case, unused_variables)]
            pub unsafe extern "C-unwind" fn $symbol($first: $first_kind $(, $more: $more_kind)*) $(-> $answer)? {
                if let Some(answer) = $try {
                    return answer;
                }
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let next = next_of(&NEXT, concat!(stringify!($symbol), "\0").as_bytes());
                type Operator = unsafe extern "C-unwind" fn($first_kind $(, $more_kind)*) $(-> $answer)?;
                // SAFETY: the definition of the same symbol has the same type; the program's call.
                unsafe { std::mem::transmute::<*mut c_void, Operator>(next)($first $(, $more)*) }
            }
        )*
    };
}

#[inline]
fn new(size: usize, align: usize) -> Option<*mut c_void> {
    if !super::malloc::looked_at(size) {
        return None;
    }
    large(size, align.max(DEFAULT_ALIGN), false)
}

#[inline]
unsafe fn delete(at: *mut c_void) -> Option<()> {
    if !owns(at) {
        return None;
    }
    // SAFETY: the program's call.
    unsafe { free_run(at) };
    Some(())
}

operators! {
    _Znwm(size: usize) -> *mut c_void = new(size, 0);
    _Znam(size: usize) -> *mut c_void = new(size, 0);
    _ZnwmRKSt9nothrow_t(size: usize, tag: *const c_void) -> *mut c_void = new(size, 0);
    _ZnamRKSt9nothrow_t(size: usize, tag: *const c_void) -> *mut c_void = new(size, 0);
    _ZnwmSt11align_val_t(size: usize, align: usize) -> *mut c_void = new(size, align);
    _ZnamSt11align_val_t(size: usize, align: usize) -> *mut c_void = new(size, align);
    _ZnwmSt11align_val_tRKSt9nothrow_t(size: usize, align: usize, tag: *const c_void) -> *mut c_void
        = new(size, align);
    _ZnamSt11align_val_tRKSt9nothrow_t(size: usize, align: usize, tag: *const c_void) -> *mut c_void
        = new(size, align);
    // SAFETY: the program's call of this very operator.
    _ZdlPv(at: *mut c_void) = unsafe { delete(at) };
    // SAFETY: the program's call of this very operator.
    _ZdaPv(at: *mut c_void) = unsafe { delete(at) };
    // SAFETY: the program's call of this very operator.
    _ZdlPvRKSt9nothrow_t(at: *mut c_void, tag: *const c_void) = unsafe { delete(at) };
    // SAFETY: the program's call of this very operator.
    _ZdaPvRKSt9nothrow_t(at: *mut c_void, tag: *const c_void) = unsafe { delete(at) };
    // SAFETY: the program's call of this very operator.
    _ZdlPvm(at: *mut c_void, size: usize) = unsafe { delete(at) };
    // SAFETY: the program's call of this very operator.
    _ZdaPvm(at: *mut c_void, size: usize) = unsafe { delete(at) };
    // SAFETY: the program's call of this very operator.
    _ZdlPvSt11align_val_t(at: *mut c_void, align: usize) = unsafe { delete(at) };
    // SAFETY: the program's call of this very operator.
    _ZdaPvSt11align_val_t(at: *mut c_void, align: usize) = unsafe { delete(at) };
    // SAFETY: the program's call of this very operator.
    _ZdlPvmSt11align_val_t(at: *mut c_void, size: usize, align: usize) = unsafe { delete(at) };
    // SAFETY: the program's call of this very operator.
    _ZdaPvmSt11align_val_t(at: *mut c_void, size: usize, align: usize) = unsafe { delete(at) };
    _ZdlPvSt11align_val_tRKSt9nothrow_t(at: *mut c_void, align: usize, tag: *const c_void)
        // SAFETY: the program's call of this very operator.
        = unsafe { delete(at) };
    _ZdaPvSt11align_val_tRKSt9nothrow_t(at: *mut c_void, align: usize, tag: *const c_void)
        // SAFETY: the program's call of this very operator.
        = unsafe { delete(at) };
}
