//! The compared caches, behind one interface.

use anyhow::Context;
use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use tenure::shared::SharedCache;

/// One of the ways to keep values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    /// A least-recently-used cache of a fixed size.
    FixedLru {
        /// Bytes of values it may hold.
        bytes: u64,
    },
    /// moka's cache of a fixed size.
    Moka {
        /// Bytes of values it may hold.
        bytes: u64,
    },
    /// tenure's cache, without a size.
    Tenure,
    /// tenure's cache for several processes, also without a size.
    Shared {
        /// The number of its descriptor, which each worker inherits.
        descriptor: i32,
    },
}

impl Kind {
    /// Returns whether it is one of tenure's.
    pub fn is_ours(self) -> bool {
        self.bytes().is_none()
    }

    /// Bytes of values that it may hold, if it has a size.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Kind::FixedLru { bytes } | Kind::Moka { bytes } => Some(bytes),
            Kind::Tenure | Kind::Shared { .. } => None,
        }
    }
}

/// A cache of byte values, shared between threads.
pub trait Store: Send + Sync {
    /// Passes the value to `look` if it is there. Returns whether it was.
    fn get_with(&self, key: u32, look: &mut dyn FnMut(&[u8])) -> bool;
    /// Keeps a copy of `value`, if there is room for it.
    fn put(&self, key: u32, value: &[u8]);
    /// Bytes that its values take now, as far as it knows.
    fn bytes(&self) -> u64;
    /// Bytes that the kernel has taken from it, as far as it has noticed.
    fn taken(&self) -> u64;
}

/// Makes the store.
pub fn open(kind: Kind) -> anyhow::Result<Box<dyn Store>> {
    Ok(match kind {
        Kind::FixedLru { bytes } => Box::new(FixedLru::new(bytes)),
        Kind::Moka { bytes } => Box::new(Moka::new(bytes)),
        Kind::Tenure => Box::new(Tenure::new()?),
        Kind::Shared { descriptor } => Box::new(Shared::open(descriptor)?),
    })
}

struct FixedLru {
    limit: u64,
    held: Mutex<Held>,
}

struct Held {
    values: LruCache<u32, Arc<[u8]>>,
    bytes: u64,
}

impl FixedLru {
    fn new(limit: u64) -> FixedLru {
        FixedLru { limit, held: Mutex::new(Held { values: LruCache::unbounded(), bytes: 0 }) }
    }
}

impl Store for FixedLru {
    fn get_with(&self, key: u32, look: &mut dyn FnMut(&[u8])) -> bool {
        // The lock is held to copy a reference, not for the reading of the value.
        let value = self.held.lock().expect("no thread panics").values.get(&key).cloned();
        value.as_deref().map(look).is_some()
    }

    fn put(&self, key: u32, value: &[u8]) {
        let mut held = self.held.lock().expect("no thread panics");
        // Other values are evicted first: the sum must never exceed the cache's size.
        if let Some(old) = held.values.pop(&key) {
            held.bytes -= old.len() as u64;
        }
        while held.bytes + value.len() as u64 > self.limit {
            let Some((_, old)) = held.values.pop_lru() else {
                return;
            };
            held.bytes -= old.len() as u64;
        }
        held.bytes += value.len() as u64;
        held.values.put(key, value.into());
    }

    fn taken(&self) -> u64 {
        // It offers nothing to the kernel, so nothing can be taken.
        0
    }

    fn bytes(&self) -> u64 {
        self.held.lock().expect("no thread panics").bytes
    }
}

/// moka with byte values as its documentation recommends: by weight, shared between threads without
/// a copy.
struct Moka {
    cache: moka::sync::Cache<u32, Arc<[u8]>>,
}

impl Moka {
    fn new(bytes: u64) -> Moka {
        let weigher = |_: &u32, value: &Arc<[u8]>| value.len() as u32;
        Moka { cache: moka::sync::Cache::builder().max_capacity(bytes).weigher(weigher).build() }
    }
}

impl Store for Moka {
    fn get_with(&self, key: u32, look: &mut dyn FnMut(&[u8])) -> bool {
        self.cache.get(&key).as_deref().map(look).is_some()
    }

    fn put(&self, key: u32, value: &[u8]) {
        self.cache.insert(key, value.into());
    }

    fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    fn taken(&self) -> u64 {
        // moka offers nothing to the kernel, so nothing can be taken.
        0
    }
}

struct Tenure {
    cache: tenure::Cache<u32>,
}

