//! How many bytes the program has requested from its allocator.

#![allow(unsafe_code, reason = "is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number so far.
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

// SAFETY: each call goes unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is the system allocator's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the block came from `alloc`, which is the system allocator's.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        BYTES.fetch_add(size as u64, Ordering::Relaxed);
        // SAFETY: the block came from `alloc`, which is the system allocator's.
        unsafe { System.realloc(at, layout, size) }
    }
}
