//! A cache without a size: it grows while there is room, and shrinks when others need the room.
//!
//! **For** values that the program can make again: pages, thumbnails, blocks, results. **Not for** values
//! that cannot be made again, or for a set of values that always fits (a cache with a fixed size is a little
//! faster then, and up to three times as fast at overwriting values by others of other lengths).
//!
//! Values of any length are packed into 2 MiB segments of volatile memory. The kernel takes whole
//! segments in its ordinary reclaim, and the segments that were offered first go first. A get that
//! finds its value purged misses. A get never returns wrong or partial bytes: it pins the segment
//! before it looks, and a segment is reused only when no thread has it pinned.
//!
//! Where the cache itself must make room, values that were used again stay, and values that were used
//! once go. So a scan over many keys does not wash the cache out.
//!
//! **Release a value soon.** A [`Value`] that is held keeps its whole segment of 2 MiB from the kernel.
//! [`Value::into_owned`] makes one that can go anywhere: into a task, a response body, another thread.
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
//! A get of a value of 1 KiB takes about 0.1 µs and no lock. A value takes 38 bytes of bookkeeping beside its
//! bytes (`tenure bench cache`).
//!
//! # What the kernel must have
//!
//! What [`volatile`](crate::volatile) needs.

mod array;
mod builder;
mod change;
mod entries;
mod epoch;
mod evict;
mod fork;
mod get_async;
mod ghosts;
mod growth;
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
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::Ordering;
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
/// All methods take `&self`; the cache may be shared by any number of threads, by reference or by clones,
/// which are handles to the one cache. Gets of values whose segment is not offered make no system call.
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

/// Another handle to the same cache, which ends when the last handle and the last [`OwnedValue`] are gone.
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
    /// A value that is held keeps the 2 MiB around it from the kernel: release it soon. While very many
    /// are held, a get returns a copy instead: see [`Value::is_copy`].
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
    /// One atomic instruction each to enter and to leave the shard, to pin and to unpin; no lock. If
    /// the segment was offered: taking it back, 0.6 µs (huge page) or 70 µs (base pages).
    ///
    /// # Panics
    /// More than 500,000 pins of one segment at once: so many of its values are held, or were leaked.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.inner.look_up(short(self.inner.shards.hash(key)), key)
    }

    /// Returns whether a key has a value whose time is not over. The value may have been purged all
    /// the same: only a get finds that out. In a cache of which any value ever had a time to live or to
    /// idle, the call reads the value's header, which says when its time is over, and takes the pages
    /// around it back for that, as a get does. If those pages were purged, or there is no memory to take them back, the call returns
    /// `false`.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// assert!(!cache.contains_key(&1));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 20 ns; no system call, except with such times.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.inner.contains(short(self.inner.shards.hash(key)), key)
    }

    /// Puts a value under a key, in the place of the one before.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// cache.insert(1, b"one")?;
    /// cache.insert(1, b"another one")?; // in its place
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// A copy of the value, and the page faults of a new segment where the cache grows. A value that overwrites one as
    /// long as itself takes the place of another that was overwritten. Where lengths vary, two bytes of other
    /// values are copied for each byte that overwrites others at random.
    ///
    /// # Errors
    /// `ENOMEM`: neither the kernel nor the ceiling has room for it, or values that are held keep all
    /// of the cache's memory; the key has no value then. Nothing is evicted for a value that cannot
    /// fit. `EINVAL`: longer than 4 GiB.
    pub fn insert(&self, key: K, value: &[u8]) -> Result<()> {
        self.put(key, value, None)
    }

    /// Returns the value under a key. If there is none, `make` makes it: once, however many threads
    /// ask for it meanwhile. If the cache has no room for the value, the call returns it all the
    /// same ([`Value::is_cached`] is `false` then).
    ///
    /// What `make` returns may be out of date: an [`insert`](Cache::insert), a [`remove`](Cache::remove)
    /// or a [`clear`](Cache::clear) of the key, by any thread, may come while it runs. The newer change
    /// wins: the value is returned and not kept (`Value::is_cached` is `false`), and threads that waited
    /// for it look the key up again.
    ///
    /// ```
    /// let cache = tenure::Cache::<String>::new()?;
    /// let page = cache.get_or_insert_with("/index", || b"made at some cost".to_vec())?;
    /// assert_eq!(&page[..], b"made at some cost");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// Found: as [`Cache::get`]. Not found: what `make` takes, and an [`insert`](Cache::insert).
    ///
    /// # Errors
    /// `EDEADLK`: the value is being made by this thread, or by one that waits for this thread, for another
    /// value or for an object's refill. `EINVAL`: the value made is longer than 4 GiB.
    ///
    /// # Panics
    /// If `make` does; another thread that waited then makes the value.
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
    /// not look at the value. The space is free when the last guard of a value in its segment is
    /// gone.
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
        let removed = inner.shards.of(hash).table.remove(hash, key, &Removing { inner, hash });
        removed.is_some_and(|place| !inner.stale(place))
    }

    /// Removes everything.
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
        let keys = self.inner.shards.clear(&self.inner.flights);
        self.inner.removals.fetch_add(keys as u64, Ordering::Relaxed);
        self.inner.space.clear(&self.inner.shards);
        self.inner.shards.harvest();
    }
}

/// The value that is being made is asked for in its own making.
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
