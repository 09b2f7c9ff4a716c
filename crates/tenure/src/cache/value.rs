//! The result of a get: the value's bytes, pinned or copied.

#![allow(unsafe_code, reason = "gives out bytes under a pin")]

use super::pins;
use super::segment::Segment;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

/// A value's bytes. They do not change while it lives, even if the key changes.
///
/// Drop it soon: while it lives, the kernel cannot take the segment of 2 MiB that the bytes lie in.
/// [`into_owned`](Value::into_owned) turns it into a value that does not borrow the cache.
///
/// ```
/// let cache = tenure::Cache::<u64>::new()?;
/// let value = cache.get_or_insert_with(&1, || b"one".to_vec())?;
/// cache.remove(&1);
/// assert_eq!(&value[..], b"one"); // stays while `value` lives
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct Value<'a> {
    bytes: NonNull<[u8]>,
    holder: Holder<'a>,
}

enum Holder<'a> {
    /// A pin of the value's own segment.
    Alone(&'a Segment),
    /// A pin of a shared segment, with a token of [`pins`].
    Token(&'a Segment),
    /// The bytes are a `Box<[u8]>`: a copy of what is in the cache.
    Copy,
    /// The bytes are a `Box<[u8]>`, and the value is not in the cache.
    Uncached,
}

// SAFETY: the bytes are the value's own or those of a pinned segment, and no thread writes them. A
// pin and a token may be given back on any thread.
unsafe impl Send for Value<'_> {}
// SAFETY: a shared value is only read, and its bytes do not change while it is pinned.
unsafe impl Sync for Value<'_> {}

impl<'a> Value<'a> {
    /// Returns a value with bytes of a segment that the caller has pinned. The value takes over the
    /// pin, and the token if the caller has one for it.
    #[inline]
    pub(super) fn pinned(segment: &'a Segment, bytes: &'a [u8], token: bool) -> Self {
        let holder = if token { Holder::Token(segment) } else { Holder::Alone(segment) };
        Value { bytes: NonNull::from(bytes), holder }
    }

    /// Returns a value with its own bytes. `cached`: the cache also has the value.
    pub(super) fn own(bytes: Vec<u8>, cached: bool) -> Self {
        let bytes = NonNull::from(Box::leak(bytes.into_boxed_slice()));
        Value { bytes, holder: if cached { Holder::Copy } else { Holder::Uncached } }
    }

    /// Returns the segment that the bytes lie in. Returns `None` if the bytes are the value's own.
    pub(super) fn segment(&self) -> Option<&'a Segment> {
        match self.holder {
            Holder::Alone(segment) | Holder::Token(segment) => Some(segment),
            Holder::Copy | Holder::Uncached => None,
        }
    }

    /// Returns whether the value is in the cache. It is not if
    /// [`get_or_insert_with`](super::Cache::get_or_insert_with) made it and found no room, or if
    /// its key was changed meanwhile.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// let value = cache.get_or_insert_with(&1, || {
    ///     cache.remove(&1); // the key changes while its value is made
    ///     b"one".to_vec()
    /// })?;
    /// assert!(!value.is_cached() || cache.contains_key(&1));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_cached(&self) -> bool {
        !matches!(self.holder, Holder::Uncached)
    }

    /// Returns whether the bytes are a copy outside the cache. A get returns a copy while the
    /// program holds very many values, because held values keep the cache's memory from the kernel.
    /// A get of up to 120 KiB also returns a copy if the segment is offered and
    /// [`Settings::unoffered_max`](crate::volatile::Settings::unoffered_max) leaves no room to take
    /// the segment back: then it stays offered, and the copy takes 1 to 9 µs.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// let value = cache.get_or_insert_with(&1, || b"one".to_vec())?;
    /// if value.is_copy() {
    ///     println!("many values are held, or memory is short: it holds no memory of the cache");
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_copy(&self) -> bool {
        matches!(self.holder, Holder::Copy | Holder::Uncached)
    }
}

impl Deref for Value<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes stay as long as `self`: they are pinned, or its own.
        unsafe { self.bytes.as_ref() }
    }
}

impl AsRef<[u8]> for Value<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value")
            .field("len", &self.len())
            .field("cached", &self.is_cached())
            .finish()
    }
}

impl Drop for Value<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.holder {
            Holder::Token(segment) => {
                segment.unpin();
                pins::give();
            }
            Holder::Alone(segment) => segment.unpin(),
            // SAFETY: from `Box::leak` in `own`, and only this value has it.
            Holder::Copy | Holder::Uncached => drop(unsafe { Box::from_raw(self.bytes.as_ptr()) }),
        }
    }
}
