//! A cache that processes share.

#![allow(unsafe_code, reason = "other processes write to the memory")]

use super::builder::SharedVolatileBuilder;
use super::entry::{unit, PLACES};
use super::flight::{self, Begin, Flight, Makers};
use super::index::{self, Index};
use super::layout::Use;
use super::object::SharedVolatile;
use super::parts::{Leads, Parts};
use super::pin::SharedChunk;
use super::purge;
use super::record::{self, Origin};
use super::region::too_many_pins;
use super::stats::SharedStats;
use super::waiting::Waiting;
use super::writer::Writer;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{memory_group, room_now};
use crate::sync::{AtomicU64, Ordering};
use crate::text::text;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::hash::{BuildHasher, Hasher};
use std::ops::Deref;
use std::time::Duration;

/// One cache for all processes of a service: all of them find the values that one worker has made.
///
/// It has no size: it grows while there is room, and its oldest values go when other code needs the
/// memory. A value stays while a process holds it. Keys and values are bytes. A worker may be
/// killed at any instruction, and the others go on.
///
/// ```
/// use tenure::shared::SharedCache;
/// let cache = SharedCache::new()?; // before the workers are forked
/// let page = cache.get_or_insert_with(b"/index", || b"rendered once".to_vec())?;
/// assert_eq!(&*page, b"rendered once");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "memcached")]
pub struct SharedCache {
    memory: SharedVolatile,
    index: Index,
    writer: Writer,
    makers: Makers,
    seed: u64,
    time_to_live: Option<Duration>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// The settings that [`SharedCache::new`] leaves at their defaults.
///
/// ```
/// use std::time::Duration;
/// use tenure::shared::SharedCache;
/// let minute = Duration::from_secs(60);
/// let cache = SharedCache::builder().most(256 << 20).time_to_live(minute).build()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "build() makes the cache"]
pub struct SharedCacheBuilder {
    most: Option<usize>,
    chunk: Option<usize>,
    processes: Option<u32>,
    time_to_live: Option<Duration>,
}

/// A value that was found. While this lives, the value and its chunk stay.
///
/// ```
/// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
/// cache.insert(b"key", b"value")?;
/// assert_eq!(cache.get(b"key")?.as_deref(), Some(&b"value"[..]));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedValue<'a> {
    _pin: SharedChunk<'a>,
    bytes: &'a [u8],
}

impl Deref for SharedValue<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl AsRef<[u8]> for SharedValue<'_> {
    fn as_ref(&self) -> &[u8] {
        self.bytes
    }
}

/// What a shared cache holds, and its counts.
///
/// ```
/// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
/// assert!(cache.get(b"key")?.is_none());
/// assert_eq!(cache.stats().misses, 1);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SharedCacheStats {
    /// Gets of this process that found a value.
    pub hits: u64,
    /// Gets of this process that found no value.
    pub misses: u64,
    /// Values that all processes have inserted.
    pub inserts: u64,
    /// Values that were dropped because their line of the index was full.
    pub displaced: u64,
    /// The memory of the cache.
    pub memory: SharedStats,
}

