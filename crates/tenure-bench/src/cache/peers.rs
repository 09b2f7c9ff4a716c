//! moka, quick_cache and foyer, as their documentation recommends: default hashers and policies,
//! room for twice the working set so that nothing is evicted.

use super::store::{check, Store};
use std::io;
use std::sync::Arc;

pub(crate) struct Moka(moka::sync::Cache<u64, Arc<[u8]>>);

impl Moka {
    pub fn new(values: usize) -> Self {
        Moka(moka::sync::Cache::new(2 * values as u64))
    }

    /// A cache with a size in bytes: the memory that a worker can have without volatile memory.
    pub fn of_bytes(bytes: u64) -> Self {
        let weigher = |_: &u64, value: &Arc<[u8]>| value.len() as u32;
        Moka(moka::sync::Cache::builder().weigher(weigher).max_capacity(bytes).build())
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

pub(super) struct QuickCache<W = quick_cache::UnitWeighter>(
    quick_cache::sync::Cache<u64, Arc<[u8]>, W>,
);

impl QuickCache {
    pub fn new(values: usize) -> Self {
        QuickCache(quick_cache::sync::Cache::new(2 * values))
    }
}

impl<W> Store for QuickCache<W>
where
    W: quick_cache::Weighter<u64, Arc<[u8]>> + Clone + Send + Sync,
{
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

/// Weighs a value by its bytes.
#[derive(Clone)]
pub(super) struct Bytes;

impl quick_cache::Weighter<u64, Arc<[u8]>> for Bytes {
    fn weight(&self, _: &u64, value: &Arc<[u8]>) -> u64 {
        value.len() as u64
    }
}

/// quick_cache with a size in bytes, which may change.
pub(super) type Resizable = QuickCache<Bytes>;

impl Resizable {
    pub fn of_bytes(bytes: u64, keys: usize) -> Self {
        QuickCache(quick_cache::sync::Cache::with_weighter(keys, bytes, Bytes))
    }

    /// Bytes of the values that it holds.
    pub fn held(&self) -> u64 {
        self.0.weight()
    }

    pub fn resize(&self, bytes: u64) {
        self.0.set_capacity(bytes);
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
