//! The slots of threads: the number of a thread selects its slot. With more threads than slots,
//! some share one.

use crate::os::arena;
use crate::runtime::lock::thread_number;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most slots of a process.
pub(super) const MOST: usize = 64;
/// The number of slots less one, where that number is a power of two; 0 until the first call.
/// For the whole process: the machine has one number of processors.
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
    // Another thread may have other processors allowed. The first thread's number stays.
    match MASK.compare_exchange(0, slots - 1, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => slots - 1,
        Err(first) => first,
    }
}

/// All slots that are used.
pub(super) fn used() -> std::ops::Range<usize> {
    0..MASK.load(Ordering::Relaxed) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_several_slots() {
        let mine = current();
        let slots = used().len();
        assert!(slots.is_power_of_two() && (4..=MOST).contains(&slots), "{slots}");
        assert!(used().contains(&mine));
    }
}
