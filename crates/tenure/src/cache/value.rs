//! What a get returns: the value's bytes, pinned or copied.

use super::pins;
use super::segment::Segment;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

/// A value's bytes; they stay as they are while it lives, whatever happens to the key meanwhile.
pub struct Value<'a> {
    bytes: NonNull<[u8]>,
    /// The segment that the bytes are in and that the value has pinned; `None`: they are a
    /// `Box<[u8]>` of the value's own.
    segment: Option<&'a Segment>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In a segment of its own.
    Alone,
    /// In a shared segment, with a token of [`pins`].
    Token,
    /// A copy of what is in the cache.
    Copy,
    /// Not in the cache.
    Uncached,
}

// SAFETY: the bytes are the value's own or those of a segment, which nobody writes while it is
// pinned; a pin and a token may be given back on any thread.
unsafe impl Send for Value<'_> {}
// SAFETY: as above; a shared value is only read.
unsafe impl Sync for Value<'_> {}

impl<'a> Value<'a> {
    /// Bytes of a segment that the caller has pinned; the value takes the pin over, and a token if
    /// the caller has taken one for it.
    #[inline]
    pub(super) fn pinned(segment: &'a Segment, bytes: &'a [u8], token: bool) -> Self {
        let kind = if token { Kind::Token } else { Kind::Alone };
        Value { bytes: NonNull::from(bytes), segment: Some(segment), kind }
    }

    /// A copy of a value; `cached`: the cache has it too.
    pub(super) fn own(bytes: Vec<u8>, cached: bool) -> Self {
        let bytes = NonNull::from(Box::leak(bytes.into_boxed_slice()));
        Value { bytes, segment: None, kind: if cached { Kind::Copy } else { Kind::Uncached } }
    }

    /// Whether the value is in the cache: `false` if it was made by
    /// [`get_or_insert_with`](super::Cache::get_or_insert_with) and found no room, or its key was changed
    /// while it was made.
    pub fn is_cached(&self) -> bool {
        self.kind != Kind::Uncached
    }

    /// Whether the bytes are a copy outside the cache: so many values are held that no more of them
    /// may keep the cache's memory from the kernel.
    pub fn is_copy(&self) -> bool {
        self.segment.is_none()
    }
}

impl Deref for Value<'_> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: they stay while `self` does: pinned, or its own.
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
        let Some(segment) = self.segment else {
            // SAFETY: from `Box::leak` in `own`, and nobody else has it.
            drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
            return;
        };
        segment.unpin();
        if self.kind == Kind::Token {
            pins::give();
        }
    }
}
