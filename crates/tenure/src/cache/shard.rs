//! The index: keys to places, in shards that lock apart.

use super::space::Index;
use super::table::{Place, Table};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::AtomicU64;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

const SHARDS: usize = 64;

/// One shard, on cache lines of its own.
#[repr(align(128))]
pub(super) struct Shard<K> {
    table: RwLock<Table<K>>,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
}

/// All shards.
pub(super) struct Shards<K, S> {
    shards: Box<[Shard<K>]>,
    hasher: S,
    born: Instant,
}

impl<K> Shard<K> {
    pub fn read(&self) -> RwLockReadGuard<'_, Table<K>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }
    pub fn write(&self) -> RwLockWriteGuard<'_, Table<K>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The 32 bits by which a key is found: the high half, whose top bits choose the slot and whose low
/// bits the shard.
pub(super) fn short(hash: u64) -> u32 {
    (hash >> 32) as u32
}

impl<K: Hash + Eq, S: BuildHasher> Shards<K, S> {
    pub fn new(hasher: S) -> Self {
        let shard = |_| Shard {
            table: RwLock::new(Table::new()),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        Shards { shards: (0..SHARDS).map(shard).collect(), hasher, born: Instant::now() }
    }

    #[inline]
    pub fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64
    where
        K: Borrow<Q>,
    {
        self.hasher.hash_one(key)
    }

    /// The 32-bit hash of a key, for moving it within its table.
    pub fn rehash(&self) -> impl Fn(&K) -> u32 + '_ {
        |key| short(self.hasher.hash_one(key))
    }

    #[inline]
    pub fn of(&self, hash: u32) -> &Shard<K> {
        &self.shards[hash as usize % SHARDS]
    }

    pub fn iter(&self) -> impl Iterator<Item = &Shard<K>> {
        self.shards.iter()
    }

    /// Milliseconds since the cache was made.
    pub fn now_ms(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }
}

impl<K: Hash + Eq, S: BuildHasher> Index for Shards<K, S> {
    fn holds(&self, hash: u32, place: Place) -> Option<Place> {
        self.of(hash).read().holds(hash, place)
    }
    fn relocate(&self, hash: u32, from: Place, to: Place) -> bool {
        self.of(hash).write().relocate(hash, from, to)
    }
    fn forget(&self, hash: u32, place: Place) -> bool {
        self.of(hash).write().remove_place(hash, place, self.rehash())
    }
    fn expired(&self, deadline: u64) -> bool {
        deadline <= self.now_ms()
    }
}
