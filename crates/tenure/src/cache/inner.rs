//! The parts of a cache, and how forks hold all of them.

#![allow(unsafe_code, reason = "takes itself out of the list of caches")]

use super::fork::{Forked, Listed};
use super::listener::Listener;
use super::shard::{Shard, Shards};
use super::single_flight::Flights;
use super::space::Space;
use super::worth::{Weighed, Worth};
use crate::runtime::lock::Rank;
use std::sync::atomic::{AtomicBool, Ordering};

/// The parts of a [`Cache`](super::Cache).
pub(super) struct Inner<K, S> {
    pub shards: Shards<K, S>,
    pub space: Space,
    pub flights: Flights<K>,
    pub listed: Listed,
    pub worth: Worth,
    pub listener: Option<Listener<K>>,
    /// Whether any value ever had a time to live or to idle.
    pub has_ends: AtomicBool,
}

impl<K, S> Drop for Inner<K, S> {
    fn drop(&mut self) {
        self.listed.remove();
    }
}

// SAFETY: the place is a field, and `drop` takes it out of the list.
unsafe impl<K: Send + Sync, S: Send + Sync> Forked for Inner<K, S> {
    fn listed(&self) -> &Listed {
        &self.listed
    }

    fn hold(&self, rank: Rank) {
        match rank {
            Rank::CacheSpace => self.space.hold(),
            Rank::CacheShard => self.shards.iter().for_each(|shard| shard.table.hold()),
            Rank::SingleFlight => self.flights.hold(),
            _ => {}
        }
    }

    fn release(&self) {
        self.flights.release();
        self.shards.iter().for_each(|shard| shard.table.release());
        self.space.release();
    }

    fn reset_in_child(&self) {
        self.space.reset_in_child(true);
        self.shards.iter().for_each(|shard| shard.table.reset_in_child());
    }

    fn recover(&self) {
        let shards: &Shards<K, S> = &self.shards;
        let half = shards.iter().filter(|shard| shard.table.recover()).count() > 0;
        self.flights.recover();
        if self.space.recover() || half {
            shards.clear(&self.flights);
            self.space.abandon(shards);
        }
    }

    fn weighed(&self) -> &dyn Weighed {
        self
    }

    fn held_values(&self) -> u64 {
        self.space.held_values()
    }
}

impl<K: Send + Sync, S: Send + Sync> Weighed for Inner<K, S> {
    fn worth(&self) -> &Worth {
        &self.worth
    }

    fn hits(&self) -> u64 {
        let hits = |shard: &Shard<K>| {
            let misses = shard.misses.load(Ordering::Relaxed);
            shard.table.lookups().saturating_sub(misses)
        };
        self.shards.iter().map(hits).sum()
    }

    fn footprint(&self) -> u64 {
        self.space.sizes().0
    }

    fn spare(&self, spared: bool) {
        self.space.segments.iter().for_each(|segment| segment.range.set_spared(spared));
    }
}
