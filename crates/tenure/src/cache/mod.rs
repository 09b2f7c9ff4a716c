//! A cache that needs no size: it grows while nobody needs the room and shrinks when somebody does.
//!
//! Values of any length are packed into 2 MiB segments of volatile memory. The kernel takes whole
//! segments in its ordinary reclaim, oldest first; what it took is noticed at the next get, which
//! then misses. A get can never return wrong or partial bytes: it pins the segment before it looks,
//! and a segment is reused only when nobody has it pinned.
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

mod evict;
mod flight;
mod fork;
mod growth;
mod segment;
mod shard;
mod space;
mod table;
mod value;

pub use value::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::keeper;
use crate::keeper::pin;
use crate::keeper::settings::Priority;
use flight::Flights;
use segment::{Header, Segment, SEGMENT};
use shard::{short, Shards};
use space::Space;
use std::borrow::Borrow;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use table::Place;

/// The hasher that a cache uses unless told otherwise: fast, seeded by chance per cache.
pub type DefaultHasher = foldhash::fast::RandomState;

/// See the [module](self).
///
/// All methods take `&self`; the cache may be shared by any number of threads. Gets of values whose
/// segment is not offered make no system call.
pub struct Cache<K, S = DefaultHasher> {
    inner: Arc<Inner<K, S>>,
}

struct Inner<K, S> {
    shards: Shards<K, S>,
    space: Space,
    flights: Flights,
    time_to_live_ms: Option<u64>,
    insertions: AtomicU64,
    removals: AtomicU64,
    purged_values: AtomicU64,
}

/// How to make a [`Cache`].
#[derive(Clone, Debug)]
pub struct CacheBuilder<K, S = DefaultHasher> {
    ceiling: Option<u64>,
    priority: Priority,
    time_to_live: Option<Duration>,
    hasher: S,
    key: PhantomData<fn(K)>,
}

/// What a cache has done and holds. Counts since it was made, but for those that say "now".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Gets that found their value.
    pub hits: u64,
    /// Gets that did not, for whatever reason.
    pub misses: u64,
    /// Values put in.
    pub insertions: u64,
    /// Values removed or overwritten.
    pub removals: u64,
    /// Values that the cache dropped to make room, or whose segment was found wholly purged.
    pub evictions: u64,
    /// Values that were found purged by a get.
    pub purged_values: u64,
    /// Bytes of segments that the kernel took, as far as the cache has noticed.
    pub purged_bytes: u64,
    /// Values that were moved because they were used, when their segment was emptied.
    pub moved_values: u64,
    /// Keys now in the index; some may lead to values that are gone.
    pub values: u64,
    /// Bytes of the segments now, filled or not, as far as they are known not to be purged.
    pub footprint_bytes: u64,
    /// The footprint that purges and free memory now allow without asking again.
    pub target_bytes: u64,
    /// Bytes that the cache takes now beside its segments, and of the headers inside them.
    pub bookkeeping_bytes: u64,
}

impl<K: Hash + Eq> CacheBuilder<K> {
    fn new() -> Self {
        CacheBuilder {
            ceiling: None,
            priority: Priority::DEFAULT,
            time_to_live: None,
            hasher: DefaultHasher::default(),
            key: PhantomData,
        }
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, S: BuildHasher + Send + Sync + 'static>
    CacheBuilder<K, S>
{
    /// The most bytes of memory that the cache may take; by default what the machine and the memory
    /// cgroup allow. At least a few segments of 2 MiB are taken in any case.
    pub fn ceiling(mut self, bytes: u64) -> Self {
        self.ceiling = Some(bytes);
        self
    }

    /// How willingly the cache's memory is given up, against other volatile memory of this process.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// How long a value may be returned after it was put in.
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.time_to_live = Some(time);
        self
    }

    /// Another hasher for the keys.
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> CacheBuilder<K, T> {
        CacheBuilder {
            ceiling: self.ceiling,
            priority: self.priority,
            time_to_live: self.time_to_live,
            hasher,
            key: PhantomData,
        }
    }

    /// Makes the cache; it takes no memory before the first value is put in.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the kernel refuses `MADV_FREE`. `EAGAIN`: the keeper's thread could not start.
    pub fn build(self) -> Result<Cache<K, S>> {
        keeper::ready("Cache::new")?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let lanes = match self.ceiling {
            Some(bytes) if bytes < 32 * SEGMENT as u64 => 1,
            _ => processors.min(8),
        };
        let ttl = self.time_to_live.map(|time| time.as_millis() as u64);
        let ceiling = self.ceiling.unwrap_or(u64::MAX);
        let inner = Arc::new(Inner {
            shards: Shards::new(self.hasher),
            space: Space::new(lanes, ceiling, self.priority.level(), ttl.is_some()),
            flights: Flights::new(),
            time_to_live_ms: ttl,
            insertions: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            purged_values: AtomicU64::new(0),
        });
        fork::hold(&inner);
        Ok(Cache { inner })
    }
}

impl<K: Hash + Eq + Send + Sync + 'static> Cache<K> {
    /// A cache with no size set.
    ///
    /// # Errors
    /// As [`CacheBuilder::build`].
    pub fn new() -> Result<Cache<K>> {
        Cache::builder().build()
    }

