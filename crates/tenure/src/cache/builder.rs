//! The settings of a cache.

use super::inner::Inner;
use super::lifetimes::Lifetimes;
use super::listener::{Listener, RemovalCause};
use super::segment::SEGMENT;
use super::shard::Shards;
use super::single_flight::Flights;
use super::space::{Space, LARGE};
use super::worth::Worth;
use super::{fork, Cache, DefaultHasher};
use crate::error::Result;
use crate::tracking::settings::Priority;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Builds a [`Cache`]: the settings that [`Cache::new`] leaves at their defaults.
///
/// ```
/// use std::time::Duration;
/// let cache = tenure::Cache::<String>::builder()
///     .ceiling(256 << 20) // never more than 256 MiB
///     .priority(tenure::Priority::LOWEST)
///     .time_to_live(Duration::from_secs(60))
///     .build()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CacheBuilder<K, S = DefaultHasher> {
    ceiling: Option<u64>,
    priority: Priority,
    time_to_live: Option<Duration>,
    time_to_idle: Option<Duration>,
    miss_cost: Option<Duration>,
    listener: Option<Listener<K>>,
    hasher: S,
}

impl<K: Hash + Eq> CacheBuilder<K> {
    fn new() -> Self {
        CacheBuilder {
            ceiling: None,
            priority: Priority::DEFAULT,
            time_to_live: None,
            time_to_idle: None,
            miss_cost: None,
            listener: None,
            hasher: DefaultHasher::default(),
        }
    }
}

