//! The slots of threads: a thread has one by its number; with more threads than slots some share one.

use crate::os::arena;
use crate::runtime::lock::thread_number;
use std::sync::atomic::{AtomicUsize, Ordering};

/// No process has more.
pub(super) const MOST: usize = 64;
/// A power of two, less one; 0 until first asked.
/// For the whole process: the machine has so many processors.
static MASK: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's slot.
#[inline]
pub(super) fn current() -> usize {
    let mask = match MASK.load(Ordering::Relaxed) {
        0 => count_processors(),
        mask => mask,
    };
    thread_number() as usize & mask
}

#[cold]
fn count_processors() -> usize {
    // Twice as many as processors: threads come and go, and their numbers do not spread evenly.
    let slots = (2 * arena::processors()).next_power_of_two().clamp(4, MOST);
    // Another thread may be allowed other processors; what the first says holds.
    match MASK.compare_exchange(0, slots - 1, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => slots - 1,
        Err(first) => first,
    }
}

/// All slots that are used.
pub(super) fn used() -> std::ops::Range<usize> {
    0..MASK.load(Ordering::Relaxed) + 1
}
