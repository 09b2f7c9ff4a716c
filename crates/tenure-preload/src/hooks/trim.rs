//! glibc's functions about its heap, which does not serve all of malloc any more. They also give
//! the pool's free memory back, and count the pool's blocks in use as mapped blocks.

use crate::real;
use crate::serving::ALLOCATIONS;
use std::ffi::c_int;
use tenure::pool;

/// Trims the pool first, because it may have the only free memory, and then calls the next
/// definition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_trim(keep_bytes: usize) -> c_int {
    let ours = c_int::from(pool::trim());
    match real::malloc_trim() {
        // SAFETY: `next` is the C library's function of that name, and the program makes this call
        // itself.
        Some(next) => unsafe { next(keep_bytes) | ours },
        None => ours,
    }
}

/// The pool's blocks in use, and their bytes. With `--mmap` they include the mappings that the pool
/// serves.
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
    // SAFETY: the structure holds only numbers, for which zeros are valid.
    let mut info: libc::mallinfo2 = unsafe { std::mem::zeroed() };
    if let Some(next) = real::mallinfo2() {
        // SAFETY: `next` is the C library's function of that name, which has no arguments.
        info = unsafe { next() };
    }
    let (blocks, bytes) = handed_out();
    info.hblks += blocks as usize;
    info.hblkhd += bytes as usize;
    info
}

/// The figures in numbers that overflow, as in glibc.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallinfo() -> libc::mallinfo {
    // SAFETY: the structure holds only numbers, for which zeros are valid.
    let mut info: libc::mallinfo = unsafe { std::mem::zeroed() };
    if let Some(next) = real::mallinfo() {
        // SAFETY: `next` is the C library's function of that name, which has no arguments.
        info = unsafe { next() };
    }
    let (blocks, bytes) = handed_out();
    info.hblks = info.hblks.wrapping_add(blocks as c_int);
    info.hblkhd = info.hblkhd.wrapping_add(bytes as c_int);
    info
}
