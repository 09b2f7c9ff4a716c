//! glibc's functions about its heap, which is not all of malloc any more: what the pool has free is given back too, and
//! what it has handed out is counted as mapped blocks are.

use crate::serving::ALLOCATIONS;
use crate::symbol::OfTheLibrary;
use std::ffi::{c_int, c_void};
use tenure::pool;

/// Goes on to the next definition; the pool first, which may be all that has something free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_trim(keep_bytes: usize) -> c_int {
    static NEXT: OfTheLibrary = OfTheLibrary::new(c"malloc_trim");
    let ours = c_int::from(pool::trim());
    match NEXT.get() {
        next if next.is_null() => ours,
        // SAFETY: the C library's function of that name; the program's call.
        next => unsafe {
            let next =
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> c_int>(next);
            next(keep_bytes) | ours
        },
    }
}

/// Blocks that the pool has handed out, and their bytes. With `--mmap` the mappings that it serves are among them.
fn handed_out() -> (u64, u64) {
    if !ALLOCATIONS.are_served() {
        return (0, 0);
    }
    let stats = pool::stats();
    (stats.in_use, stats.in_use_bytes)
}

#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallinfo2() -> libc::mallinfo2 {
    static NEXT: OfTheLibrary = OfTheLibrary::new(c"mallinfo2");
    // SAFETY: a structure of numbers.
    let mut info: libc::mallinfo2 = unsafe { std::mem::zeroed() };
    let next = NEXT.get();
    if !next.is_null() {
        // SAFETY: the C library's function of that name.
        info = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::mallinfo2>(next)()
        };
    }
    let (blocks, bytes) = handed_out();
    info.hblks += blocks as usize;
    info.hblkhd += bytes as usize;
    info
}

/// The figures in numbers that overflow, as glibc has them.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallinfo() -> libc::mallinfo {
    static NEXT: OfTheLibrary = OfTheLibrary::new(c"mallinfo");
    // SAFETY: a structure of numbers.
    let mut info: libc::mallinfo = unsafe { std::mem::zeroed() };
    let next = NEXT.get();
    if !next.is_null() {
        // SAFETY: the C library's function of that name.
        info = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::mallinfo>(next)()
        };
    }
    let (blocks, bytes) = handed_out();
    info.hblks = info.hblks.wrapping_add(blocks as c_int);
    info.hblkhd = info.hblkhd.wrapping_add(bytes as c_int);
    info
}
