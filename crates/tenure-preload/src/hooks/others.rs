//! Calls by which programs give an allocator's own library a pointer that came from `malloc`: jemalloc's
//! extended interface and mimalloc's names. Those pointers may be the pool's. Without that library
//! nobody calls these.

use super::malloc::{free_run, owns, realloc_run, realloc_run_with};
use crate::next;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use tenure::pool;

macro_rules! passed_on {
    ($(fn $symbol:ident($at:ident: *mut c_void $(, $more:ident: $more_kind:ty)*) $(-> $answer:ty)? $own:block otherwise $without:expr;)*) => {
        $(
            #[no_mangle]
            #[allow(unused_variables)]
            pub unsafe extern "C" fn $symbol($at: *mut c_void $(, $more: $more_kind)*) $(-> $answer)? {
                if owns($at) {
                    return $own;
                }
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let mut next = NEXT.load(Ordering::Relaxed);
                if next.is_null() {
                    next = next::by_name(concat!(stringify!($symbol), "\0").as_ptr().cast::<c_char>());
                    NEXT.store(next, Ordering::Relaxed);
                }
                if next.is_null() {
                    return $without;
                }
                type Function = unsafe extern "C" fn(*mut c_void $(, $more_kind)*) $(-> $answer)?;
                // SAFETY: the definition of the same symbol has the same type; the program's call.
                unsafe { std::mem::transmute::<*mut c_void, Function>(next)($at $(, $more)*) }
            }
        )*
    };
}

fn usable(at: *mut c_void) -> usize {
    NonNull::new(at.cast()).and_then(pool::usable_size).unwrap_or(0)
}

/// What a call without an answer answers.
const NOTHING: () = ();

passed_on! {
    fn dallocx(at: *mut c_void, flags: c_int) {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe { free_run(at) }
    } otherwise NOTHING;
    fn sdallocx(at: *mut c_void, size: usize, flags: c_int) {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe { free_run(at) }
    } otherwise NOTHING;
    fn rallocx(at: *mut c_void, size: usize, flags: c_int) -> *mut c_void {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe {
            // jemalloc's: the alignment's logarithm in the low bits, then "zeroed".
            realloc_run_with(at, size.max(1), (1 << (flags & 63)).max(16), flags & 0x40 != 0)
        }
    } otherwise std::ptr::null_mut();
    // The size that the block has in the end: its own, as it is not resized in place.
    fn xallocx(at: *mut c_void, size: usize, extra: usize, flags: c_int) -> usize {
        usable(at)
    } otherwise 0;
    fn sallocx(at: *mut c_void, flags: c_int) -> usize { usable(at) } otherwise 0;
    fn mi_free(at: *mut c_void) {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe { free_run(at) }
    } otherwise NOTHING;
    fn mi_free_size(at: *mut c_void, size: usize) {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe { free_run(at) }
    } otherwise NOTHING;
    fn mi_usable_size(at: *mut c_void) -> usize { usable(at) } otherwise 0;
    fn mi_realloc(at: *mut c_void, size: usize) -> *mut c_void {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe { realloc_run(at, size.max(1)) }
    } otherwise std::ptr::null_mut();
    fn tc_free(at: *mut c_void) {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe { free_run(at) }
    } otherwise NOTHING;
    fn tc_malloc_size(at: *mut c_void) -> usize { usable(at) } otherwise 0;
}
