//! Blocks of the pool that become the C library's own when the program changes their size. For a
//! process with a filter of system calls: there the C library makes one call for that, `mremap`, and
//! so does this library. A block in a new mapping would need `mmap`.
//!
//! The C library keeps two words before a block that it has mapped: the bytes from the start of the
//! mapping, and the length of the rest, with a mark. This library looks at its first block whether a
//! new block of the C library's has them. If not, it moves blocks by `malloc` and `free`.

#![allow(unsafe_code, reason = "writes what the C library expects before a block")]

use crate::real;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use tenure::pool;

/// For the whole process, as the C library is: its blocks are as this file makes them.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);
/// For the whole process: whether a thread has looked.
static LOOKED: AtomicBool = AtomicBool::new(false);

/// The two words.
const BEFORE: usize = 2 * size_of::<usize>();
const MARK: usize = 2;
/// The C library maps every block of this size, unless the program has set a bound of its own, and
/// learns nothing from it (DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB).
const IS_MAPPED: usize = 33 << 20;

/// The length of a mapping for a block.
fn mapped_len(size: usize) -> Option<usize> {
    size.checked_add(BEFORE)?.checked_next_multiple_of(tenure::launcher::page_size())
}

/// Called while a thread may call the next allocator: not when the filter comes, because in a child
/// without fork handlers that allocator's locks may be taken for ever.
pub fn learn() {
    if LOOKED.swap(true, Ordering::Relaxed) {
        return;
    }
    let (Some(malloc), Some(free)) = (real::malloc(), real::free()) else { return };
    // SAFETY: a plain allocation of an untouched block, which is given back at once. The two words
    // before it are the C library's own, and readable.
    unsafe {
        let block = malloc(IS_MAPPED).cast::<usize>();
        if block.is_null() {
            return;
        }
        let (skipped, len) = (*block.sub(2), *block.sub(1));
        let is_as_known = skipped == 0 && mapped_len(IS_MAPPED) == Some(len & !MARK);
        IS_KNOWN.store(is_as_known && len & MARK != 0, Ordering::Relaxed);
        free(block.cast());
    }
}

/// Makes a block of the pool one of the C library's, with `size` bytes. `None`: the block is as
/// before.
///
/// # Safety
/// As for `realloc(3)`: the caller uses only the returned address.
pub unsafe fn resize(block: NonNull<u8>, size: usize) -> Option<*mut c_void> {
    if !IS_KNOWN.load(Ordering::Relaxed) {
        return None;
    }
    let len = mapped_len(size)?;
    // SAFETY: the caller promises that it is a block, or this ends the process with a message.
    let usable = unsafe { pool::usable_size(block) }?;
    if size <= usable && len >= usable {
        // The C library makes no call if the block has as many pages as before.
        return Some(block.as_ptr().cast());
    }
    let kept = usable.min(size);
    // SAFETY: the caller gives the block up for the returned one.
    let start = unsafe { pool::take_out(block, len) }?.as_ptr();
    // SAFETY: the mapping has `len` bytes, `size` and the two words, and this thread alone has it. It
    // begins at a page, so the words are aligned.
    unsafe {
        let block = start.add(BEFORE);
        std::ptr::copy(start, block, kept);
        let words = start.cast::<usize>();
        *words = 0;
        *words.add(1) = len | MARK;
        Some(block.cast())
    }
}
