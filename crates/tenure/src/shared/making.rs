//! A word for each value of a shared cache that a process makes. It lies in the first chunk and
//! names the process's slot, so it is removed with everything else that a dead process left.

use super::layout::Use;
use crate::sync::{barrier_after_rmw, AtomicU32, AtomicU64, Ordering};

/// The slot plus one (16 bits), bits of the key's hash (46), whether the key has changed since (1),
/// and whether a thread waits (1). 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Making(pub u64);

/// The number of values that may be made at a time.
pub(super) const FLIGHTS: usize = 1024;
/// Where the words are in the first chunk.
pub(super) const FLIGHTS_AT: usize = 512;

const AWAITED: u64 = 1;
const OUTDATED: u64 = 2;
const HASH: u64 = (1 << 48) - 4;

/// The words of the first chunk that all processes use for the values that they make.
#[repr(C)]
pub(super) struct Flights {
    /// Each is a [`Making`].
    pub making: [AtomicU64; FLIGHTS],
    /// For each place: how often keys have changed whose values are made there. For the makers
    /// that have no place.
    pub changes: [AtomicU32; FLIGHTS],
}

impl Flights {
    /// Returns the number of the place where the value of a hash is made.
    pub fn number(hash: u64) -> usize {
        (hash >> 20) as usize % FLIGHTS
    }

    /// Outdates the value of a hash that is being made now. The caller changes the key in the index
    /// after that: see [`super::store`].
    pub fn outdate(&self, hash: u64) {
        let own = Making::new(0, hash);
        self.outdate_if(Flights::number(hash), |there| there.is_of_hash_of(own));
    }

    /// Outdates all values that are being made now.
    pub fn outdate_all(&self) {
        (0..FLIGHTS).for_each(|number| self.outdate_if(number, |_| true));
    }

    fn outdate_if(&self, number: usize, is_meant: impl Fn(Making) -> bool) {
        self.changes[number].fetch_add(1, Ordering::SeqCst);
        // A maker that begins after this look reads what the caller wrote before its call.
        barrier_after_rmw();
        let marked = |there: u64| {
            let making = Making(there);
            (making != Making::NONE && is_meant(making)).then_some(there | OUTDATED)
        };
        let (order, failed) = (Ordering::SeqCst, Ordering::Acquire);
        let _ = self.making[number].fetch_update(order, failed, marked);
        barrier_after_rmw();
    }
}

impl Making {
    pub const NONE: Making = Making(0);

    pub fn new(own: u32, hash: u64) -> Making {
        Making(u64::from(own + 1) << 48 | (hash << 2) & HASH)
    }

    /// Returns the slot of the process that makes it.
    pub fn owner(self) -> u32 {
        ((self.0 >> 48) as u32).wrapping_sub(1)
    }

    pub fn is_of_hash_of(self, other: Making) -> bool {
        (self.0 ^ other.0) & HASH == 0
    }

    /// Returns whether it is the same, awaited and outdated or not.
    pub fn is(self, other: Making) -> bool {
        (self.0 ^ other.0) & !(AWAITED | OUTDATED) == 0
    }

    pub fn is_outdated(self) -> bool {
        self.0 & OUTDATED != 0
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

    #[test]
    fn a_change_outdates_the_values_of_its_hash() {
        let flights = Flights {
            making: [const { AtomicU64::new(0) }; FLIGHTS],
            changes: [const { AtomicU32::new(0) }; FLIGHTS],
        };
        // Two hashes of one place, and one of another.
        let (hash, same_place, other) = (7 << 20, 7 << 20 | 1, 8 << 20);
        let place = |hash| &flights.making[Flights::number(hash)];
        for hash in [hash, other] {
            place(hash).store(Making::new(3, hash).awaited().0, Ordering::Relaxed);
        }
        let is_outdated = |hash| {
            let there = Making(place(hash).load(Ordering::Relaxed));
            assert!(there.is(Making::new(3, hash)) && there.is_awaited());
            there.is_outdated()
        };
        flights.outdate(same_place);
        assert!(!is_outdated(hash) && !is_outdated(other));
        flights.outdate(hash);
        assert!(is_outdated(hash) && !is_outdated(other));
        flights.outdate_all();
        assert!(is_outdated(other));
        let changes = |hash| flights.changes[Flights::number(hash)].load(Ordering::Relaxed);
        assert_eq!((changes(hash), changes(other), changes(9 << 20)), (3, 1, 1));
        assert_eq!(flights.making[9].load(Ordering::Relaxed), 0);
    }
}
