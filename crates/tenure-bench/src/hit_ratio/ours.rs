//! tenure's caches, with the others' bytes as their ceiling, and real values.

use super::caching::{Caching, Sizes};
use crate::cache::store::{blank, check, stamp};
use std::io;
use tenure::shared::SharedCache;

/// Values that show corruption.
struct Values {
    sizes: Sizes,
    /// Stamped for each inserted value.
    next: Vec<u8>,
    wrong: u64,
}

impl Values {
    fn new(sizes: &Sizes) -> Values {
        let largest = sizes.iter().max().map_or(16, |size| *size as usize);
        Values { sizes: sizes.clone(), next: blank(largest), wrong: 0 }
    }

    fn found(&mut self, value: &[u8], key: u32) {
        self.wrong += u64::from(!check(value, key.into()));
    }

    /// Has `insert` insert the value of `key`.
    fn insert<R>(&mut self, key: u32, insert: impl FnOnce(&[u8]) -> R) -> R {
        let len = self.sizes[key as usize] as usize;
        let bytes = &mut self.next[..len];
        let last = bytes[len - 8..].to_vec();
        stamp(bytes, key.into());
        let inserted = insert(bytes);
        bytes[len - 8..].copy_from_slice(&last);
        inserted
    }

    fn verdict(&self) -> io::Result<()> {
        if self.wrong > 0 {
            let why = format!("{} values had wrong bytes", self.wrong);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(())
    }
}

/// The cache of one process.
pub(super) struct Ours {
    cache: tenure::Cache<u32>,
    values: Values,
    refused: u64,
}

impl Ours {
    pub fn new(bytes: u64, sizes: &Sizes) -> io::Result<Ours> {
        let cache = tenure::Cache::builder().ceiling(bytes).build()?;
        Ok(Ours { cache, values: Values::new(sizes), refused: 0 })
    }
}

impl Caching for Ours {
    fn request(&mut self, key: u32) -> bool {
        if let Some(value) = self.cache.get(&key) {
            self.values.found(&value, key);
            return true;
        }
        let inserted = self.values.insert(key, |bytes| self.cache.insert(key, bytes));
        self.refused += u64::from(inserted.is_err());
        false
    }

    fn verdict(&mut self) -> io::Result<()> {
        self.values.verdict()?;
        let stats = self.cache.stats();
        if self.refused > 0 || stats.purged_values > 0 {
            let why = format!(
                "{} values were refused and {} purged: the machine has too little memory free",
                self.refused, stats.purged_values
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Ok(())
    }
}

/// The cache that processes share, in one process.
pub(super) struct Shared {
    cache: SharedCache,
    values: Values,
}

impl Shared {
    pub fn new(bytes: u64, sizes: &Sizes) -> io::Result<Shared> {
        let cache = SharedCache::builder().most(bytes as usize).build()?;
        Ok(Shared { cache, values: Values::new(sizes) })
    }
}

impl Caching for Shared {
    fn request(&mut self, key: u32) -> bool {
        let name = key.to_le_bytes();
        if let Ok(Some(value)) = self.cache.get(&name) {
            self.values.found(&value, key);
            return true;
        }
        // A value that does not fit a chunk is a miss.
        let _ = self.values.insert(key, |bytes| self.cache.insert(&name, bytes));
        false
    }

    fn verdict(&mut self) -> io::Result<()> {
        self.values.verdict()
    }
}
