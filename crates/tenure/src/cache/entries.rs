//! Iterating over everything that a cache holds.
//!
//! The iteration visits one shard after the other. It reads the shard's keys in a
//! [section](super::table), so the program's code may do anything meanwhile. Keys that are removed
//! from the shard during that time are freed afterwards.

use super::listener::RemovalCause;
use super::place::{short, Place};
use super::{Cache, Inner, Value};
use std::hash::{BuildHasher, Hash};

/// How often `keep` is called again for a value that the cache moved during the call.
const TRIES: usize = 8;

impl<K: Hash + Eq, S: BuildHasher> Cache<K, S> {
    /// Keeps the values for which `keep` returns `true`, and removes the others. Calls `keep` with
    /// each key and the bytes of its value.
    ///
    /// The call is not atomic. A value that another thread inserts meanwhile is kept or looked at,
    /// and what other threads remove or replace stays so. `keep` does not see values that were
    /// purged or whose time is over, and their keys are gone afterwards. If memory is too short to
    /// take a value back, `keep` does not see it, and it stays. A look is not a use: it does not
    /// prolong the value's time to idle. `keep` may use the cache. The call shows a value a second
    /// time if the cache moved it meanwhile. Removed keys are dropped when the call is done with
    /// their shard, one of 64.
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
    /// A value that is being made meanwhile comes into the cache, although `remove` and
    /// [`clear`](Cache::clear) keep it out: `keep` cannot judge it.
    ///
    /// # Cost
    /// About 0.2 µs for each value, beside `keep`. It takes all offered memory back from the
    /// kernel, as gets do, so call it rarely. To remove by keys alone, use [`keys`](Cache::keys)
    /// and [`remove`](Cache::remove), which take nothing back.
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
        inner.shards.harvest_left();
    }

    /// Returns an iterator over copies of the cache's keys, in no order.
    ///
    /// The iteration is not atomic. A key that another thread inserts or removes meanwhile may be
    /// in it or not. A key that is removed and inserted again may come twice; any other key comes
    /// once. A key may lead to a value that was purged or whose time is over, because only a get
    /// finds that out. The iterator holds nothing but copies, of one shard of 64 at a time. The
    /// program may use the cache meanwhile.
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
        self.inner.shards.harvest_left();
        self.inner.shards.iter().flat_map(|shard| {
            let mut keys = Vec::with_capacity(shard.table.len());
            shard.table.each_key(|key| keys.push(key.clone()));
            keys
        })
    }

    /// Returns an iterator over copies of the cache's keys and their values, pinned as by
    /// [`Cache::get`], in no order.
    ///
    /// The iteration is not atomic, as [`Cache::keys`]. A value is the one that its key has when
    /// the iterator reaches it. The iterator leaves out values that were purged or whose time is
    /// over. It does not count as a use: it does not prolong a value's time to idle, and it counts
    /// no hit in the statistics. Drop each value before you ask for the next one: held values keep
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
    /// About 0.2 µs for each value, beside the copy of its key. It takes all offered memory back
    /// from the kernel, as gets do.
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
    /// Removes the key that leads to a place. Returns `false` if no key leads there now.
    fn remove_at(&self, hash: u32, place: Place) -> bool {
        let removed = self.shards.of(hash).table.remove_place(hash, place, RemovalCause::Removed);
        if removed {
            self.space.left(place, &self.space.counts.removed);
        }
        removed
    }
}
