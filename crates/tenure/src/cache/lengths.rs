//! What is known of the lengths of a segment's values without a look at them.

use super::life::Life;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What is known of the lengths of a segment's values.
pub(super) struct Lengths {
    /// The longest that was put in, with its header.
    longest: AtomicU32,
    /// What was counted last: how many values (upper half) and how many bytes keys led to. 0: nothing was.
    counted: AtomicU64,
}

/// How many bytes keys lead to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    /// If values that went were as long as others.
    pub likely: u64,
    /// If they were the longest.
    pub least: u64,
}

impl Lengths {
    pub fn new() -> Lengths {
        Lengths { longest: AtomicU32::new(0), counted: AtomicU64::new(0) }
    }

    /// Forgets what was known, before the segment is filled anew.
    pub fn reset(&self) {
        self.longest.store(0, Ordering::Relaxed);
        self.counted.store(0, Ordering::Relaxed);
    }

    /// A value is put in that takes `need` bytes.
    #[inline]
    pub fn put(&self, need: usize) {
        let need = u32::try_from(need).unwrap_or(u32::MAX);
        if need > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(need, Ordering::Relaxed);
        }
    }

    /// A value is put in that takes `need` bytes, where one was that had left. Nobody counts meanwhile.
    pub fn put_again(&self, need: usize) {
        self.put(need);
        let counted = self.counted.load(Ordering::Relaxed);
        // Of four gigabytes of such values, the next ones change nothing about how long they are.
        let has_room = (counted as u32).checked_add(need as u32).is_some();
        if counted > 0 && has_room {
            self.counted.store(counted + (1 << 32) + need as u64, Ordering::Relaxed);
        }
    }

    /// That many values, and bytes of them, were counted; the longest of them.
    pub fn count(&self, values: u32, bytes: usize, longest: usize) {
        self.longest.store(u32::try_from(longest).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.counted.store(u64::from(values) << 32 | bytes as u64, Ordering::Relaxed);
    }

    /// What is left of a closed segment.
    pub fn left(&self, life: &Life, filled: usize) -> Bytes {
        let counted = self.counted.load(Ordering::Relaxed);
        let (of, bytes) = match counted {
            0 => (u64::from(life.values()), filled as u64),
            _ => (counted >> 32, counted & u64::from(u32::MAX)),
        };
        let live = u64::from(life.live()).min(of);
        let gone = of - live;
        let longest = u64::from(self.longest.load(Ordering::Relaxed));
        let likely = bytes * live / of.max(1);
        Bytes { likely, least: bytes.saturating_sub(gone * longest).min(likely) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_estimated_by_the_last_count() {
        let (life, lengths) = (Life::new(), Lengths::new());
        for need in [100, 100, 100, 700] {
            lengths.put(need);
            life.add(1);
        }
        let left = |likely, least| Bytes { likely, least };
        assert_eq!(lengths.left(&life, 1000), left(1000, 1000));
        life.leave(1);
        assert_eq!(lengths.left(&life, 1000), left(750, 300));
        // It was the long one.
        lengths.count(3, 300, 100);
        assert_eq!(lengths.left(&life, 1000), left(300, 300));
        life.leave(1);
        assert_eq!(lengths.left(&life, 1000), left(200, 200));
        lengths.reset();
        assert_eq!(lengths.left(&life, 1000), left(500, 500));
    }

    /// As where one value of a segment is overwritten all the time: the segment stays, and is not counted again.
    #[test]
    fn the_estimate_outlasts_any_number_of_values_put_in_again() {
        let (life, lengths, need) = (Life::new(), Lengths::new(), 200_000);
        (0..10).for_each(|_| life.add(1));
        lengths.put(need);
        lengths.count(10, 10 * need, need);
        for _ in 0..50_000 {
            life.leave(1);
            life.add_again(1);
            lengths.put_again(need);
            let left = lengths.left(&life, 10 * need);
            assert_eq!(left, Bytes { likely: 2_000_000, least: 2_000_000 });
        }
    }
}
