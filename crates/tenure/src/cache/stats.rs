//! The statistics of a cache.

use super::Cache;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of a cache since it was made, and what it holds now.
///
/// Each value that was put in leaves once, and counts once then: as removed, evicted, purged or
/// expired. After a [`clear`](Cache::clear), and while no other thread uses the cache, the four
/// counts add up to `insertions`. (In a forked child they may differ by what threads of the parent
/// were about to do.)
///
/// ```
/// let cache = tenure::Cache::<u64>::new()?;
/// cache.insert(1, b"one")?;
/// let _ = (cache.get(&1), cache.get(&2));
/// let stats = cache.stats();
/// assert_eq!(stats.hits + stats.misses, 2);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CacheStats {
    /// Gets that found their value.
    pub hits: u64,
    /// Gets that did not find their value, for any reason.
    pub misses: u64,
    /// Values put in.
    pub insertions: u64,
    /// Values removed, overwritten or cleared.
    pub removals: u64,
    /// Values that the cache dropped to make room, or whose segment it found wholly purged.
    pub evictions: u64,
    /// Values that a get found purged.
    pub purged_values: u64,
    /// Values that a get found ended, because their time to live or to idle was over.
    pub expired_values: u64,
    /// Bytes of segments that the kernel took, as far as the cache has noticed.
    pub purged_bytes: u64,
    /// Values that the cache moved because they were used, when it emptied their segment.
    pub moved_values: u64,
    /// What a miss costs, in nanoseconds: the [given](super::CacheBuilder::miss_cost) cost, or the
    /// recent measurement in the calls that make values. 0: not known.
    pub miss_cost_ns: u64,
    /// Whether the kernel should take the memory of other caches of the process first, because this
    /// cache's bytes save at least twice as much time.
    pub is_spared: bool,
    /// Keys that are in the index now. Some may lead to values that are gone, which other fields may
    /// count already.
    pub values: u64,
    /// Bytes of the segments now, filled or not, without those that are known to be purged.
    pub footprint_bytes: u64,
    /// Bytes of the segments that held values keep from the kernel now.
    pub held_bytes: u64,
    /// The footprint that purges and free memory now allow before the cache asks again.
    pub target_bytes: u64,
    /// Bytes that the cache takes now beside its segments, and the bytes of the headers inside
    /// them.
    pub bookkeeping_bytes: u64,
}

impl<K: Hash + Eq, S: BuildHasher> Cache<K, S> {
    /// Returns what the cache has done and what it holds.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// let stats = cache.stats();
    /// println!("{} MiB, {} hits", stats.footprint_bytes >> 20, stats.hits);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 2 µs, and 5 ns for each segment of 2 MiB; no system call.
    pub fn stats(&self) -> CacheStats {
        let inner = &*self.inner;
        let (footprint_bytes, target_bytes, segments) = inner.space.sizes();
        let counts = &inner.space.counts;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = CacheStats {
            insertions: load(&counts.inserted),
            removals: load(&counts.removed).saturating_sub(load(&counts.removed_copies)),
            evictions: load(&counts.evicted),
            purged_values: load(&counts.purged),
            expired_values: load(&counts.expired),
            purged_bytes: load(&counts.purged_bytes),
            moved_values: load(&counts.moved),
            miss_cost_ns: inner.worth.cost(),
            is_spared: inner.worth.is_spared(),
            footprint_bytes,
            held_bytes: inner.space.held_bytes(),
            target_bytes,
            bookkeeping_bytes: segments,
            ..CacheStats::default()
        };
        for shard in inner.shards.iter() {
            let misses = load(&shard.misses);
            stats.misses += misses;
            stats.hits += shard.table.lookups().saturating_sub(misses);
            stats.values += shard.table.len() as u64;
            stats.bookkeeping_bytes += shard.table.bytes() as u64 + size_of_val(shard) as u64;
        }
        stats.bookkeeping_bytes +=
            stats.values * inner.space.head(inner.space.lifetimes.of_all()) as u64;
        stats
    }
    /// Returns how many keys the cache has. Some keys may lead to values that were purged or whose
    /// time is over: only a get finds that out.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// cache.insert(1, b"one")?;
    /// assert_eq!(cache.entry_count(), 1);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 1 µs; no system call.
    #[doc(alias = "len")]
    pub fn entry_count(&self) -> u64 {
        self.inner.shards.iter().map(|shard| shard.table.len() as u64).sum()
    }

    /// Returns the bytes of memory that the cache's segments take now, as
    /// [`CacheStats::footprint_bytes`]. The [ceiling](super::CacheBuilder::ceiling) limits this
    /// number.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// cache.insert(1, b"one")?;
    /// assert_eq!(cache.weighted_size(), 2 << 20); // one segment
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 0.1 µs; no system call.
    pub fn weighted_size(&self) -> u64 {
        self.inner.space.sizes().0
    }
}

#[cfg(test)]
mod tests {
    use crate::Cache;

    /// A table keeps its array when keys go, so what is left of the difference is the headers.
    #[test]
    fn the_header_of_each_value_counts_as_bookkeeping() {
        const VALUES: u64 = 1_000;
        let cache = Cache::<u64>::new().unwrap();
        (0..VALUES).for_each(|key| cache.insert(key, b"value").unwrap());
        let with = cache.stats();
        assert_eq!(with.values, VALUES);
        (0..VALUES).for_each(|key| assert!(cache.remove(&key)));
        let without = cache.stats();
        assert_eq!(without.values, 0);
        let headers = with.bookkeeping_bytes - without.bookkeeping_bytes;
        assert!(headers >= 8 * VALUES, "{headers} bytes for {VALUES} values");
    }
}
