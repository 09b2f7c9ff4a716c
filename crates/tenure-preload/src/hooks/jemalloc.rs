//! jemalloc's own names for calls that take a block: a program may give them what `malloc` returned, and
//! that may be the pool's.
//!
//! A block that is not the pool's goes to the definition that the caller would have been bound to without this
//! library. That may be a plugin's own, which only the plugin sees; so each call brings its return address
//! along. A call that nobody defines but this library (a program that asked whether the name exists)
//! is the C library's of the same purpose.

use super::malloc::{self, free_run, owns, realloc_run_with};
use crate::allocator::{definition_for, Allocator};
use crate::symbol;
use std::ffi::{c_int, c_void, CStr};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use tenure::pool;

fn name_of(terminated: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(terminated.as_bytes()).unwrap_or_default()
}

/// Whether it is a block of the pool's. Only jemalloc's own names are given such: a plugin's are of another
/// allocator, whose blocks may lie within one of the pool's.
fn pools(at: *mut c_void) -> bool {
    Allocator::found() == Some(Allocator::Jemalloc) && owns(at)
}

fn usable(at: *mut c_void) -> usize {
    NonNull::new(at.cast()).and_then(pool::usable_size).unwrap_or(0)
}

/// A function whose entry hands its return address on as one more argument, in the named register.
macro_rules! with_caller {
    ($(fn $symbol:ident($at:ident $(, $more:ident: $kind:ty)*) $(-> $result:ty)? $pools:block
        otherwise $otherwise:block by $inner:ident, $x86:literal, $arm:literal;)*) => {
        /// The definitions of libraries that are loaded at the start, and so for good.
        #[allow(non_upper_case_globals)]
        mod at_start {
            use super::*;
            $(pub static $symbol: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        /// Called in the constructor.
        pub fn look_up() {
            $(
                let name = name_of(concat!(stringify!($symbol), "\0"));
                at_start::$symbol.store(symbol::next(name), Ordering::Relaxed);
            )*
        }

        $(
            #[no_mangle]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $symbol($at: *mut c_void $(, $more: $kind)*) $(-> $result)? {
                #[cfg(target_arch = "x86_64")]
                std::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {}", sym $inner);
                #[cfg(target_arch = "aarch64")]
                std::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {}", sym $inner);
            }

            #[allow(unused_variables)]
            unsafe extern "C" fn $inner(
                $at: *mut c_void $(, $more: $kind)*, caller: *const c_void
            ) $(-> $result)? {
                if pools($at) {
                    return $pools;
                }
                let mut next = at_start::$symbol.load(Ordering::Relaxed);
                if next.is_null() {
                    next = definition_for(caller, name_of(concat!(stringify!($symbol), "\0")));
                }
                if next.is_null() {
                    return $otherwise;
                }
                type Function = unsafe extern "C" fn(*mut c_void $(, $kind)*) $(-> $result)?;
                // SAFETY: the definition of the same symbol has the same type; the program's call.
                unsafe { std::mem::transmute::<*mut c_void, Function>(next)($at $(, $more)*) }
            }
        )*
    };
}

with_caller! {
    fn dallocx(at, flags: c_int) {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe { free_run(at) }
    } otherwise {
        // SAFETY: the program's own call.
        unsafe { malloc::free(at) }
    } by dallocx_from, "rdx", "x2";
    fn sdallocx(at, size: usize, flags: c_int) {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe { free_run(at) }
    } otherwise {
        // SAFETY: the program's own call.
        unsafe { malloc::free(at) }
    } by sdallocx_from, "rcx", "x3";
    fn rallocx(at, size: usize, flags: c_int) -> *mut c_void {
        // SAFETY: the program's own call, of a block that is the pool's.
        unsafe {
            // jemalloc's: the alignment's logarithm in the low bits, then "zeroed".
            realloc_run_with(at, size.max(1), (1 << (flags & 63)).max(16), flags & 0x40 != 0)
        }
    } otherwise {
        // SAFETY: the program's own call.
        unsafe { malloc::realloc(at, size.max(1)) }
    } by rallocx_from, "rcx", "x3";
    // The size that the block has in the end: its own, as it is not resized in place.
    fn xallocx(at, size: usize, extra: usize, flags: c_int) -> usize {
        usable(at)
    } otherwise {
        // SAFETY: the program's own call.
        unsafe { malloc::malloc_usable_size(at) }
    } by xallocx_from, "r8", "x4";
    fn sallocx(at, flags: c_int) -> usize {
        usable(at)
    } otherwise {
        // SAFETY: the program's own call.
        unsafe { malloc::malloc_usable_size(at) }
    } by sallocx_from, "rdx", "x2";
}
