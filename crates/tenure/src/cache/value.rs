//! What a get returns: the value's bytes, pinned or copied.

use super::pins;
use super::segment::Segment;
use std::fmt;
use std::ops::Deref;

/// A value's bytes; they stay as they are while it lives, whatever happens to the key meanwhile.
pub struct Value<'a> {
    bytes: Bytes<'a>,
}

enum Bytes<'a> {
    /// In the cache; `token`: the value has one of [`pins`].
    Pinned { segment: &'a Segment, bytes: &'a [u8], token: bool },
    /// A copy; `cached`: the cache has the value too.
    Own { bytes: Box<[u8]>, cached: bool },
}

impl<'a> Value<'a> {
    /// Bytes of a segment that the caller has pinned; the value takes the pin over, and a token if
    /// the caller has taken one for it.
    #[inline]
    pub(super) fn pinned(segment: &'a Segment, bytes: &'a [u8], token: bool) -> Self {
        Value { bytes: Bytes::Pinned { segment, bytes, token } }
    }

    /// A copy of a value; `cached`: the cache has it too.
    pub(super) fn own(bytes: Vec<u8>, cached: bool) -> Self {
        Value { bytes: Bytes::Own { bytes: bytes.into_boxed_slice(), cached } }
    }

    /// Whether the value is in the cache: `false` if it was made by
    /// [`get_or_insert_with`](super::Cache::get_or_insert_with) and found no room.
    pub fn is_cached(&self) -> bool {
        !matches!(self.bytes, Bytes::Own { cached: false, .. })
    }

    /// Whether the bytes are a copy outside the cache: so many values are held that no more of them
    /// may keep the cache's memory from the kernel.
    pub fn is_copy(&self) -> bool {
        matches!(self.bytes, Bytes::Own { .. })
    }
}

impl Deref for Value<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Pinned { bytes, .. } => bytes,
            Bytes::Own { bytes, .. } => bytes,
        }
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
        if let Bytes::Pinned { segment, token, .. } = &self.bytes {
            segment.unpin();
            if *token {
                pins::give();
            }
        }
    }
}