impl SharedCacheBuilder {
    /// Sets the most memory that the cache takes. The default is the memory limit of this process.
    /// The cache reserves the addresses at once, but not the memory.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// assert_eq!(cache.stats().memory.chunks * cache.stats().memory.chunk_bytes, 64 << 20);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn most(mut self, bytes: usize) -> Self {
        self.most = Some(bytes);
        self
    }

    /// Sets the size of a chunk, the unit in which the cache takes memory and gives it back. It
    /// also bounds a value's length. The default is 1 MiB, or less in a cache below 64 MiB.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).chunk_size(4 << 20).build()?;
    /// assert!(cache.longest() > 3 << 20);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn chunk_size(mut self, bytes: usize) -> Self {
        self.chunk = Some(bytes);
        self
    }

    /// Sets how many processes may have the cache open at a time. The default is 248.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).processes(16).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn processes(mut self, count: u32) -> Self {
        self.processes = Some(count);
        self
    }

    /// Sets how long gets find a value that this process inserts. The default is for ever.
    ///
    /// ```
    /// use std::time::Duration;
    /// let day = Duration::from_secs(86_400);
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).time_to_live(day).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.time_to_live = Some(time);
        self
    }

    /// Makes the cache, empty.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SharedVolatileBuilder::build`]. `EINVAL`: the sizes do not make 4 to 4 million chunks
    /// of at least 16 KiB.
    pub fn build(self) -> Result<SharedCache> {
        let call = "SharedCache::new";
        let limit = || room_now::room(memory_group::governing_group().as_ref()).limit;
        let most = self.most.unwrap_or_else(|| limit().min(1 << 46) as usize);
        let chunk = self
            .chunk
            .unwrap_or_else(|| (most / 64).max(1).next_power_of_two().clamp(64 << 10, 1 << 20));
        let chunks = most.div_ceil(chunk.max(1));
        if !index::is_possible(chunks, chunk) {
            let why = text!("{most} bytes are {chunks} chunks of {chunk} bytes");
            let remedy = "choose sizes that make 4 to 4 million chunks of at least 16 KiB";
            return Err(Error::new(ErrorKind::BadRange, call, why, remedy));
        }
        let builder: SharedVolatileBuilder = SharedVolatile::builder(most)
            .chunk_size(chunk)
            .processes(self.processes.unwrap_or(248));
        SharedCache::on(builder.build_for(call, Use::Cache)?, self.time_to_live)
    }
}

impl SharedCache {
    /// Makes a cache for this process, its children, and each process that gets the descriptor.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::new()?;
    /// cache.insert(b"key", b"value")?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SharedCacheBuilder::build`].
    pub fn new() -> Result<SharedCache> {
        SharedCache::builder().build()
    }

