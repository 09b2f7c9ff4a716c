//! The index: it maps keys to places, in shards that share no memory.

use super::harvesting::{Harvesting, Harvests};
use super::listener::{Listener, RemovalCause};
use super::place::{number, Place, SHARDS};
use super::single_flight::Flights;
use super::space::Index;
use super::table::{Change, Table};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// One shard, on cache lines of its own.
#[repr(C, align(128))]
pub(super) struct Shard<K> {
    pub table: Table<K>,
    pub misses: AtomicU64,
}

pub(super) struct Shards<K, S> {
    shards: Box<[Shard<K>]>,
    pub harvests: Arc<Harvests>,
    hasher: S,
}

/// Spreads the result of the program's hasher over all 64 bits. So even a hasher that returns the
/// key itself spreads keys over shards and slots.
#[inline]
fn finish(hash: u64) -> u64 {
    // Both halves of the product depend on all bits: the upper half mostly on the upper bits, the
    // lower half on the lower bits.
    let product = u128::from(hash ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
    (product as u64) ^ (product >> 64) as u64
}

impl<K, S> Shards<K, S> {
    pub fn new(hasher: S, listener: Option<&Listener<K>>) -> Self {
        let harvests = Arc::<Harvests>::default();
        let table = || Table::new(harvests.clone(), listener.cloned());
        let shard = |_| Shard { table: table(), misses: AtomicU64::new(0) };
        Shards { shards: (0..SHARDS).map(shard).collect(), harvests, hasher }
    }

    #[inline]
    pub fn of(&self, hash: u32) -> &Shard<K> {
        &self.shards[number(hash)]
    }

    pub fn iter(&self) -> impl Iterator<Item = &Shard<K>> {
        self.shards.iter()
    }

    /// Removes every key, and outdates the values that are being made.
    pub fn clear(&self, flights: &Flights<K>) {
        for (number, shard) in self.shards.iter().enumerate() {
            shard.table.clear(&Clearing { flights, number });
        }
    }

    /// Harvests the table of this hash: see [`Table::harvest`].
    #[inline]
    pub fn harvest_of(&self, hash: u32) {
        self.of(hash).table.harvest();
        self.harvest_left();
    }

    /// Harvests what a harvest inside another one was refused, or what a panic left. Each call of a
    /// cache that may have harvested ends with it; one that returns a value begins with it.
    #[inline]
    pub fn harvest_left(&self) {
        if self.harvests.are_left() {
            self.harvest();
        }
    }

    /// Harvests all tables, until nothing is left that a harvest inside these was refused.
    pub fn harvest(&self) {
        let Some(rounds) = Harvesting::rounds(&self.harvests) else { return };
        loop {
            self.shards.iter().for_each(|shard| shard.table.harvest());
            self.shards[0].table.tell_put_off();
            if !rounds.again() {
                return rounds.end();
            }
        }
    }
}

/// Removes all keys of the shard of this number.
struct Clearing<'a, K> {
    flights: &'a Flights<K>,
    number: usize,
}

impl<K> Change for Clearing<'_, K> {
    fn heeds_absence(&self) -> bool {
        true
    }

    fn may(&self) -> bool {
        self.flights.outdate(self.number, |_| true);
        true
    }

    fn made(&self, _before: Option<Place>) {}
}

impl<K: Hash + Eq, S: BuildHasher> Shards<K, S> {
    /// Returns a key's hash. Runs the program's code.
    #[inline]
    pub fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64
    where
        K: Borrow<Q>,
    {
        finish(self.hasher.hash_one(key))
    }
}

impl<K, S> Index for Shards<K, S> {
    fn holds(&self, hash: u32, place: Place) -> Option<Place> {
        self.of(hash).table.holds(hash, place)
    }
    fn relocate(&self, hash: u32, from: Place, to: Place) -> bool {
        self.of(hash).table.relocate(hash, from, to)
    }
    fn forget(&self, hash: u32, place: Place, cause: RemovalCause) -> bool {
        self.of(hash).table.remove_place(hash, place, cause)
    }
    fn forget_segment(&self, segment: u32) {
        for shard in &self.shards {
            shard.table.remove_all(&|place| place.segment() == segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::short;
    use super::*;

    #[test]
    fn hashes_without_entropy_in_high_or_low_bits_spread() {
        for shift in [0, 12, 32, 48] {
            let mut shards = [0u32; SHARDS];
            let mut tops = [0u32; 64];
            for key in 0..6400u64 {
                let hash = short(finish(key << shift));
                shards[hash as usize % SHARDS] += 1;
                tops[(hash >> 26) as usize] += 1;
            }
            assert!(shards.iter().chain(&tops).all(|n| (50..160).contains(n)), "shift {shift}");
        }
    }
}
