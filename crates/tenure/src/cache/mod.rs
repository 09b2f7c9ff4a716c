//! A cache without a size. It grows while there is room, and shrinks when other code needs the
//! room.
//!
//! **For** values that the program can make again: pages, thumbnails, blocks, results. **Not for**
//! values that it cannot make again, or for a set of values that always fits. (A cache with a fixed
//! size is a little faster then. It is up to three times as fast at overwriting values by others of
//! other lengths.)
//!
//! Values of any length are packed into 2 MiB segments of volatile memory. The kernel takes whole
//! segments in its ordinary reclaim, and the segments that were offered first go first. A get that
//! finds its value purged misses. A get never returns wrong or partial bytes: it pins the segment
//! before it looks, and a segment is reused only when no thread has it pinned.
//!
//! When the cache itself must make room, it keeps values that were used again, and drops values
//! that were used once. So a scan over many keys does not wash the cache out.
//!
//! **Release a value soon.** A held [`Value`] keeps its whole segment of 2 MiB from the kernel.
//! [`Value::into_owned`] makes a value that can go anywhere: into a task, a response body, another
//! thread.
//!
//! ```
//! # fn main() -> tenure::Result<()> {
//! let cache = tenure::Cache::<u64>::new()?;
//! cache.insert(1, b"made at some cost")?;
//! if let Some(value) = cache.get(&1) {
//!     assert_eq!(&value[..], b"made at some cost"); // stays while `value` lives
//! }
//! let value = cache.get_or_insert_with(&2, || vec![7; 4096])?;
//! assert_eq!(value.len(), 4096);
//! # Ok(()) }
//! ```
//!
//! # Cost
//!
//! A get of a value of 1 KiB takes about 0.1 µs and no lock. A value takes 38 bytes of bookkeeping
//! beside its bytes (`tenure bench cache`).
//!
//! # What the kernel must have
//!
//! What [`volatile`](crate::volatile) needs.

mod array;
mod arrivals;
mod builder;
mod change;
mod copied;
mod counts;
mod entries;
mod epoch;
mod evict;
mod fork;
mod get_async;
mod ghosts;
mod growth;
mod harvest;
mod harvesting;
mod header;
mod inner;
mod inside;
mod lanes;
mod lengths;
mod life;
mod lifetimes;
mod link;
mod listener;
mod lists;
mod lookup;
mod opening;
mod owned;
mod pins;
mod place;
mod policy;
mod put_off;
mod recycle;
mod removed;
mod reuse;
mod segment;
mod shard;
mod single_flight;
mod space;
mod sparse;
mod stats;
mod store;
mod table;
mod tasks;
mod time_to_live;
mod trials;
mod typed;
mod vacated;
mod value;
mod worth;

pub use builder::CacheBuilder;
pub use listener::RemovalCause;
pub use owned::OwnedValue;
pub use stats::CacheStats;
pub use typed::{OwnedTypedValue, Plain, TypedCache, TypedValue};
pub use value::Value;

use crate::error::{Error, ErrorKind, Result};
use change::Removing;
use inner::Inner;
use place::short;
use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

/// The default hasher of a cache: fast, with a random seed for each cache.
///
/// ```
/// let cache: tenure::Cache<String, tenure::cache::DefaultHasher> = tenure::Cache::new()?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub type DefaultHasher = foldhash::fast::RandomState;

/// A cache without a size, for any number of threads. The [module](self) says how it works.
///
/// All methods take `&self`. Any number of threads may share the cache, by reference or by clones,
/// which are handles to the same cache. A get of a value makes no system call unless its segment is
/// offered.
///
/// ```
/// use tenure::Cache;
/// let cache = Cache::<u64>::new()?;
/// std::thread::scope(|threads| {
///     for key in 0..4 {
///         let cache = &cache;
///         threads.spawn(move || cache.insert(key, b"made at some cost"));
///     }
/// });
/// assert_eq!(cache.stats().insertions, 4);
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct Cache<K, S = DefaultHasher> {
    inner: Arc<Inner<K, S>>,
}

/// Another handle to the same cache. The cache ends when the last handle and the last
/// [`OwnedValue`] are gone.
///
/// ```
/// let cache = tenure::Cache::<u64>::new()?;
/// let handle = cache.clone();
/// std::thread::spawn(move || handle.insert(1, b"one")).join().unwrap()?;
/// assert!(cache.contains_key(&1));
/// # Ok::<(), tenure::Error>(())
/// ```
impl<K, S> Clone for Cache<K, S> {
    fn clone(&self) -> Self {
        Cache { inner: self.inner.clone() }
    }
}