    /// Sets what [`Cache::new`] leaves at its default.
    pub fn builder() -> CacheBuilder<K> {
        CacheBuilder::new()
    }
}

impl<K: Hash + Eq, S: BuildHasher> Cache<K, S> {
    /// The value under a key, pinned; `None` if there is none, it has ended, or it was purged.
    ///
    /// # Cost
    /// One atomic instruction for the pin and one for the unpin, and the shard's read lock. If the
    /// segment was offered: taking it back, 0.6 µs (huge page) or 70 µs (base pages).
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.look_up(short(self.inner.shards.hash(key)), key)
    }

    fn look_up<Q>(&self, hash: u32, key: &Q) -> Option<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let inner = &*self.inner;
        let shard = inner.shards.of(hash);
        let table = shard.read();
        let found = table.find_and_use(hash, key).and_then(|place| {
            let segment = inner.space.segments.get(place.segment())?;
            // The pin first, then the generation: see `Segment::next_generation`.
            Some((place, segment, pin::pin(segment.node())))
        });
        drop(table);
        let value = found.and_then(|(place, segment, plain)| {
            let value = inner.read(segment, place, plain);
            if value.is_none() {
                segment.unpin();
                inner.forget(hash, place);
            }
            value
        });
        let count = if value.is_some() { &shard.hits } else { &shard.misses };
        count.fetch_add(1, Ordering::Relaxed);
        value
    }

    /// Whether a key has a value that has not ended. It may have been purged all the same; only a
    /// get finds out.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = short(self.inner.shards.hash(key));
        let table = self.inner.shards.of(hash).read();
        table.find(hash, key).is_some_and(|place| !self.inner.stale(place))
    }

    /// Puts a value under a key, in the place of the one before.
    ///
    /// # Errors
    /// `ENOMEM`: neither the kernel nor the ceiling has room for it, whatever is evicted; the key has
    /// no value then. `EINVAL`: longer than 4 GiB.
    pub fn insert(&self, key: K, value: &[u8]) -> Result<()> {
        let hash = short(self.inner.shards.hash(&key));
        match self.inner.put(hash, key, value) {
            Ok(stored) => {
                drop(stored);
                Ok(())
            }
            Err((key, error)) => {
                // Not the old value under a key that was to have a new one.
                self.remove(&key);
                Err(error)
            }
        }
    }

    /// The value under a key; if there is none, `make` makes it, once however many threads ask for
    /// it meanwhile. If the cache has no room for the value it is returned all the same
    /// ([`Value::is_cached`]).
    ///
    /// # Errors
    /// `EINVAL`: the value made is longer than 4 GiB.
    ///
    /// # Panics
    /// If `make` does; another thread that waited then makes the value.
    pub fn get_or_insert_with<Q>(
        &self,
        key: &Q,
        make: impl FnOnce() -> Vec<u8>,
    ) -> Result<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let made = self.get_or_try_insert_with(key, || Ok::<_, Infallible>(make()));
        Ok(made.unwrap_or_else(|never| match never {}))
    }

    /// [`Cache::get_or_insert_with`] for a `make` that can fail; a thread that waited then tries
    /// itself.
    ///
    /// # Errors
    /// What `make` returned.
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn get_or_try_insert_with<Q, E>(
        &self,
        key: &Q,
        make: impl FnOnce() -> std::result::Result<Vec<u8>, E>,
    ) -> std::result::Result<Value<'_>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let full = self.inner.shards.hash(key);
        let hash = short(full);
        loop {
            if let Some(value) = self.look_up(hash, key) {
                return Ok(value);
            }
            let Some(_maker) = self.inner.flights.board(full) else { continue };
            // Another maker may have landed between the look and the boarding.
            if self.contains_key(key) {
                if let Some(value) = self.look_up(hash, key) {
                    return Ok(value);
                }
            }
            let bytes = make()?;
            return Ok(match self.inner.put(hash, key.to_owned(), &bytes) {
                Ok(stored) => stored,
                Err(_) => Value::own(bytes),
            });
        }
    }

    /// Removes a key and its value; `false` if there was none. Its space is free when the last guard
    /// of its segment's values is gone.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let inner = &*self.inner;
        let hash = short(inner.shards.hash(key));
        let removed = inner.shards.of(hash).write().remove(hash, key, inner.shards.rehash());
        if let Some(place) = removed {
            inner.space.left(place);
            inner.removals.fetch_add(1, Ordering::Relaxed);
        }
        removed.is_some_and(|place| !inner.stale(place))
    }

    /// Removes everything.
    pub fn clear(&self) {
        for shard in self.inner.shards.iter() {
            let mut table = shard.write();
            self.inner.removals.fetch_add(table.len() as u64, Ordering::Relaxed);
            table.clear();
        }
        self.inner.space.clear();
    }

    /// What the cache has done and holds.
    pub fn stats(&self) -> CacheStats {
        let inner = &*self.inner;
        let (footprint_bytes, target_bytes, segments) = inner.space.sizes();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = CacheStats {
            insertions: load(&inner.insertions),
            removals: load(&inner.removals),
            evictions: load(&inner.space.counts.evicted),
            purged_values: load(&inner.purged_values),
            purged_bytes: load(&inner.space.counts.purged_bytes),
            moved_values: load(&inner.space.counts.moved),
            footprint_bytes,
            target_bytes,
            bookkeeping_bytes: segments,
            ..CacheStats::default()
        };
        for shard in inner.shards.iter() {
            stats.hits += load(&shard.hits);
            stats.misses += load(&shard.misses);
            let table = shard.read();
            stats.values += table.len() as u64;
            stats.bookkeeping_bytes += table.bytes() as u64 + size_of_val(shard) as u64;
        }
        stats.bookkeeping_bytes += stats.values * inner.space.head() as u64;
        stats
    }
}