impl Tenure {
    fn new() -> anyhow::Result<Tenure> {
        Ok(Tenure { cache: tenure::Cache::new().context("tenure's cache")? })
    }
}

impl Store for Tenure {
    fn get_with(&self, key: u32, look: &mut dyn FnMut(&[u8])) -> bool {
        self.cache.get(&key).map(|value| look(&value)).is_some()
    }

    fn put(&self, key: u32, value: &[u8]) {
        // A refusal is no failure: the value was served, and will be made again.
        let _ = self.cache.insert(key, value);
    }

    fn bytes(&self) -> u64 {
        self.cache.stats().footprint_bytes
    }

    fn taken(&self) -> u64 {
        self.cache.stats().purged_bytes
    }
}

struct Shared {
    cache: SharedCache,
}

impl Shared {
    #[allow(unsafe_code, reason = "takes over a descriptor that was inherited")]
    fn open(descriptor: i32) -> anyhow::Result<Shared> {
        // SAFETY: the demo has left this descriptor open for this process only, which opens one
        // store. So no other code here owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: only the demo and its workers have the descriptor, and they use it through
        // tenure.
        let cache = unsafe { SharedCache::open(descriptor) }.context("the shared cache")?;
        Ok(Shared { cache })
    }
}

impl Store for Shared {
    fn get_with(&self, key: u32, look: &mut dyn FnMut(&[u8])) -> bool {
        let value = self.cache.get(&key.to_le_bytes());
        value.ok().flatten().map(|value| look(&value)).is_some()
    }

    fn put(&self, key: u32, value: &[u8]) {
        // A refusal is no failure: the value was served, and will be made again.
        let _ = self.cache.insert(&key.to_le_bytes(), value);
    }

    /// The sum of all workers.
    fn bytes(&self) -> u64 {
        let memory = self.cache.stats().memory;
        memory.intact * memory.chunk_bytes
    }

    /// The sum of all workers. The workers themselves purge here, not the kernel.
    fn taken(&self) -> u64 {
        let memory = self.cache.stats().memory;
        memory.purges * memory.chunk_bytes
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::FixedLru { bytes } => write!(f, "fixed LRU of {}", crate::size::mib(*bytes)),
            Kind::Moka { bytes } => write!(f, "moka of {}", crate::size::mib(*bytes)),
            Kind::Tenure => f.write_str("tenure::Cache, no size set"),
            Kind::Shared { .. } => f.write_str("tenure::shared::SharedCache, no size set"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_lru_keeps_to_its_size_and_drops_the_least_recent() {
        let store = FixedLru::new(100);
        for key in 0..4 {
            store.put(key, &[key as u8; 25]);
        }
        assert!(store.get_with(0, &mut |value| assert_eq!(value, [0; 25])));
        store.put(4, &[4; 25]);
        assert!(!store.get_with(1, &mut |_| ()), "1 was the least recently used");
        assert!(store.get_with(0, &mut |_| ()));
        assert_eq!(store.bytes(), 100);
        store.put(0, &[9; 10]);
        assert_eq!(store.bytes(), 85);
        store.put(5, &[5; 101]);
        assert!(!store.get_with(5, &mut |_| ()), "what is too large is not kept");
        assert_eq!(store.bytes(), 0);
    }

    #[test]
    fn moka_gives_back_what_was_put_and_keeps_to_its_size() {
        let store = Moka::new(100);
        (0..50).for_each(|key| store.put(key, &[key as u8; 25]));
        store.cache.run_pending_tasks();
        assert!(store.bytes() <= 100, "{} bytes", store.bytes());
        let hits = (0..50u32)
            .filter(|key| store.get_with(*key, &mut |value| assert_eq!(value, [*key as u8; 25])))
            .count();
        assert!((1..=4).contains(&hits), "{hits} of 50");
    }

    #[test]
    fn tenures_cache_gives_back_what_was_put() {
        let store = Tenure::new().unwrap();
        let values: Vec<Vec<u8>> = (0..200u8).map(|n| vec![n; 1000 + n as usize]).collect();
        for (key, value) in values.iter().enumerate() {
            store.put(key as u32, value);
        }
        let mut hits = 0;
        for (key, value) in values.iter().enumerate() {
            hits += usize::from(store.get_with(key as u32, &mut |got| assert_eq!(got, value)));
        }
        assert!(hits > 0, "a fifth of a megabyte fits anywhere");
        assert!(!store.get_with(9999, &mut |_| ()));
    }
}