impl<K: Hash + Eq, S: BuildHasher> Cache<K, S> {
    /// Returns the value under a key, pinned. Returns `None` if the key has no value, if the
    /// value's time is over, or if the value was purged.
    ///
    /// A held value keeps the 2 MiB around it from the kernel: release it soon. While the program
    /// holds very many values, or memory is short, a get returns a copy instead: see
    /// [`Value::is_copy`].
    ///
    /// ```
    /// let cache = tenure::Cache::<String>::new()?;
    /// cache.insert("/index".to_owned(), b"<html>")?;
    /// match cache.get("/index") {
    ///     Some(page) => assert_eq!(&page[..], b"<html>"), // stays while `page` lives
    ///     None => { /* it was purged: make it again */ }
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// One atomic instruction each to enter and to leave the shard, to pin and to unpin; no lock. (With
    /// [`time_to_idle`](CacheBuilder::time_to_idle), the lock of a shard once in a step.)
    /// If the segment was offered: taking it back, 0.6 µs (huge page) or 70 µs (base pages), or a copy
    /// in 1 to 9 µs.
    ///
    /// # Panics
    /// If one segment has more than 500,000 pins at once: the program holds or has leaked that many
    /// of its values.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.inner.look_up(short(self.inner.shards.hash(key)), key)
    }

    /// Returns whether a key has a value whose time is not over. The kernel may have purged the
    /// value all the same: only a get finds that out. If any value of the cache ever had a time to
    /// live or to idle, the call reads the value's header, which has its times. For that it takes
    /// the pages around the header back, as a get does. If those pages were purged, or there is no
    /// memory to take them back, the call returns `false`.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// assert!(!cache.contains_key(&1));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 20 ns; no system call, except in a cache with such times.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.inner.contains(short(self.inner.shards.hash(key)), key)
    }

    /// Puts a value under a key. It replaces the value that the key had.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// cache.insert(1, b"one")?;
    /// cache.insert(1, b"another one")?; // in its place
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// A copy of the value, and the page faults of a new segment if the cache grows. A value that
    /// overwrites one of the same length takes the place of another overwritten one. If lengths
    /// vary, the cache copies two bytes of other values for each byte that overwrites others at
    /// random.
    ///
    /// # Errors
    /// `ENOMEM`: neither the kernel nor the ceiling has room for the value, or held values keep all
    /// of the cache's memory. The key has no value then. The cache evicts nothing for a value that
    /// cannot fit. `EINVAL`: the value is longer than 4 GiB.
    pub fn insert(&self, key: K, value: &[u8]) -> Result<()> {
        self.put(key, value, None)
    }

    /// Returns the value under a key. If there is none, `make` makes it: once, even if many threads
    /// ask for it meanwhile. If the cache has no room for the value, the call returns it all the
    /// same ([`Value::is_cached`] is `false` then).
    ///
    /// The value that `make` returns may be out of date: any thread may [`insert`](Cache::insert),
    /// [`remove`](Cache::remove) or [`clear`](Cache::clear) the key while `make` runs. The newer
    /// change wins: the call returns the value and does not keep it (`Value::is_cached` is
    /// `false`), and threads that waited for it look the key up again.
    ///
    /// ```
    /// let cache = tenure::Cache::<String>::new()?;
    /// let page = cache.get_or_insert_with("/index", || b"made at some cost".to_vec())?;
    /// assert_eq!(&page[..], b"made at some cost");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// Found: as [`Cache::get`]. Not found: the time of `make`, and an [`insert`](Cache::insert).
    ///
    /// # Errors
    /// `EDEADLK`: this thread makes the value already, or the thread that makes it waits for this
    /// thread, for another value or for an object's refill. `EINVAL`: the value made is longer than
    /// 4 GiB.
    ///
    /// # Panics
    /// If `make` does. Another thread that waited then makes the value.
    #[doc(alias = "get_with")]
    pub fn get_or_insert_with<Q>(
        &self,
        key: &Q,
        make: impl FnOnce() -> Vec<u8>,
    ) -> Result<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.get_or_try_insert_with(key, || Ok(make()))
    }

    /// Does what [`Cache::get_or_insert_with`] does, for a `make` that can fail. When it fails, a
    /// thread that waited calls its own `make`.
    ///
    /// ```
    /// let cache = tenure::Cache::<String>::new()?;
    /// let bytes = cache.get_or_try_insert_with("/dev/null", || std::fs::read("/dev/null"))?;
    /// assert!(bytes.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`Cache::get_or_insert_with`].
    ///
    /// # Errors
    /// What `make` returned, or as [`Cache::get_or_insert_with`].
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    #[doc(alias = "try_get_with")]
    pub fn get_or_try_insert_with<Q, E>(
        &self,
        key: &Q,
        make: impl FnOnce() -> std::result::Result<Vec<u8>, E>,
    ) -> std::result::Result<Value<'_>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: From<Error>,
    {
        self.find_or_make(key, || Ok((make()?, None)))
    }

    /// Removes a key and its value. Returns `false` if there was none. Returns `true` also for a
    /// value whose time was over or that was purged, if no get has found that out: `remove` does
    /// not look at the value. The space becomes free when the last guard of a value in its segment
    /// is gone.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// cache.insert(1, b"one")?;
    /// assert!(cache.remove(&1));
    /// assert!(cache.get(&1).is_none());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 0.3 µs; no system call.
    #[doc(alias = "invalidate")]
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let inner = &*self.inner;
        let hash = short(inner.shards.hash(key));
        let removing = Removing { inner, hash, was_there: Cell::new(false) };
        inner.shards.of(hash).table.remove(hash, key, &removing);
        inner.shards.harvest_left();
        removing.was_there.get()
    }

    /// Removes all values.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// cache.insert(1, b"one")?;
    /// cache.clear();
    /// assert!(cache.get(&1).is_none());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 15 ns for each value, and the unmapping of what the segments held.
    #[doc(alias = "invalidate_all")]
    pub fn clear(&self) {
        self.inner.shards.clear(&self.inner.flights);
        self.inner.space.clear(&self.inner.shards);
        self.inner.shards.harvest();
    }
}

/// Returns the error of a call that asks for a value inside the making of that value.
fn own_key() -> Error {
    Error::new(
        ErrorKind::Deadlock,
        "Cache::get_or_insert_with",
        "the value's maker is this thread, or a thread that waits for this thread",
        "make values without asking for values that need them",
    )
}

impl<K, S> std::fmt::Debug for Cache<K, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::Cache;

    #[test]
    fn a_cache_is_printed_by_its_name() {
        let cache = Cache::<u64>::new().unwrap();
        assert!(format!("{cache:?}").starts_with("Cache"));
    }
}
