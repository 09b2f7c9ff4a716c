//! What the cache knows of the lengths of a segment's values without reading them.

use super::life::Life;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the cache knows of the lengths of a segment's values.
pub(super) struct Lengths {
    /// The longest value so far, with its header.
    longest: AtomicU32,
    /// The last count: the values (upper half) and the bytes that keys led to. 0: there was no
    /// count.
    counted: AtomicU64,
}

/// The bytes that keys lead to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    /// The estimate if the values that left were as long as the others.
    pub likely: u64,
    /// The estimate if the values that left were the longest.
    pub least: u64,
}

impl Lengths {
    pub fn new() -> Lengths {
        Lengths { longest: AtomicU32::new(0), counted: AtomicU64::new(0) }
    }

    /// Forgets everything before the segment is filled anew.
    pub fn reset(&self) {
        self.longest.store(0, Ordering::Relaxed);
        self.counted.store(0, Ordering::Relaxed);
    }

    /// Notes an insert of a value that takes `need` bytes.
    #[inline]
    pub fn put(&self, need: usize) {
        let need = u32::try_from(need).unwrap_or(u32::MAX);
        if need > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(need, Ordering::Relaxed);
        }
    }

    /// Notes a value that takes `need` bytes at a vacated place. No other thread counts meanwhile.
    pub fn put_again(&self, need: usize) {
        self.put(need);
        let counted = self.counted.load(Ordering::Relaxed);
        // After four gigabytes of such values, more of them do not change the average.
        let has_room = (counted as u32).checked_add(need as u32).is_some();
        if counted > 0 && has_room {
            self.counted.store(counted + (1 << 32) + need as u64, Ordering::Relaxed);
        }
    }

    /// Takes over a count: the values, their bytes, and the longest of them.
    pub fn count(&self, values: u32, bytes: usize, longest: usize) {
        self.longest.store(u32::try_from(longest).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.counted.store(u64::from(values) << 32 | bytes as u64, Ordering::Relaxed);
    }

    /// Returns how many bytes of a closed segment keys still lead to.
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

    /// Else the cache would keep the bytes of values that never came, beside a few that did.
    #[test]
    fn what_did_not_come_is_not_left() {
        let (life, lengths) = (Life::new(), Lengths::new());
        for comes in [true, false, false, false] {
            lengths.put(100);
            if comes {
                life.add(1)
            } else {
                life.add_none(1)
            };
        }
        assert_eq!(life.live(), 1);
        assert_eq!(lengths.left(&life, 1000).likely, 250);
    }

    /// As where one value of a segment is overwritten all the time: the segment stays, and is not
    /// counted again.
    #[test]
    fn the_estimate_outlasts_any_number_of_values_put_in_again() {
        let (life, lengths, need) = (Life::new(), Lengths::new(), 200_000);
        (0..10).for_each(|_| _ = life.add(1));
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
