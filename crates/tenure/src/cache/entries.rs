//! Going over all that a cache holds.
//!
//! One shard after the other: its keys are read in a [section](super::table), so the program's code may do what it
//! likes meanwhile. What is removed from the shard until then is freed afterwards.

use super::listener::RemovalCause;
use super::place::{short, Place};
use super::{Cache, Inner, Value};
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::Ordering;

/// How often a value is offered to the program again that was moved while the program looked at it.
const TRIES: usize = 8;

impl<K: Hash + Eq, S: BuildHasher> Cache<K, S> {
    /// Keeps the values for which `keep` returns `true`, and removes the others. It is called with each key and the
    /// bytes of its value.
    ///
    /// Not atomic: a value that another thread puts in meanwhile is kept or looked at, and what others remove or
    /// replace stays so. Values that were purged, and those whose time is over, are not shown, and their keys are
    /// gone afterwards. Where memory is too short to take a value back, it is not shown and stays. A look is no use of a value: it does not prolong its time to idle. `keep` may
    /// use the cache. It is called a second time for a value that the cache moved meanwhile. Removed keys are dropped
    /// when the call is done with their shard, one of 64.
    ///
    /// ```
    /// let cache = tenure::Cache::<String>::new()?;
    /// cache.insert("/user/1".to_owned(), b"Ada")?;
    /// cache.insert("/index".to_owned(), b"<html>")?;
    /// cache.retain(|path, _page| !path.starts_with("/user/"));
    /// assert!(cache.get("/user/1").is_none());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 0.2 µs a value beside `keep`. It takes all that is there back from the kernel, as gets do, so call it
    /// rarely; by keys alone, [`keys`](Cache::keys) and [`remove`](Cache::remove) do without.
    ///
    /// # Panics
    /// If `keep` does; the values that it has not seen stay.
    #[doc(alias = "invalidate_entries_if")]
    pub fn retain(&self, mut keep: impl FnMut(&K, &[u8]) -> bool) {
        let inner = &*self.inner;
        for shard in inner.shards.iter() {
            shard.table.each_key(|key| {
                let hash = short(inner.shards.hash(key));
                for _ in 0..TRIES {
                    let Some(found) = inner.find_again(hash, key, false) else { return };
                    if keep(key, &found.value) || inner.remove_at(hash, found.place) {
                        return;
                    }
                }
            });
            shard.table.harvest();
        }
    }

    /// Returns an iterator over copies of the cache's keys, in no order.
    ///
    /// Not atomic: a key that is put in or removed meanwhile is there or not, and one that is removed and put in
    /// again may come twice; any other key comes once. It may lead to a value that was purged, or whose time is
    /// over: what no get has met yet is not known. The iterator holds nothing but copies, of one shard of 64 at a
    /// time; the program may use the cache meanwhile.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// cache.insert(1, b"one")?;
    /// cache.insert(2, b"two")?;
    /// assert_eq!(cache.keys().sum::<u64>(), 3);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 10 ns a key beside its copy; no system call.
    pub fn keys(&self) -> impl Iterator<Item = K> + '_
    where
        K: Clone,
    {
        self.inner.shards.iter().flat_map(|shard| {
            let mut keys = Vec::with_capacity(shard.table.len());
            shard.table.each_key(|key| keys.push(key.clone()));
            keys
        })
    }

    /// Returns an iterator over copies of the cache's keys and their values, pinned as by [`Cache::get`], in no
    /// order.
    ///
    /// Not atomic, as [`Cache::keys`]; a value is the one that its key has when the iterator comes to it. Values that
    /// were purged, and those whose time is over, are left out. It is no use of a value: it does not prolong its time
    /// to idle, and no hit of the statistics. Drop each value before the next one is asked for: held values keep
    /// their segments from the kernel.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// cache.insert(1, b"one")?;
    /// for (key, value) in cache.iter() {
    ///     println!("{key}: {} bytes", value.len());
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 0.2 µs a value beside the copy of its key. It takes all that is there back from the kernel, as gets do.
    pub fn iter(&self) -> impl Iterator<Item = (K, Value<'_>)> + '_
    where
        K: Clone,
    {
        let inner = &*self.inner;
        self.keys().filter_map(|key| {
            let hash = short(inner.shards.hash(&key));
            let found = inner.find_again(hash, &key, false)?;
            Some((key, found.value))
        })
    }
}

impl<K, S> Inner<K, S> {
    /// Removes the key that leads to a place. `false`: none does now.
    fn remove_at(&self, hash: u32, place: Place) -> bool {
        let removed = self.shards.of(hash).table.remove_place(hash, place, RemovalCause::Removed);
        if removed {
            self.space.left(place);
            self.removals.fetch_add(1, Ordering::Relaxed);
        }
        removed
    }
}
