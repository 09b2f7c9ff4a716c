//! How many mappings the process may still take.
//!
//! At `vm.max_map_count` not only the next file fails: no thread starts, and no memory can be
//! mapped. So files are refused a little earlier.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Reserved for threads' stacks, the allocator, and reads meanwhile.
pub const RESERVE: usize = 200;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// One mapping, while this lives.
#[derive(Debug)]
pub struct Taken(());

/// Takes a mapping, if there is one left.
pub fn take() -> Option<Taken> {
    let taken = Taken(());
    (TAKEN.fetch_add(1, Ordering::Relaxed) < left_at_first()).then_some(taken)
}

impl Drop for Taken {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `vm.max_map_count`.
pub fn allowed() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(usize::MAX)
}

/// The mappings that this process had before any file.
pub fn used() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().count()
}

fn left_at_first() -> usize {
    static LEFT: OnceLock<usize> = OnceLock::new();
    *LEFT.get_or_init(|| allowed().saturating_sub(used() + RESERVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let all = left_at_first();
        if all > 1 << 20 {
            return; // this machine allows so many mappings that none runs out
        }
        let mut taken: Vec<Taken> = std::iter::from_fn(take).collect();
        assert_eq!(taken.len(), all);
        assert!(take().is_none());
        taken.pop();
        taken.extend(take());
        assert_eq!(taken.len(), all);
    }
}
