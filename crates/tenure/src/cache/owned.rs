//! A value that does not borrow its cache.

#![allow(unsafe_code, reason = "takes a value's borrow of its cache away")]

use super::segment::Kept;
use super::value::Value;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A value's bytes, which may go anywhere: to other threads, into a task, into a response's body.
/// [`Value::into_owned`] makes one without a copy of the bytes. Its clones are handles to the same
/// bytes.
///
/// It keeps what a [`Value`] keeps: the kernel cannot take the segment of 2 MiB that the bytes lie
/// in. Drop it soon; a slow reader should take a copy.
/// [`CacheStats::held_bytes`](super::CacheStats) says how much is held. Held values keep at most an
/// eighth of the free memory: beyond that, a get returns copies. A value over 512 KiB does not
/// count there: it has its own memory, and a copy would take as much. An owned value also keeps the
/// cache, with all that is in it. The cache ends when its last handle and its last owned value are
/// gone, on the thread that drops the last of them.
///
/// `bytes::Bytes::from_owner` takes an owned value:
///
/// ```
/// let cache = tenure::Cache::<&str>::new()?;
/// let page = cache.get_or_insert_with(&"/index", || b"<html>".to_vec())?.into_owned();
/// let body = bytes::Bytes::from_owner(page); // for hyper and axum, without a copy
/// drop(cache);
/// assert_eq!(&body[..], b"<html>");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct OwnedValue(Arc<Held>);

struct Held {
    /// Dropped before `cache`, in the order of the fields. It is never given out, because it
    /// borrows for ever.
    value: Value<'static>,
    /// The cache that `value` borrows, if it does.
    #[allow(dead_code, reason = "held, never read")]
    cache: Option<Arc<dyn Kept>>,
}

impl OwnedValue {
    pub(super) fn new(value: Value<'_>) -> OwnedValue {
        let cache = value.segment().map(|segment| segment.keep());
        // SAFETY: a value borrows nothing but a segment. A segment stays where it is while its
        // cache lives, and the `Arc` in `cache` keeps the cache alive. `Held` drops the value
        // first, and lends its bytes no longer than itself.
        let value = unsafe { std::mem::transmute::<Value<'_>, Value<'static>>(value) };
        OwnedValue(Arc::new(Held { value, cache }))
    }

    /// Returns whether the value is in the cache: see [`Value::is_cached`].
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// let value = cache.get_or_insert_with(&1, || b"one".to_vec())?.into_owned();
    /// assert!(value.is_cached());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_cached(&self) -> bool {
        self.0.value.is_cached()
    }

    /// Returns whether the bytes are a copy outside the cache: see [`Value::is_copy`].
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// let value = cache.get_or_insert_with(&1, || b"one".to_vec())?.into_owned();
    /// println!("holds memory of the cache: {}", !value.is_copy());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_copy(&self) -> bool {
        self.0.value.is_copy()
    }
}

impl Value<'_> {
    /// Returns the value without its borrow of the cache, and without a copy of its bytes.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// let value = cache.get_or_insert_with(&1, || b"one".to_vec())?.into_owned();
    /// let reader = std::thread::spawn(move || value.len()); // or a task, or a response's body
    /// assert_eq!(reader.join().unwrap(), 3);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// An allocation of 64 bytes, and two atomic instructions on the cache's count of its owners.
    pub fn into_owned(self) -> OwnedValue {
        OwnedValue::new(self)
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> OwnedValue {
        value.into_owned()
    }
}

impl Deref for OwnedValue {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0.value
    }
}

impl AsRef<[u8]> for OwnedValue {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for OwnedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}