    /// Returns a builder for the settings that [`SharedCache::new`] leaves at their defaults.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn builder() -> SharedCacheBuilder {
        SharedCacheBuilder::default()
    }

    /// Opens a cache that another process has made, by its descriptor, which this process inherited
    /// or [received](super::receive).
    ///
    /// ```
    /// use std::os::fd::AsFd;
    /// use tenure::shared::SharedCache;
    /// let cache = SharedCache::builder().most(64 << 20).build()?;
    /// cache.insert(b"key", b"value")?;
    /// let descriptor = cache.as_fd().try_clone_to_owned().unwrap();
    /// // SAFETY: only this program has the descriptor.
    /// let other = unsafe { SharedCache::open(descriptor) }?;
    /// assert_eq!(&*other.get(b"key")?.unwrap(), b"value");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Safety
    /// As [`SharedVolatile::open`]: every process that has the descriptor uses it only through
    /// tenure.
    ///
    /// # Errors
    /// As [`SharedVolatile::open`]. `EPROTO`: it is shared memory, but not a cache.
    pub unsafe fn open(descriptor: OwnedFd) -> Result<SharedCache> {
        let call = "SharedCache::open";
        // SAFETY: the caller promises the same.
        let memory = unsafe { SharedVolatile::open_for(call, descriptor, Use::Cache) }?;
        if !index::is_possible(memory.chunks(), memory.chunk_size()) {
            let why = "its sizes are impossible for a cache";
            let remedy = "pass the descriptor that the maker of a SharedCache passed on";
            return Err(Error::new(ErrorKind::BadHeader, call, why, remedy));
        }
        SharedCache::on(memory, None)
    }

    fn on(memory: SharedVolatile, time_to_live: Option<Duration>) -> Result<SharedCache> {
        let index = Index::open(&memory)?;
        let seed = index.root().seed.load(Ordering::Acquire);
        let (writer, makers) = (Writer::new(), Makers::new());
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(SharedCache { memory, index, writer, makers, seed, time_to_live, hits, misses })
    }

    /// Returns the hash of a key, which is equal in all processes.
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = foldhash::quality::FixedState::with_seed(self.seed).build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    pub(super) fn parts(&self) -> Parts<'_> {
        Parts { memory: &self.memory, index: &self.index, writer: &self.writer }
    }

    /// Returns the value of a key, pinned, or `None`.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// assert!(cache.get(b"key")?.is_none());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// No system call. Two lines of memory, and a pin.
    ///
    /// # Errors
    /// `EUSERS`: this process is a child that got no slot, or it holds 32,000 values of the chunk in
    /// which this value is. Drop values then.
    pub fn get(&self, key: &[u8]) -> Result<Option<SharedValue<'_>>> {
        let call = "SharedCache::get";
        self.memory.region().slots.own(call)?;
        let found = self.find(call, self.hash(key), key)?;
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(found)
    }

    fn find(&self, call: &'static str, hash: u64, key: &[u8]) -> Result<Option<SharedValue<'_>>> {
        let found = self.index.find(&self.memory, hash, |place, entry| {
            let parts = self.parts();
            let Leads::There(pin, record) = parts.follow(entry, hash, key) else {
                return None;
            };
            // Its maker has not yet seen whether the key has changed.
            if record.origin() == Origin::Pending {
                return None;
            }
            if record.has_expired() {
                let out = place.compare_exchange(entry.0, 0, Ordering::AcqRel, Ordering::Relaxed);
                if out.is_ok() {
                    parts.count_dead(entry, &record);
                }
                return Some(Ok(None));
            }
            // This pin would be one too many.
            if self.memory.pins_left(entry.chunk()) < 0 {
                return Some(Err(too_many_pins(call)));
            }
            record.hit();
            Some(Ok(Some(SharedValue { _pin: pin, bytes: record.value() })))
        });
        found.unwrap_or(Ok(None))
    }

    /// Returns the largest length of a key and its value together.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// assert!(cache.longest() > 1_000_000);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn longest(&self) -> usize {
        self.memory.chunk_size() - unit(self.memory.chunk_size()) - record::HEAD
    }

    /// Puts a value under a key. It replaces the value that the key had.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// cache.insert(b"key", b"old")?;
    /// cache.insert(b"key", b"new")?;
    /// assert_eq!(&*cache.get(b"key")?.unwrap(), b"new");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// A copy, and no system call while the process's open chunk has room.
    ///
    /// # Errors
    /// `EINVAL`: key and value are longer than [`longest`](SharedCache::longest). `ENOMEM`: there
    /// is no memory for another chunk, or every chunk is pinned; then the key keeps its old value.
    /// `ETIMEDOUT`: another process is stopped while it makes a part of the index. `EUSERS`: this
    /// process is a child that got no slot.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let call = "SharedCache::insert";
        self.memory.region().slots.own(call)?;
        self.insert_as(call, self.hash(key), key, value, None).map(drop)
    }

    fn insert_as(
        &self,
        call: &'static str,
        hash: u64,
        key: &[u8],
        value: &[u8],
        flight: Option<&Flight<'_>>,
    ) -> Result<SharedValue<'_>> {
        if key.len().saturating_add(value.len()) > self.longest() {
            let why = text!("{} bytes do not fit a chunk", key.len().saturating_add(value.len()));
            let remedy = "make the cache with larger chunks (chunk_size())";
            return Err(Error::new(ErrorKind::BadRange, call, why, remedy));
        }
        let expires = self.time_to_live.map_or(0, |time| {
            record::now().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).max(1)
        });
        let written = self.parts().store(call, (hash, expires, key, value), flight)?;
        let bytes = written.record().map_or(&[][..], |record| record.value());
        Ok(SharedValue { _pin: written.pin, bytes })
    }

    /// Returns the value of a key, or makes it with `make` and puts it in. If several threads and
    /// processes ask for it at once, one makes it and the others wait.
    ///
    /// A thread that itself makes a value waits for another process for five seconds at most, and
    /// then makes the value, too: that process may wait for this one.
    ///
    /// Threads of any process may insert, remove or clear the key while `make` runs. The newer
    /// change wins: the call returns the value and does not store it. (If other values are made at
    /// the same time, an insert or a removal of another key may rarely have the same effect.)
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// let value = cache.get_or_insert_with(b"seven", || vec![7; 100])?;
    /// assert_eq!(value[99], 7);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SharedCache::get`] and [`SharedCache::insert`]. `EDEADLK`: `make` asks for the same key, the thread that makes
    /// the value waits for this thread, or this thread makes 32 values, one inside another. If
    /// `make` panics, one of the waiting threads makes the value.
    pub fn get_or_insert_with<V: AsRef<[u8]>>(
        &self,
        key: &[u8],
        make: impl FnOnce() -> V,
    ) -> Result<SharedValue<'_>> {
        let call = "SharedCache::get_or_insert_with";
        let hash = self.hash(key);
        let (mut waiting, mut alone) = (Waiting::new(), false);
        let look = || -> Result<_> {
            let found = self.find(call, hash, key)?;
            self.hits.fetch_add(found.is_some().into(), Ordering::Relaxed);
            Ok(found)
        };
        loop {
            if let Some(value) = look()? {
                // While the value is a local: if this drop panics, a value that is already returned
                // would be lost, and stay pinned for all processes.
                drop(make);
                return Ok(value);
            }
            let region = self.memory.region();
            let flights = &self.index.root().flights;
            match flight::begin(call, region, flights, &self.makers, hash, alone)? {
                Begin::Make(flight) => {
                    // Another thread may have made the value between the lookup and the beginning.
                    if let Some(value) = look()? {
                        drop(make);
                        return Ok(value);
                    }
                    self.misses.fetch_add(1, Ordering::Relaxed);
                    let made = make();
                    let value = self.insert_as(call, hash, key, made.as_ref(), Some(&flight));
                    drop(made);
                    return value;
                }
                Begin::Waited(asked) => {
                    // This thread cannot find out whether the maker lives, or whether the maker
                    // waits for it. Making the value twice is better than never making it.
                    alone = waiting.looked(call, asked).is_err()
                        || flight::is_making() && waiting.is_long();
                }
                Begin::Deadlock(why) => {
                    let remedy = "make it without asking the cache for it";
                    return Err(Error::new(ErrorKind::Deadlock, call, why, remedy));
                }
            }
        }
    }

    /// Removes a value. Returns `false` if there was none.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// cache.insert(b"key", b"value")?;
    /// assert!(cache.remove(b"key")? && !cache.remove(b"key")?);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EUSERS`: this process is a child that got no slot.
    #[doc(alias = "invalidate")]
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.memory.region().slots.own("SharedCache::remove")?;
        let hash = self.hash(key);
        self.index.root().flights.outdate(hash);
        Ok(self.parts().remove(hash, key))
    }

    /// Removes all values, for all processes, and gives back their memory, except for held values.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// cache.insert(b"key", b"value")?;
    /// cache.clear()?;
    /// assert!(cache.get(b"key")?.is_none());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EUSERS`: this process is a child that got no slot.
    pub fn clear(&self) -> Result<()> {
        let region = self.memory.region();
        region.slots.own("SharedCache::clear")?;
        self.index.root().flights.outdate_all();
        self.index.clear(&self.memory);
        region.each_recorded(|chunk| {
            if chunk >= self.index.chunks() {
                purge::purge(region, chunk);
            }
        });
        Ok(())
    }

    /// Returns what the cache holds, and its counts.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// cache.insert(b"key", b"value")?;
    /// assert_eq!(cache.stats().inserts, 1);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`SharedVolatile::stats`].
    pub fn stats(&self) -> SharedCacheStats {
        let root = self.index.root();
        SharedCacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            inserts: root.inserts.load(Ordering::Relaxed),
            displaced: root.displaced.load(Ordering::Relaxed),
            memory: self.memory.stats(),
        }
    }
}

const _: () = assert!(PLACES <= 1 << 16);

/// The descriptor, for another process.
impl AsFd for SharedCache {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}
