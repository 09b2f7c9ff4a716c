//! Memory for calls that come while the next allocator is still being looked up, because `dlsym`
//! itself may allocate.

#![allow(unsafe_code, reason = "hands out memory")]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZE: usize = 64 << 10;
const HEADER: usize = 16;

#[repr(align(4096))]
struct Memory(UnsafeCell<[u8; SIZE]>);

struct Arena {
    memory: Memory,
    /// How many bytes from its start were handed out.
    used: AtomicUsize,
}

// SAFETY: each byte is handed out once, by the atomic cursor `used`.
unsafe impl Sync for Arena {}

/// For the whole process: the signature of malloc names no arena.
static ARENA: Arena =
    Arena { memory: Memory(UnsafeCell::new([0; SIZE])), used: AtomicUsize::new(0) };

fn start() -> usize {
    ARENA.memory.0.get() as usize
}

/// Whether the address lies in this arena.
#[inline]
pub fn owns(at: *const c_void) -> bool {
    (at as usize).wrapping_sub(start()) < SIZE
}

/// Returns zeroed memory; null once the arena is used up. The memory is never given back.
pub fn alloc(size: usize, align: usize) -> *mut c_void {
    let align = align.max(HEADER);
    let Some(needed) = size.checked_add(align + HEADER) else { return std::ptr::null_mut() };
    let needed = needed.next_multiple_of(HEADER);
    let taken = ARENA.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
        used.checked_add(needed).filter(|end| *end <= SIZE)
    });
    let Ok(offset) = taken else { return std::ptr::null_mut() };
    let at = (start() + offset + HEADER).next_multiple_of(align);
    // SAFETY: inside the part that this call has just taken, and no other thread writes there;
    // aligned to 16.
    unsafe { *((at - HEADER) as *mut usize) = size };
    at as *mut c_void
}

/// The size that the caller asked for.
///
/// # Safety
/// `at` came from [`alloc`].
pub unsafe fn size(at: *const c_void) -> usize {
    // SAFETY: the caller promises that the block is of `alloc`, which wrote the size before its
    // start.
    unsafe { *((at as usize - HEADER) as *const usize) }
}
