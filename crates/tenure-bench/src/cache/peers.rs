//! moka, quick_cache and foyer, as their documentation has them used: default hashers and policies,
//! room for twice the working set so that nothing is evicted.

use super::store::{check, Store};
use std::io;
use std::sync::Arc;

pub(super) struct Moka(moka::sync::Cache<u64, Arc<[u8]>>);

impl Moka {
    pub fn new(values: usize) -> Self {
        Moka(moka::sync::Cache::new(2 * values as u64))
    }
}

impl Store for Moka {
    #[inline]
    fn read(&self, key: u64) -> Option<bool> {
        self.0.get(&key).map(|value| check(&value, key))
    }

    fn write(&self, key: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.insert(key, Arc::from(bytes));
        Ok(())
    }

    fn settled_len(&self) -> usize {
        self.0.run_pending_tasks();
        self.0.entry_count() as usize
    }
}

pub(super) struct QuickCache(quick_cache::sync::Cache<u64, Arc<[u8]>>);

impl QuickCache {
    pub fn new(values: usize) -> Self {
        QuickCache(quick_cache::sync::Cache::new(2 * values))
    }
}

impl Store for QuickCache {
    #[inline]
    fn read(&self, key: u64) -> Option<bool> {
        self.0.get(&key).map(|value| check(&value, key))
    }

    fn write(&self, key: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.insert(key, Arc::from(bytes));
        Ok(())
    }

    fn settled_len(&self) -> usize {
        self.0.len()
    }
}

pub(super) struct Foyer(foyer_memory::Cache<u64, Arc<[u8]>>);

impl Foyer {
    pub fn new(values: usize) -> Self {
        Foyer(foyer_memory::CacheBuilder::new(2 * values).build())
    }
}

impl Store for Foyer {
    #[inline]
    fn read(&self, key: u64) -> Option<bool> {
        self.0.get(&key).map(|entry| check(entry.value(), key))
    }

    fn write(&self, key: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.insert(key, Arc::from(bytes));
        Ok(())
    }

    fn settled_len(&self) -> usize {
        self.0.entries()
    }
}