impl<K, S> Inner<K, S>
where
    K: Hash + Eq,
    S: BuildHasher,
{
    /// The value at a place of a segment that the caller has pinned; `None` if it is not there (any
    /// more). On `Some` the value owns the pin.
    #[inline]
    fn read<'a>(&self, segment: &'a Segment, place: Place, plain: bool) -> Option<Value<'a>> {
        if segment.generation() != place.generation() {
            return None;
        }
        if !plain {
            self.take_back(segment)?;
        }
        let head = segment.header(place.offset())?;
        let (at, len) = (place.offset() + self.space.head(), head.len as usize);
        if !segment.whole(place.offset(), self.space.head() + len) {
            return None;
        }
        if self.time_to_live_ms.is_some()
            && self.space.deadline(segment, place.offset()) <= self.shards.now_ms()
        {
            return None;
        }
        Some(Value::pinned(segment, segment.bytes(at, len)))
    }

    #[cold]
    fn take_back(&self, segment: &Segment) -> Option<()> {
        let gone = segment.settle().ok()?;
        if gone > 0 {
            self.space.met_purge(gone);
        }
        Some(())
    }

    fn stale(&self, place: Place) -> bool {
        self.space
            .segments
            .get(place.segment())
            .is_none_or(|segment| segment.generation() != place.generation())
    }

    /// Takes a key out whose value was not at its place (or could not be taken back).
    #[cold]
    fn forget(&self, hash: u32, place: Place) {
        use space::Index;
        let stale = self.stale(place);
        if self.shards.forget(hash, place) && !stale {
            self.purged_values.fetch_add(1, Ordering::Relaxed);
            self.space.left(place);
        }
    }

    /// Stores a value; the key comes back when there is no room.
    fn put(&self, hash: u32, key: K, value: &[u8]) -> std::result::Result<Value<'_>, (K, Error)> {
        let Ok(len) = u32::try_from(value.len()) else {
            let why = format!("the value has {} bytes", value.len());
            let error = Error::new(ErrorKind::BadRange, "Cache::insert", why, "split it");
            return Err((key, error));
        };
        keeper::bound::hold_back();
        let now = self.shards.now_ms();
        let deadline = self.time_to_live_ms.map_or(u64::MAX, |ttl| now.saturating_add(ttl));
        let head = Header { len, hash };
        let room = match self.space.room(&self.shards, lane(), head, deadline) {
            Ok(room) => room,
            Err(error) => return Err((key, error)),
        };
        room.segment.write(room.at, value);
        let before = {
            let mut table = self.shards.of(hash).write();
            table.reserve(self.shards.rehash(), |place| self.stale(place));
            table.insert(hash, key, room.place)
        };
        self.insertions.fetch_add(1, Ordering::Relaxed);
        if let Some(before) = before {
            self.space.left(before);
            self.removals.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Value::pinned(room.segment, room.segment.bytes(room.at, value.len())))
    }
}

/// Which open segment this thread fills.
fn lane() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static LANE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    LANE.try_with(|lane| *lane).unwrap_or(0)
}

impl<K, S> std::fmt::Debug for Cache<K, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}
