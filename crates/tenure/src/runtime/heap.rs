//! Memory for what tenure notes while it has a claim on a range.
//!
//! Not the program's allocator: a fork may hold that one's locks while it waits for the claim (jemalloc registers
//! its fork handlers at its first use), and a want of memory there ends the process. Here a want of memory is an
//! error, and the lock comes after all others.
//!
//! Blocks have sizes of powers of two, cut from chunks that are never given back; each size has a list of free
//! blocks. A block above the largest size is a mapping of its own.

#![allow(unsafe_code, reason = "hands out memory")]

use super::fork_state;
use super::lock::{Lock, Rank};
use super::services::Service;
use crate::os::{page_size, reserve};
use crate::range::PageRange;
use rustix::io::Errno;
use std::ptr::NonNull;

const SMALLEST: usize = 64;
const SIZES: usize = 10;
const LARGEST: usize = SMALLEST << (SIZES - 1);
/// A multiple of every size.
const CHUNK: usize = 64 << 10;

/// Of each size.
#[derive(Clone, Copy)]
struct Blocks {
    /// The first free block's address, which holds the next one's; 0: there is none.
    free: usize,
    /// Where the next block of a chunk begins. A multiple of a chunk's size: there is none.
    uncut: usize,
}

/// For the whole process: what a claim notes is found by all threads.
static HEAP: Lock<[Blocks; SIZES]> = Lock::new(Rank::Heap, [Blocks { free: 0, uncut: 0 }; SIZES]);

/// For the whole process: the register's entry of the heap.
static SERVICE: Service = Service {
    hold: || HEAP.hold(),
    release: || HEAP.release(),
    // What is not the memory of one moment is not used again; blocks that are in use are as they were.
    recover: || {
        HEAP.reset_in_child();
        // SAFETY: this child has one thread, which has no guard of it.
        *unsafe { HEAP.held_value() } = [Blocks { free: 0, uncut: 0 }; SIZES];
    },
    ..Service::named("heap", &[Rank::Heap])
};

/// The number of the size that holds so many bytes; `None`: a mapping of its own.
fn size_of_block(bytes: usize) -> Option<usize> {
    (bytes <= LARGEST).then(|| bytes.max(SMALLEST).next_power_of_two().ilog2() as usize - 6)
}

/// How many bytes a block has that is asked for so many.
pub(crate) fn usable(bytes: usize) -> usize {
    match size_of_block(bytes) {
        Some(size) => SMALLEST << size,
        None => bytes.next_multiple_of(page_size()),
    }
}

/// A block of at least so many bytes, aligned to 64. About 20 ns; above 32 KiB a mapping.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn allocate(bytes: usize) -> Result<NonNull<u8>, Errno> {
    let map = |len, align| reserve::map_own(len, align).map_err(|_| Errno::NOMEM);
    let Some(size) = size_of_block(bytes) else {
        let len = bytes.checked_next_multiple_of(page_size()).ok_or(Errno::NOMEM)?;
        return NonNull::new(map(len, page_size())?.start as *mut u8).ok_or(Errno::NOMEM);
    };
    fork_state::register(&SERVICE);
    HEAP.with_also_in_forks(|heap| {
        let blocks = &mut heap[size];
        let block = match blocks.free {
            0 => {
                if blocks.uncut % CHUNK == 0 {
                    blocks.uncut = map(CHUNK, CHUNK)?.start;
                }
                let block = blocks.uncut;
                blocks.uncut += SMALLEST << size;
                block
            }
            block => {
                // SAFETY: a free block, in which `free` has put the next one's address.
                blocks.free = unsafe { *(block as *const usize) };
                block
            }
        };
        NonNull::new(block as *mut u8).ok_or(Errno::NOMEM)
    })
    // A signal's handler that cannot have the lock begins a chunk of its own, of which the rest is lost.
    .unwrap_or_else(|| NonNull::new(map(CHUNK, CHUNK)?.start as *mut u8).ok_or(Errno::NOMEM))
}

/// Makes it likely that small blocks can be had also where the program's addresses are used up later.
pub(crate) fn prepare() {
    for bytes in [64, 128, 256, 512, 1024] {
        if let Ok(block) = allocate(bytes) {
            // SAFETY: allocated just above with this size, and nobody else knows it.
            unsafe { free(block, bytes) };
        }
    }
}

/// Gives a block back.
///
/// # Safety
/// From [`allocate`] with the same number of bytes, and in use no more.
pub(crate) unsafe fn free(block: NonNull<u8>, bytes: usize) {
    let at = block.as_ptr() as usize;
    let Some(size) = size_of_block(bytes) else {
        let len = bytes.next_multiple_of(page_size());
        // SAFETY: a mapping of its own, by the caller's promise in use no more.
        let _ = unsafe { reserve::unmap(PageRange::new(at, at + len)) };
        return;
    };
    // In a signal's handler that cannot have the lock the block is lost.
    let _ = HEAP.with_also_in_forks(|heap| {
        // SAFETY: the caller promises that the block is in use no more; its first word is inside it
        // and aligned.
        unsafe { *(at as *mut usize) = heap[size].free };
        heap[size].free = at;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_bytes_and_one_owner() {
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let mut held: Vec<(NonNull<u8>, usize)> = Vec::new();
                    let mut number = usize::from(thread) + 1;
                    for _ in 0..20_000 {
                        number = number.wrapping_mul(6364136223846793005).wrapping_add(1);
                        let bytes = 1 + (number >> 33) % [100, 5000, 70_000][number >> 60 & 1];
                        let block = allocate(bytes).unwrap();
                        assert!(block.as_ptr() as usize % SMALLEST == 0 && usable(bytes) >= bytes);
                        // SAFETY: allocated just above by this thread, with at least so many bytes.
                        unsafe { block.write_bytes(thread, usable(bytes)) };
                        held.push((block, bytes));
                        if held.len() > 20 {
                            let (block, bytes) = held.swap_remove((number >> 40) % 20);
                            // SAFETY: this thread's block, whole, and then in use no more.
                            unsafe {
                                let all = std::slice::from_raw_parts(block.as_ptr(), usable(bytes));
                                assert!(all.iter().all(|byte| *byte == thread));
                                free(block, bytes);
                            }
                        }
                    }
                });
            }
        });
    }
}
