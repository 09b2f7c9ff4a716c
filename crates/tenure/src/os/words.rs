//! Reads and re-dirties single words of pages that other threads may use meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// Returns the first non-zero word of a page: its number and value.
///
/// # Safety
/// The page is mapped readable and stays so for the call.
pub(crate) unsafe fn first_nonzero(page: usize, page_size: usize) -> Option<(u16, u64)> {
    (0..page_size / WORD).find_map(|i| {
        // SAFETY: the caller promises that the page is mapped readable. The word is inside it and
        // aligned. The read is atomic because the program may write the word meanwhile.
        let value =
            unsafe { AtomicU64::from_ptr((page + i * WORD) as *mut u64) }.load(Ordering::Relaxed);
        (value != 0).then_some((i as u16, value))
    })
}

/// Returns whether the word holds `value`.
///
/// # Safety
/// The page is mapped readable and stays so for the call. The word is one of the page.
pub(crate) unsafe fn holds(page: usize, word: u16, value: u64) -> bool {
    // SAFETY: the caller promises that the page is mapped readable and has the word, which is aligned.
    // The read is atomic because the program may write the word meanwhile.
    let now = unsafe { AtomicU64::from_ptr((page + word as usize * WORD) as *mut u64) };
    now.load(Ordering::Relaxed) == value
}

/// Writes `value` over itself if the word still holds it. The page is dirty from then on, so the
/// kernel keeps it. `false`: the word holds another value.
///
/// # Safety
/// The page is mapped writable and stays so for the call. The word is one of the page.
pub(crate) unsafe fn redirty(page: usize, word: u16, value: u64) -> bool {
    // SAFETY: the caller promises that the page is mapped writable and has the word, which is
    // aligned. It is one atomic instruction, so the kernel has either discarded the page before it
    // (the word reads 0) or finds it dirty.
    unsafe { AtomicU64::from_ptr((page + word as usize * WORD) as *mut u64) }
        .compare_exchange(value, value, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}
