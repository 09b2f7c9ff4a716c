//! A word for each value of a shared cache that a process makes. It lies in the first chunk and
//! names the process's slot, so it is removed with everything else that a dead process left.

use super::layout::Use;
use crate::sync::{AtomicU64, Ordering};

/// The slot plus one (16 bits), bits of the key's hash (47), and whether a thread waits (1). 0:
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Making(pub u64);

/// The number of values that may be made at a time.
pub(super) const FLIGHTS: usize = 1024;
/// Where the words are in the first chunk.
pub(super) const FLIGHTS_AT: usize = 512;

const AWAITED: u64 = 1;
const HASH: u64 = (1 << 48) - 2;

impl Making {
    pub const NONE: Making = Making(0);

    pub fn new(own: u32, hash: u64) -> Making {
        Making(u64::from(own + 1) << 48 | (hash << 1) & HASH)
    }

    /// Returns the slot of the process that makes it.
    pub fn owner(self) -> u32 {
        ((self.0 >> 48) as u32).wrapping_sub(1)
    }

    pub fn is_of_hash_of(self, other: Making) -> bool {
        (self.0 ^ other.0) & HASH == 0
    }

    /// Returns whether it is the same, awaited or not.
    pub fn is(self, other: Making) -> bool {
        self.0 & !AWAITED == other.0 & !AWAITED
    }

    pub fn awaited(self) -> Making {
        Making(self.0 | AWAITED)
    }

    pub fn is_awaited(self) -> bool {
        self.0 & AWAITED != 0
    }
}

/// Returns whether memory of this use has such words in its first chunk.
pub(super) fn are_in(usage: Use) -> bool {
    usage == Use::Cache
}

/// Removes the makings of a dead process. The caller has its slot, so no other process makes a
/// value in that slot. Calls `wake` for each word at which a thread waits.
pub(super) fn bury(words: &[AtomicU64], dead: u32, wake: impl Fn(&AtomicU64)) {
    for word in words {
        let of_the_dead =
            |there: u64| (there != 0 && Making(there).owner() == dead).then_some(Making::NONE.0);
        let before = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, of_the_dead);
        if before.is_ok_and(|before| Making(before).is_awaited()) {
            wake(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_the_dead_made_goes() {
        let words = [Making::new(3, 77), Making::new(4, 77).awaited(), Making::new(3, 5).awaited()];
        let words = words.map(|making| AtomicU64::new(making.0));
        let woken = Cell::new(0);
        bury(&words, 3, |_| woken.set(woken.get() + 1));
        assert_eq!(words.map(|word| word.into_inner() == 0), [true, false, true]);
        assert_eq!(woken.get(), 1);
        assert_eq!(Making::new(1023, u64::MAX).owner(), 1023);
        assert!(Making::new(3, 9).is(Making::new(3, 9).awaited()));
        assert!(Making::new(3, 9).is_of_hash_of(Making::new(4, 9)));
    }
}
