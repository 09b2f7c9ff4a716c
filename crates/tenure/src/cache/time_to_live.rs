//! Values with a time to live of their own.

use super::place::short;
use super::single_flight::Boarding;
use super::store::Made;
use super::tasks::polled;
use super::{own_key, Cache, Value};
use crate::error::{Error, Result};
use std::borrow::Borrow;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

impl<K: Hash + Eq, S: BuildHasher> Cache<K, S> {
    /// Puts a value under a key, with its own time to live: the cache returns the value until
    /// `time` is over, in whole milliseconds. It replaces the value that the key had. The value's
    /// own time replaces the cache's time to live, shorter or longer. A time of zero ends at once,
    /// and [`Duration::MAX`] never. The cache's time to idle still applies.
    ///
    /// ```
    /// use std::time::Duration;
    /// let cache = tenure::Cache::<&str>::new()?;
    /// cache.insert_with_time_to_live("token", b"secret", Duration::from_millis(5))?;
    /// cache.insert("page", b"<html>")?; // lives as long as there is room
    /// std::thread::sleep(Duration::from_millis(20));
    /// assert!(cache.get("token").is_none());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`Cache::insert`], one read of the clock, and 8 bytes more than a value without a time to
    /// live. From the first such value on, [`Cache::contains_key`] reads headers.
    ///
    /// # Errors
    /// As [`Cache::insert`].
    #[doc(alias = "expire_after_create")]
    #[doc(alias = "ttl")]
    pub fn insert_with_time_to_live(&self, key: K, value: &[u8], time: Duration) -> Result<()> {
        self.put(key, value, Some(time))
    }

    /// Does what [`Cache::get_or_try_insert_with`] does, for a `make` that also returns how long
    /// the value lives, as in [`Cache::insert_with_time_to_live`]. `None`: the cache's time to
    /// live.
    ///
    /// ```
    /// use std::time::Duration;
    /// # fn ask(_host: &str) -> std::io::Result<(Vec<u8>, u64)> { Ok((b"127.0.0.1".to_vec(), 60)) }
    /// let cache = tenure::Cache::<String>::new()?;
    /// let address = cache.get_or_try_insert_with_time_to_live("localhost", || {
    ///     let (address, seconds) = ask("localhost")?;
    ///     Ok::<_, std::io::Error>((address, Some(Duration::from_secs(seconds))))
    /// })?;
    /// assert_eq!(&address[..], b"127.0.0.1");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`Cache::get_or_insert_with`], and as [`Cache::insert_with_time_to_live`] for the value
    /// made.
    ///
    /// # Errors
    /// What `make` returned, or as [`Cache::get_or_insert_with`].
    ///
    /// # Panics
    /// As [`Cache::get_or_insert_with`].
    pub fn get_or_try_insert_with_time_to_live<Q, E>(
        &self,
        key: &Q,
        make: impl FnOnce() -> std::result::Result<(Vec<u8>, Option<Duration>), E>,
    ) -> std::result::Result<Value<'_>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: From<Error>,
    {
        self.find_or_make(key, make)
    }

    /// Does what [`Cache::get_or_try_insert_async`] does, for a `make` that also returns how long
    /// the value lives, as in [`Cache::get_or_try_insert_with_time_to_live`].
    ///
    /// ```
    /// use std::time::Duration;
    /// async fn page(cache: &tenure::Cache<String>, name: &str) -> std::io::Result<usize> {
    ///     let make = async { Ok::<_, std::io::Error>((std::fs::read(name)?, Some(Duration::from_secs(60)))) };
    ///     Ok(cache.get_or_try_insert_async_with_time_to_live(name, make).await?.len())
    /// }
    /// ```
    ///
    /// # Cost
    /// As [`Cache::get_or_insert_async`], and as [`Cache::insert_with_time_to_live`] for the value
    /// made.
    ///
    /// # Errors
    /// What `make` returned, or as [`Cache::get_or_insert_async`].
    pub async fn get_or_try_insert_async_with_time_to_live<Q, E>(
        &self,
        key: &Q,
        make: impl Future<Output = std::result::Result<(Vec<u8>, Option<Duration>), E>>,
    ) -> std::result::Result<Value<'_>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: From<Error>,
    {
        self.find_or_make_async(key, make).await
    }

    pub(super) fn put(&self, key: K, value: &[u8], time_to_live: Option<Duration>) -> Result<()> {
        let hash = short(self.inner.shards.hash(&key));
        match self.inner.put(hash, key, value, time_to_live, None) {
            Ok((stored, spare)) => {
                drop(stored);
                self.inner.finish(hash, spare);
                Ok(())
            }
            Err((key, error)) => {
                // The key must not keep its old value after a failed insert.
                self.remove(&key);
                Err(error)
            }
        }
    }

    #[inline]
    pub(super) fn find_or_make<Q, E>(
        &self,
        key: &Q,
        make: impl FnOnce() -> std::result::Result<Made, E>,
    ) -> std::result::Result<Value<'_>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: From<Error>,
    {
        let inner = &*self.inner;
        let full = inner.shards.hash(key);
        let hash = short(full);
        loop {
            if let Some(value) = inner.look_up(hash, key) {
                // What the program gave is dropped while the value is a local: if that panics, a
                // value that is already returned would be lost, and stay pinned.
                drop(make);
                return Ok(value);
            }
            let landing = match inner.flights.board(full, key) {
                Boarding::Make(landing) => landing,
                Boarding::Over => continue,
                Boarding::Deadlock => return Err(own_key().into()),
            };
            if let Some(value) = inner.boarded(hash, key) {
                // As above; the landing drops a key.
                drop((landing, make));
                inner.shards.harvest_of(hash);
                return Ok(value);
            }
            let begun = Instant::now();
            let made = make()?;
            inner.worth.made(begun.elapsed());
            return Ok(inner.land(landing, hash, key, made)?);
        }
    }

    pub(super) async fn find_or_make_async<Q, E>(
        &self,
        key: &Q,
        make: impl Future<Output = std::result::Result<Made, E>>,
    ) -> std::result::Result<Value<'_>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: From<Error>,
    {
        let inner = &*self.inner;
        let full = inner.shards.hash(key);
        let hash = short(full);
        loop {
            if let Some(value) = inner.look_up(hash, key) {
                // What the program gave is dropped while the value is a local: if that panics, a
                // value that is already returned would be lost, and stay pinned.
                drop(make);
                return Ok(value);
            }
            let landing = match inner.flights.board_task(full, key).await {
                Boarding::Make(landing) => landing,
                Boarding::Over => continue,
                Boarding::Deadlock => return Err(own_key().into()),
            };
            if let Some(value) = inner.boarded(hash, key) {
                // As above; the landing drops a key.
                drop((landing, make));
                inner.shards.harvest_of(hash);
                return Ok(value);
            }
            let begun = Instant::now();
            let made = polled(landing.number(), make).await?;
            inner.worth.made(begun.elapsed());
            return Ok(inner.land(landing, hash, key, made)?);
        }
    }
}
