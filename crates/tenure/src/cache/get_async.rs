//! Values that tasks make, in any runtime. No thread blocks.

use super::{Cache, Value};
use crate::error::{Error, Result};
use std::borrow::Borrow;
use std::future::Future;
use std::hash::{BuildHasher, Hash};

impl<K: Hash + Eq, S: BuildHasher> Cache<K, S> {
    /// Does what [`Cache::get_or_insert_with`] does, for tasks. `make` is a future, and one task
    /// runs it. Other tasks that ask for the value meanwhile wake up when it is there. No thread
    /// blocks, and any runtime will do.
    ///
    /// If the task that makes the value is dropped, another waiting task runs its own `make`. A
    /// future that was polled, and is then neither polled nor dropped, keeps all others waiting. A
    /// thread that calls [`Cache::get_or_insert_with`] meanwhile blocks until the task is done. In
    /// a runtime with a single thread it waits for ever, so tasks should use this call.
    ///
    /// A forked child does not wait for its parent's tasks: the first caller there makes the value.
    /// If a task of the parent goes on in a child, the child's call returns its value, and the
    /// cache does not keep it.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// async fn page(cache: Arc<tenure::Cache<String>>, name: String) -> tenure::Result<usize> {
    ///     let page = cache.get_or_insert_async(&name, async { b"<html>".to_vec() }).await?;
    ///     Ok(page.len()) // `page.into_owned()` goes into a response
    /// }
    /// ```
    ///
    /// # Cost
    /// As [`Cache::get_or_insert_with`]; a task that waits allocates 32 bytes.
    ///
    /// # Errors
    /// `EDEADLK`: `make` itself asks for its key, also while it is dropped, or a task asks that is
    /// polled inside `make`. (A runtime that a thread's `make` runs may poll such a task.)
    /// `EINVAL`: the value made is longer than 4 GiB. The cache cannot detect two tasks, or
    /// a task and a thread, that each make the value that the other one asks for: they wait for ever.
    #[doc(alias = "get_with")]
    pub async fn get_or_insert_async<Q>(
        &self,
        key: &Q,
        make: impl Future<Output = Vec<u8>>,
    ) -> Result<Value<'_>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.get_or_try_insert_async(key, async { Ok(make.await) }).await
    }

    /// Does what [`Cache::get_or_insert_async`] does, for a `make` that can fail. When it fails, a
    /// waiting task runs its own `make`.
    ///
    /// ```
    /// async fn page(cache: &tenure::Cache<String>, name: &str) -> std::io::Result<usize> {
    ///     let make = async { std::fs::read(name) }; // or a runtime's own, without blocking
    ///     Ok(cache.get_or_try_insert_async(name, make).await?.len())
    /// }
    /// ```
    ///
    /// # Cost
    /// As [`Cache::get_or_insert_async`].
    ///
    /// # Errors
    /// What `make` returned, or as [`Cache::get_or_insert_async`].
    #[doc(alias = "try_get_with")]
    pub async fn get_or_try_insert_async<Q, E>(
        &self,
        key: &Q,
        make: impl Future<Output = std::result::Result<Vec<u8>, E>>,
    ) -> std::result::Result<Value<'_>, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        E: From<Error>,
    {
        self.find_or_make_async(key, async { Ok((make.await?, None)) }).await
    }
}
