//! Which value of a shared cache a process makes: a word. It lies in the first chunk, and names the process's slot, so that it
//! goes with the rest of what a dead process has left.

use super::layout::Use;
use crate::sync::{AtomicU64, Ordering};

/// The slot and one (16 bits), bits of the key's hash (47), and whether somebody waits (1). 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Making(pub u64);

/// So many values may be made at a time.
pub(super) const FLIGHTS: usize = 1024;
/// Where in the first chunk the words are.
pub(super) const FLIGHTS_AT: usize = 512;

const AWAITED: u64 = 1;
const HASH: u64 = (1 << 48) - 2;

impl Making {
    pub const NONE: Making = Making(0);

    pub fn new(own: u32, hash: u64) -> Making {
        Making(u64::from(own + 1) << 48 | (hash << 1) & HASH)
    }

    /// The slot of the process that makes it.
    pub fn owner(self) -> u32 {
        ((self.0 >> 48) as u32).wrapping_sub(1)
    }

    pub fn is_of_hash_of(self, other: Making) -> bool {
        (self.0 ^ other.0) & HASH == 0
    }

    /// Whether it is the same, awaited or not.
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

/// Whether the first chunk of memory of that use has such words.
pub(super) fn are_in(usage: Use) -> bool {
    usage == Use::Cache
}

/// Takes away what a dead process made. The caller has its slot, so no other process makes anything as that one. Calls
/// `wake` for each word that somebody waits at.
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
