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

#[cfg(test)]
mod tests {
    use super::super::store::{blank, stamp, Tally};
    use super::*;

    #[test]
    fn each_keeps_what_it_was_given_and_misses_what_it_was_not() {
        let stores: [Box<dyn Store>; 3] = [
            Box::new(Moka::new(100)),
            Box::new(QuickCache::new(100)),
            Box::new(Foyer::new(100)),
        ];
        for store in stores {
            let mut value = blank(1024);
            let keys: Vec<u64> = (0..100).collect();
            store.write_each(&keys, &mut value).unwrap();
            assert_eq!(store.settled_len(), 100);
            assert_eq!(store.read_each(&keys), Tally::default());
            assert_eq!(
                store.read_each(&[100]),
                Tally {
                    misses: 1,
                    wrong: 0
                }
            );
            stamp(&mut value, 5);
            store.write(6, &value).unwrap();
            assert_eq!(
                store.read_each(&[5, 6]),
                Tally {
                    misses: 0,
                    wrong: 1
                }
            );
        }
    }
}
