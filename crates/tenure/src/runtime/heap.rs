//! Memory for tenure's notes while a thread has a claim on a range.
//!
//! This is not the program's allocator. A fork may hold that allocator's locks while it waits for
//! the claim (jemalloc registers its fork handlers at its first use), and a failed allocation there
//! ends the process. Here a failed allocation is an error, and the lock comes after all others.
//!
//! Blocks have sizes of powers of two. They are cut from chunks, which are never unmapped. Each
//! size has a list of free blocks. A block above the largest size is a mapping of its own. Where
//! nothing can be mapped, chunks and large blocks come from reserved addresses, if the caller has
//! [kept some](keep_spare).

#![allow(unsafe_code, reason = "hands out memory")]

use super::fork_state;
use super::lock::{Lock, Rank};
use super::services::Service;
use crate::os::{advise, arena, page_size, reserve};
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

/// Reserved addresses, of which nothing is accessible before it is needed: a process at its limit of
/// addresses (`RLIMIT_AS`) may still make reserved ones accessible.
#[derive(Clone, Copy)]
struct Spare {
    /// 0: there are none.
    start: usize,
    /// The start of the next block.
    uncut: usize,
    /// The first free block of each size, a power of two from a chunk on; 0: there is none.
    free: [usize; SPARE_SIZES],
}

const SPARE_SIZES: usize = 9;
/// As much as the largest block.
const SPARE: usize = CHUNK << (SPARE_SIZES - 1);

struct Heap {
    blocks: [Blocks; SIZES],
    spare: Spare,
}

impl Heap {
    const EMPTY: Heap = Heap {
        blocks: [Blocks { free: 0, uncut: 0 }; SIZES],
        spare: Spare { start: 0, uncut: 0, free: [0; SPARE_SIZES] },
    };
}

impl Spare {
    fn holds(&self, at: usize) -> bool {
        self.start != 0 && (self.start..self.start + SPARE).contains(&at)
    }

    /// Returns the number of the size of a block.
    fn size_of(bytes: usize) -> usize {
        bytes.max(CHUNK).next_power_of_two().ilog2() as usize - CHUNK.ilog2() as usize
    }

    /// Takes a block of at least `bytes`, a multiple of a chunk's alignment.
    fn take(&mut self, bytes: usize) -> Result<usize, Errno> {
        if self.start == 0 || bytes > SPARE {
            return Err(Errno::NOMEM);
        }
        let size = Spare::size_of(bytes);
        let block = self.free[size];
        if block != 0 {
            // SAFETY: a free block, in which `give` has stored the next one's address.
            self.free[size] = unsafe { *(block as *const usize) };
            return Ok(block);
        }
        let (block, end) = (self.uncut, self.uncut + (CHUNK << size));
        if end > self.start + SPARE {
            return Err(Errno::NOMEM);
        }
        // SAFETY: a part of the reservation that no block has yet.
        unsafe { arena::allow(PageRange::new(block, end)) }?;
        self.uncut = end;
        Ok(block)
    }

    /// Takes a block back that nobody uses any more.
    fn give(&mut self, block: usize, bytes: usize) {
        let size = Spare::size_of(bytes);
        // SAFETY: the caller has been given the block by `take`, and nobody uses it any more.
        let _ = unsafe { advise::drop_pages(PageRange::new(block, block + (CHUNK << size))) };
        // SAFETY: as above; its first word is inside it and aligned.
        unsafe { *(block as *mut usize) = self.free[size] };
        self.free[size] = block;
    }
}

/// For the whole process: all threads find the notes of a claim.
static HEAP: Lock<Heap> = Lock::new(Rank::Heap, Heap::EMPTY);

