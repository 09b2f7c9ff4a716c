//! The resources that the process has used so far.

#![allow(unsafe_code, reason = "asks for the usage, and trims the heap")]

use std::thread;
use std::time::Duration;
use tenure_measure::pages::rss;

/// Page faults of all threads so far that needed no input.
pub fn minor_faults() -> u64 {
    // SAFETY: rusage is plain numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage into the one given; RUSAGE_SELF cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    usage.ru_minflt as u64
}

/// Has the C library give back the pages that it keeps for later. Otherwise a difference of
/// resident memory would miss blocks that were served from them.
fn settle_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the allocator's own locks and touches only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the resident bytes of this process once the heap is settled and background threads have
/// released dropped memory. Otherwise a growth would be measured against a number that is still
/// falling.
pub fn settled_rss() -> u64 {
    settle_heap();
    let mut resident = rss();
    // At most a second: a process that never rests is measured while it works.
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(20));
        let now = rss();
        if now == resident {
            break;
        }
        resident = now;
    }
    resident
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_is_seen_and_settles() {
        const SIZE: usize = 32 << 20;
        let (resident, faults) = (settled_rss(), minor_faults());
        let memory = vec![1u8; SIZE];
        assert!(minor_faults() > faults);
        assert!(rss() >= resident + SIZE as u64 * 9 / 10);
        assert_eq!(memory[SIZE / 2], 1);
        drop(memory);
        assert!(settled_rss() < resident + SIZE as u64 / 2);
    }
}
