//! The allocator of this library's Rust code: the C library's malloc, but not on tenure's threads.
//!
//! At a thread's first call of malloc or free glibc maps an arena for it: 64 MiB of addresses, which
//! the kernel puts into the highest hole that is large enough. In a program with one thread that
//! hole may be the program's own: it has unmapped its memory there, maps there again with
//! `MAP_FIXED`, and would replace the arena. So tenure's threads never call malloc or free. They
//! take blocks of tenure's heap, which lies apart from the program's mappings. Blocks of malloc that
//! they drop are put by until a thread of the program's frees them.
//!
//! A block's address tells whose it is. Let `step` be its alignment, at least 8. The blocks of malloc
//! lie at even multiples of `step`, those of the heap at odd ones.

#![allow(unsafe_code, reason = "is an allocator")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use tenure_core::launcher::{heap, is_own_thread};

struct Allocator;

/// For the whole process: the allocator of all of this library's Rust code.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// For the whole process: the blocks of malloc that tenure's threads have put by. Each one's first
/// word is the address of the next one.
static PUT_BY: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// For the whole process: whether the heap has been told to keep addresses in reserve.
static KEEPS_SPARE: AtomicBool = AtomicBool::new(false);

/// malloc aligns each block to this, if the block has a multiple of so many bytes.
const OF_MALLOC: usize = 16;
/// The heap aligns each block to its size, up to this.
const OF_HEAP: usize = 4096;

fn step(layout: Layout) -> usize {
    layout.align().max(OF_MALLOC / 2)
}

fn is_of_heap(block: *mut u8, layout: Layout) -> bool {
    block as usize / step(layout) % 2 == 1
}

// SAFETY: malloc and the heap give each block one owner until it is freed, and a block is freed where
// its address tells that it came from. It has the requested bytes and their alignment. No function
// here unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_own_thread() {
            true => from_heap(layout),
            false => from_malloc(layout),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !is_own_thread() && step(layout) < OF_MALLOC {
            free_put_by();
            // SAFETY: the call takes numbers only. Large blocks come from the kernel, untouched.
            let block = unsafe { libc::calloc(rounded(layout.size()), 1) };
            if let Some(block) = if_even(block) {
                return block;
            }
        }
        // SAFETY: the caller promises a layout of at least one byte.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: a new block of at least so many bytes.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_of_heap(block, layout) {
            // SAFETY: `from_heap` made the block from one that begins a step before it, with so
            // many bytes. The caller promises that it is in use no more.
            unsafe {
                let whole = NonNull::new_unchecked(block.sub(step(layout)));
                heap::free(whole, step(layout) + layout.size());
            }
        } else if is_own_thread() {
            // SAFETY: a block of malloc that is in use no more, by the caller's promise.
            unsafe { put_by(block.cast()) };
        } else {
            // SAFETY: as above.
            unsafe { libc::free(block.cast()) };
            free_put_by();
        }
    }
}

/// malloc may align smaller blocks less.
fn rounded(size: usize) -> usize {
    size.saturating_add(OF_MALLOC - 1) & !(OF_MALLOC - 1)
}

fn from_malloc(layout: Layout) -> *mut u8 {
    free_put_by();
    let size = rounded(layout.size());
    if step(layout) < OF_MALLOC {
        // SAFETY: the call takes a number only.
        let block = unsafe { libc::malloc(size) };
        if let Some(block) = if_even(block) {
            return block;
        }
    }
    let mut block = ptr::null_mut();
    // SAFETY: the call writes the local, or fails and leaves the null.
    unsafe { libc::posix_memalign(&mut block, 2 * step(layout), size) };
    block.cast()
}

/// A new block of malloc that lies at an even multiple of the smallest step, as the C standard promises.
/// Otherwise it is freed: a program's own malloc may align less.
fn if_even(block: *mut c_void) -> Option<*mut u8> {
    if block as usize % OF_MALLOC == 0 {
        return Some(block.cast());
    }
    // SAFETY: malloc has just made the block for this call alone.
    unsafe { libc::free(block) };
    None
}

fn from_heap(layout: Layout) -> *mut u8 {
    // A failed allocation on tenure's threads would end the process.
    if !KEEPS_SPARE.swap(true, Ordering::Relaxed) {
        heap::keep_spare();
    }
    let step = step(layout);
    let whole = match 2 * step <= OF_HEAP {
        true => heap::allocate(step + layout.size()),
        false => None,
    };
    match whole {
        // SAFETY: the block has so many bytes more than the layout asks for.
        Some(whole) => unsafe { whole.as_ptr().add(step) },
        // An arena of malloc's is better than the end of the process.
        None => from_malloc(layout),
    }
}

/// Leaves a block to the program's threads. Takes no lock.
///
/// # Safety
/// A block of malloc, in use no more.
unsafe fn put_by(block: *mut c_void) {
    let mut next = PUT_BY.load(Ordering::Relaxed);
    loop {
        // SAFETY: the caller owns the block, which has at least a word and malloc's alignment.
        unsafe { *block.cast::<*mut c_void>() = next };
        match PUT_BY.compare_exchange_weak(next, block, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(there) => next = there,
        }
    }
}

/// Frees what tenure's threads have put by. One load where that is nothing.
fn free_put_by() {
    if PUT_BY.load(Ordering::Relaxed).is_null() {
        return;
    }
    let mut block = PUT_BY.swap(ptr::null_mut(), Ordering::Acquire);
    while !block.is_null() {
        // SAFETY: `put_by` has left a block of malloc with the next one's address in its first word,
        // and the swap has made this thread the only owner of all of them.
        unsafe {
            let next = *block.cast::<*mut c_void>();
            libc::free(block);
            block = next;
        }
    }
}
