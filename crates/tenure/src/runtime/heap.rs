//! Memory for tenure's notes while a thread has a claim on a range.
//!
//! This is not the program's allocator. A fork may hold that allocator's locks while it waits for
//! the claim (jemalloc registers its fork handlers at its first use), and a failed allocation there
//! ends the process. Here a failed allocation is an error, and the lock comes after all others.
//!
//! Blocks have sizes of powers of two. They are cut from chunks, which are never unmapped. Each
//! size has a list of free blocks. A block above the largest size is a mapping of its own.

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
/// A multiple of every size of block.
const CHUNK: usize = 64 << 10;

/// The blocks of one size.
#[derive(Clone, Copy)]
struct Blocks {
    /// The first free block's address, at which the next one's is stored; 0: there is none.
    free: usize,
    /// The start of the next block in a chunk. A multiple of a chunk's size: there is none.
    uncut: usize,
}

/// For the whole process: all threads find the notes of a claim.
static HEAP: Lock<[Blocks; SIZES]> = Lock::new(Rank::Heap, [Blocks { free: 0, uncut: 0 }; SIZES]);

/// For the whole process: the register's entry of the heap.
static SERVICE: Service = Service {
    hold: || HEAP.hold(),
    release: || HEAP.release(),
    // A raw `clone` may have copied the lists page by page, so they are not used again. Blocks that
    // are in use stay as they were.
    recover: || {
        HEAP.reset_in_child();
        // SAFETY: this child has one thread, and that thread has no guard of the lock.
        *unsafe { HEAP.held_value() } = [Blocks { free: 0, uncut: 0 }; SIZES];
    },
    ..Service::named("heap", &[Rank::Heap])
};

/// Returns the number of the smallest size with so many bytes; `None`: a mapping of its own.
fn size_of_block(bytes: usize) -> Option<usize> {
    (bytes <= LARGEST).then(|| bytes.max(SMALLEST).next_power_of_two().ilog2() as usize - 6)
}

/// Returns how many bytes a block has that was allocated for `bytes`.
pub(crate) fn usable(bytes: usize) -> usize {
    match size_of_block(bytes) {
        Some(size) => SMALLEST << size,
        None => bytes.next_multiple_of(page_size()),
    }
}

/// Allocates a block of at least `bytes`, aligned to 64. About 20 ns; above 32 KiB it is a mapping.
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
                // SAFETY: a free block, in which `free` has stored the next one's address.
                blocks.free = unsafe { *(block as *const usize) };
                block
            }
        };
        NonNull::new(block as *mut u8).ok_or(Errno::NOMEM)
    })
    // A signal handler that cannot have the lock begins a chunk of its own, and the rest of that
    // chunk is lost.
    .unwrap_or_else(|| NonNull::new(map(CHUNK, CHUNK)?.start as *mut u8).ok_or(Errno::NOMEM))
}

/// Makes it likely that small blocks can be allocated after the program has used up its addresses.
pub(crate) fn prepare() {
    for bytes in [64, 128, 256, 512, 1024] {
        if let Ok(block) = allocate(bytes) {
            // SAFETY: the block was allocated just above with this size, and no other code knows
            // it.
            unsafe { free(block, bytes) };
        }
    }
}

/// Frees a block.
///
/// # Safety
/// The block comes from [`allocate`] with the same number of bytes, and is in use no more.
pub(crate) unsafe fn free(block: NonNull<u8>, bytes: usize) {
    let at = block.as_ptr() as usize;
    let Some(size) = size_of_block(bytes) else {
        let len = bytes.next_multiple_of(page_size());
        // SAFETY: the block is a mapping of its own, and the caller promises that it is in use no
        // more.
        let _ = unsafe { reserve::unmap(PageRange::new(at, at + len)) };
        return;
    };
    // In a signal handler that cannot have the lock the block is lost.
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
                        // SAFETY: this thread has just allocated the block, with at least so many
                        // bytes.
                        unsafe { block.write_bytes(thread, usable(bytes)) };
                        held.push((block, bytes));
                        if held.len() > 20 {
                            let (block, bytes) = held.swap_remove((number >> 40) % 20);
                            // SAFETY: this thread's block: it reads the whole block, and does not
                            // use it after `free`.
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