impl<K: Hash + Eq + Send + Sync + 'static, S: BuildHasher + Send + Sync + 'static>
    CacheBuilder<K, S>
{
    /// Sets the most bytes of memory that the cache may take. The default is what the machine and
    /// the memory cgroup allow. The cache takes up to 3.5 MiB in any case, and held values stay.
    /// A segment has 2 MiB, or 512 KiB if the ceiling is below 64 MiB.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::builder().ceiling(64 << 20).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn ceiling(mut self, bytes: u64) -> Self {
        self.ceiling = Some(bytes);
        self
    }

    /// Sets when the kernel takes the cache's memory, compared with other volatile memory of this
    /// process.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::builder().priority(tenure::Priority::LOWEST).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets how long the cache returns a value after its insert, in whole milliseconds. A value may
    /// have its own time instead: see [`Cache::insert_with_time_to_live`].
    ///
    /// ```
    /// use std::time::Duration;
    /// let cache = tenure::Cache::<u64>::builder().time_to_live(Duration::from_millis(5)).build()?;
    /// cache.insert(1, b"one")?;
    /// std::thread::sleep(Duration::from_millis(20));
    /// assert!(cache.get(&1).is_none());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// 8 bytes more for each value. A get reads the clock.
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.time_to_live = Some(time);
        self
    }

    /// Sets how long the cache returns a value after its last use, or its insert. The cache notes a
    /// use in steps of a second, or of a quarter of the time if that is shorter (at least a
    /// millisecond). A value ends in the step that follows `time`, and never earlier. A get that finds
    /// the value counts as a use, of any kind of get; [`Cache::contains_key`] does not count. If the
    /// cache also has a time to live, a value ends at the earlier time.
    ///
    /// ```
    /// use std::time::Duration;
    /// let cache = tenure::Cache::<u64>::builder().time_to_idle(Duration::from_millis(40)).build()?;
    /// cache.insert(1, b"one")?;
    /// std::thread::sleep(Duration::from_millis(60)); // its step is 10 ms
    /// assert!(cache.get(&1).is_none());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// 16 bytes more for each value. A get reads the clock, and writes once in a step.
    pub fn time_to_idle(mut self, time: Duration) -> Self {
        self.time_to_idle = Some(time);
        self
    }

    /// Sets what a miss costs: how long the program takes to make a value. Without this setting the
    /// cache measures it, in the calls that make values ([`Cache::get_or_insert_with`] and its
    /// relatives). Set it if the program makes values outside of such calls.
    ///
    /// The setting only matters if a process has several caches. When memory is short, the kernel
    /// first takes the caches whose bytes save the least time: the hits in a second, times the cost
    /// of a miss, divided by the bytes of memory. A [priority](CacheBuilder::priority) comes before
    /// that. A cache whose cost of a miss is not known is among the first.
    ///
    /// ```
    /// use std::time::Duration;
    /// let pages = tenure::Cache::<u64>::builder().miss_cost(Duration::from_millis(20)).build()?;
    /// let icons = tenure::Cache::<u64>::builder().miss_cost(Duration::from_micros(50)).build()?;
    /// pages.insert(1, b"rendered in 20 ms")?;
    /// assert_eq!(pages.stats().miss_cost_ns, 20_000_000);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[doc(alias = "miss_penalty")]
    pub fn miss_cost(mut self, cost: Duration) -> Self {
        self.miss_cost = Some(cost);
        self
    }

    /// Sets a function that the cache calls once for each value that leaves it, with the key and
    /// the cause. The value itself may be gone. Use it for counts, logs, and tables beside the
    /// cache.
    ///
    /// The call comes a little later than the value leaves. It runs on a thread that calls the
    /// cache at that moment, and its time adds to that call. It runs under no lock of tenure's.
    /// Neither tenure's worker nor tenure's handlers for forks and signals call it. The function
    /// may use the cache, and the cache may then call it again inside itself. Before the outer call
    /// ends (if that looks for a value, before the next call ends), the cache has reported
    /// everything that the function's own calls of it led to, or another thread that uses the cache
    /// is reporting it. So a function
    /// that inserts a value for each evicted one makes room again and again there: leave that to
    /// another thread. The calls for one key may come in another order than its values left, and
    /// from several threads at once. The cache catches a panic of the function. The program's panic
    /// hook has reported it, and the cache calls the function for the next value all the same.
    ///
    /// The cache notices that the kernel took a value, or that its time is over, only when it looks
    /// at the value: in a get or an iteration, when it makes room, when the program replaces or
    /// removes a value under the key, or when the index grows. Until then it does not call the
    /// function. A value that has ended and is replaced before any look counts as replaced. The end
    /// of the cache itself calls the function for no value.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::sync::Arc;
    /// use tenure::cache::RemovalCause;
    /// let replaced = Arc::new(AtomicU64::new(0));
    /// let count = replaced.clone();
    /// let cache = tenure::Cache::<u64>::builder()
    ///     .eviction_listener(move |_key, cause| {
    ///         if cause == RemovalCause::Replaced {
    ///             count.fetch_add(1, Ordering::Relaxed);
    ///         }
    ///     })
    ///     .build()?;
    /// cache.insert(1, b"one")?;
    /// cache.insert(1, b"another one")?;
    /// assert_eq!(replaced.load(Ordering::Relaxed), 1);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// A call for each value that leaves; nothing for a get.
    pub fn eviction_listener(
        mut self,
        listener: impl Fn(&K, RemovalCause) + Send + Sync + 'static,
    ) -> Self {
        self.listener = Some(Listener::new(listener));
        self
    }

    /// Sets another hasher for the keys.
    ///
    /// ```
    /// let hasher = std::hash::RandomState::new(); // slower, and safe from chosen keys
    /// let cache = tenure::Cache::<String>::builder().hasher(hasher).build()?;
    /// cache.insert("key".to_owned(), b"value")?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> CacheBuilder<K, T> {
        CacheBuilder {
            ceiling: self.ceiling,
            priority: self.priority,
            time_to_live: self.time_to_live,
            time_to_idle: self.time_to_idle,
            miss_cost: self.miss_cost,
            listener: self.listener,
            hasher,
        }
    }

    /// Makes the cache. It takes no memory before the first insert.
    ///
    /// ```
    /// let cache = tenure::Cache::<String>::builder().build()?;
    /// assert_eq!(cache.stats().footprint_bytes, 0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// About 10 µs.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the kernel refuses `MADV_FREE`. `EAGAIN`: the worker's thread could not start.
    pub fn build(self) -> Result<Cache<K, S>> {
        crate::tracking::ready("Cache::new")?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // A small cache of few segments would be emptied in large steps, and half of its open
        // segment is empty on average.
        let (lanes, segment_bytes) = match self.ceiling {
            Some(bytes) if bytes < 32 * SEGMENT as u64 => (1, LARGE),
            _ => (processors.min(8), SEGMENT),
        };
        let lifetimes = Lifetimes::new(self.time_to_live, self.time_to_idle);
        let ceiling = self.ceiling.unwrap_or(u64::MAX);
        let level = self.priority.level();
        let inner = Arc::new_cyclic(|cache: &Weak<Inner<K, S>>| Inner {
            shards: Shards::new(self.hasher, self.listener.as_ref()),
            space: Space::new(cache.clone(), (lanes, segment_bytes), ceiling, level, lifetimes),
            flights: Flights::new(),
            listed: fork::Listed::new(),
            worth: Worth::new(self.miss_cost, self.priority),
            listener: self.listener.clone(),
            has_ends: AtomicBool::new(false),
        });
        fork::list(&inner);
        Ok(Cache { inner })
    }
}

impl<K: Hash + Eq + Send + Sync + 'static> Cache<K> {
    /// Makes a cache without a size.
    ///
    /// ```
    /// let cache = tenure::Cache::<String>::new()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`CacheBuilder::build`]. The cache takes no memory before the first insert.
    ///
    /// # Errors
    /// As [`CacheBuilder::build`].
    pub fn new() -> Result<Cache<K>> {
        Cache::builder().build()
    }

    /// Returns a builder for the settings that [`Cache::new`] leaves at their defaults.
    ///
    /// ```
    /// let cache = tenure::Cache::<String>::builder().ceiling(1 << 30).build()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn builder() -> CacheBuilder<K> {
        CacheBuilder::new()
    }
}
