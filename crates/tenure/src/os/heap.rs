//! Memory for what tenure notes while it has a claim on a range.
//!
//! Not the program's allocator: a fork may hold that one's locks while it waits for the claim (jemalloc registers
//! its fork handlers at its first use), and a want of memory there ends the process. Here nothing is locked, and
//! a want of memory is an error.
//!
//! Blocks have sizes of powers of two, cut from chunks that are never given back; each size has a list of free
//! blocks. A block above the largest size is a mapping of its own.

use super::reserve;
use crate::range::PageRange;
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SMALLEST: usize = 64;
const SIZES: usize = 10;
const LARGEST: usize = SMALLEST << (SIZES - 1);
/// A multiple of every size.
const CHUNK: usize = 64 << 10;

/// The first free block's address in the low bits, and above it a count that changes with each exchange: the
/// address alone may be the same although the list is another.
static FREE: [AtomicU64; SIZES] = [const { AtomicU64::new(0) }; SIZES];
/// Where the next block of a chunk begins. A multiple of a chunk's size: there is none.
static UNCUT: [AtomicUsize; SIZES] = [const { AtomicUsize::new(0) }; SIZES];
const ADDRESS: u32 = 48;

fn address(head: u64) -> usize {
    (head & ((1 << ADDRESS) - 1)) as usize
}

/// The head after `before`, with another first block.
fn next_head(before: u64, block: usize) -> u64 {
    ((before >> ADDRESS).wrapping_add(1) << ADDRESS) | block as u64
}

/// The number of the size that holds so many bytes; `None`: a mapping of its own.
fn size_of_block(bytes: usize) -> Option<usize> {
    (bytes <= LARGEST).then(|| bytes.max(SMALLEST).next_power_of_two().ilog2() as usize - 6)
}

/// How many bytes a block has that is asked for so many.
pub(crate) fn usable(bytes: usize) -> usize {
    match size_of_block(bytes) {
        Some(size) => SMALLEST << size,
        None => bytes.next_multiple_of(super::page_size()),
    }
}

/// A block of at least so many bytes, aligned to 64. About 20 ns; above 32 KiB a mapping.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn allocate(bytes: usize) -> Result<NonNull<u8>, Errno> {
    let Some(size) = size_of_block(bytes) else {
        let page = super::page_size();
        let len = bytes.checked_next_multiple_of(page).ok_or(Errno::NOMEM)?;
        let mapping = reserve::map_anonymous(len, page)?;
        return NonNull::new(mapping.start as *mut u8).ok_or(Errno::NOMEM);
    };
    loop {
        let head = FREE[size].load(Ordering::Acquire);
        let block = address(head);
        if block == 0 {
            return cut(size);
        }
        // SAFETY: chunks stay mapped. Another thread may have taken the block and write to it: the count in
        // the head differs then, and the word is not used.
        let next = unsafe { &*(block as *const AtomicUsize) }.load(Ordering::Relaxed);
        let new = next_head(head, next);
        if FREE[size].compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return NonNull::new(block as *mut u8).ok_or(Errno::NOMEM);
        }
    }
}

/// A block that never was in use.
#[cold]
fn cut(size: usize) -> Result<NonNull<u8>, Errno> {
    let bytes = SMALLEST << size;
    loop {
        let at = UNCUT[size].load(Ordering::Relaxed);
        let (block, fresh) = match at % CHUNK {
            0 => (reserve::map_anonymous(CHUNK, CHUNK)?.start, true),
            _ => (at, false),
        };
        let after = block + bytes;
        if UNCUT[size].compare_exchange(at, after, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return NonNull::new(block as *mut u8).ok_or(Errno::NOMEM);
        }
        if fresh {
            // SAFETY: mapped above, and known to no other thread.
            let _ = unsafe { reserve::unmap(PageRange::new(block, block + CHUNK)) };
        }
    }
}

/// Makes it likely that small blocks can be had also where the program's addresses are used up later.
pub(crate) fn prepare() {
    for bytes in [64, 128, 256, 512, 1024] {
        if let Ok(block) = allocate(bytes) {
            // SAFETY: just allocated.
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
        let len = bytes.next_multiple_of(super::page_size());
        // SAFETY: a mapping of its own, by the caller's promise in use no more.
        let _ = unsafe { reserve::unmap(PageRange::new(at, at + len)) };
        return;
    };
    loop {
        let head = FREE[size].load(Ordering::Relaxed);
        // SAFETY: the caller's block, aligned to 64.
        unsafe { &*(at as *const AtomicUsize) }.store(address(head), Ordering::Relaxed);
        let new = next_head(head, at);
        if FREE[size].compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// In a child: what the parent's threads were about to change while it was made is not used. The free blocks are
/// never seen again; those in use are as they were.
pub(crate) fn reset_in_child() {
    for size in 0..SIZES {
        FREE[size].store(0, Ordering::Relaxed);
        UNCUT[size].store(0, Ordering::Relaxed);
    }
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
                        // SAFETY: this thread's block.
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