/// For the whole process: the register's entry of the heap.
static SERVICE: Service = Service {
    hold: || HEAP.hold(),
    release: || HEAP.release(),
    // A raw `clone` may have copied the lists page by page, so they are not used again. Blocks that
    // are in use stay as they were.
    recover: || {
        HEAP.reset_in_child();
        // SAFETY: this child has one thread, and that thread has no guard of the lock.
        *unsafe { HEAP.held_value() } = Heap::EMPTY;
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

/// Reserves addresses for a process that will have none left, 16 MiB. For threads whose allocations
/// must not fail. `false`: there are none.
pub(crate) fn keep_spare() -> bool {
    fork_state::register(&SERVICE);
    let kept = HEAP.with_also_in_forks(|heap| {
        if heap.spare.start == 0 {
            if let Ok(reserved) = arena::reserve(SPARE, CHUNK) {
                heap.spare = Spare { uncut: reserved.start, start: reserved.start, ..heap.spare };
            }
        }
        heap.spare.start != 0
    });
    kept == Some(true)
}

fn map(len: usize, align: usize) -> Result<usize, Errno> {
    reserve::map_own(len, align).map(|mapped| mapped.start).map_err(|_| Errno::NOMEM)
}

/// Allocates a block of at least `bytes`, aligned to 64. About 20 ns; above 32 KiB it is a mapping.
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn allocate(bytes: usize) -> Result<NonNull<u8>, Errno> {
    fork_state::register(&SERVICE);
    let Some(size) = size_of_block(bytes) else {
        let len = bytes.checked_next_multiple_of(page_size()).ok_or(Errno::NOMEM)?;
        let spare = || HEAP.with_also_in_forks(|heap| heap.spare.take(len));
        let at = map(len, page_size()).or_else(|error| spare().unwrap_or(Err(error)))?;
        return NonNull::new(at as *mut u8).ok_or(Errno::NOMEM);
    };
    HEAP.with_also_in_forks(|heap| {
        let blocks = &mut heap.blocks[size];
        let block = match blocks.free {
            0 => {
                if blocks.uncut % CHUNK == 0 {
                    blocks.uncut = map(CHUNK, CHUNK).or_else(|_| heap.spare.take(CHUNK))?;
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
    .unwrap_or_else(|| NonNull::new(map(CHUNK, CHUNK)? as *mut u8).ok_or(Errno::NOMEM))
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
        let is_spare = HEAP.with_also_in_forks(|heap| {
            let is_spare = heap.spare.holds(at);
            if is_spare {
                heap.spare.give(at, len);
            }
            is_spare
        });
        if is_spare == Some(false) {
            // SAFETY: the block is a mapping of its own, and the caller promises that it is in use
            // no more.
            let _ = unsafe { reserve::unmap(PageRange::new(at, at + len)) };
        }
        return;
    };
    // In a signal handler that cannot have the lock the block is lost.
    let _ = HEAP.with_also_in_forks(|heap| {
        // SAFETY: the caller promises that the block is in use no more; its first word is inside it
        // and aligned.
        unsafe { *(at as *mut usize) = heap.blocks[size].free };
        heap.blocks[size].free = at;
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

    #[test]
    fn a_large_block_alone_is_freed() {
        tenure_testkit::in_child(tenure_testkit::this_test!(), &[], || {
            let block = allocate(LARGEST + 1).unwrap();
            // SAFETY: this test's block, with its own number of bytes.
            unsafe { free(block, LARGEST + 1) };
        });
    }

    #[test]
    fn where_no_addresses_are_left_blocks_come_from_the_spare_ones() {
        tenure_testkit::in_child(tenure_testkit::this_test!(), &[], || {
            keep_spare();
            let none = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            // SAFETY: the call reads the local.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &none) }, 0);
            for round in 0..40u8 {
                let mut held: [Option<(NonNull<u8>, usize)>; 12] = [None; 12];
                for (number, place) in held.iter_mut().enumerate() {
                    let bytes = 3000 << number.min(9);
                    let block = allocate(bytes).unwrap();
                    // SAFETY: a new block of at least so many bytes.
                    unsafe { block.write_bytes(number as u8 + round, bytes) };
                    *place = Some((block, bytes));
                }
                for (number, (block, bytes)) in held.into_iter().flatten().enumerate() {
                    // SAFETY: this test's block, which it does not use after `free`.
                    unsafe {
                        let all = std::slice::from_raw_parts(block.as_ptr(), bytes);
                        let wanted = number as u8 + round;
                        assert!(all.iter().all(|byte| *byte == wanted));
                        free(block, bytes);
                    }
                }
            }
            assert_eq!(allocate(SPARE + 1), Err(Errno::NOMEM));
        });
    }
}
