//! tenure's cache, with no size configured.

use super::store::{check, Store};
use std::io;
use std::time::Duration;

pub(crate) struct Ours(tenure::Cache<u64>);

impl Ours {
    pub fn new() -> io::Result<Self> {
        Ok(Ours(tenure::Cache::new()?))
    }
}

/// Two caches whose misses cost so much; `None`: no costs are set.
pub(super) fn two(costs: Option<[Duration; 2]>) -> io::Result<[Ours; 2]> {
    let cache = |number: usize| {
        let builder = tenure::Cache::builder();
        let builder = match costs {
            Some(costs) => builder.miss_cost(costs[number]),
            None => builder,
        };
        Ok::<_, io::Error>(Ours(builder.build()?))
    };
    Ok([cache(0)?, cache(1)?])
}

impl Store for Ours {
    #[inline]
    fn read(&self, key: u64) -> Option<bool> {
        self.0.get(&key).map(|value| check(&value, key))
    }

    fn write(&self, key: u64, bytes: &[u8]) -> io::Result<()> {
        Ok(self.0.insert(key, bytes)?)
    }

    fn settled_len(&self) -> usize {
        self.0.stats().values as usize
    }

    fn own_bookkeeping(&self) -> Option<usize> {
        Some(self.0.stats().bookkeeping_bytes as usize)
    }

    fn footprint(&self) -> Option<u64> {
        Some(self.0.stats().footprint_bytes)
    }
}
