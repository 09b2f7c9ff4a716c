//! An owned block of the pool.

#![allow(unsafe_code, reason = "gives out the bytes of a run that it owns")]

use super::{api, resize};
use crate::error::{Error, ErrorKind, Result};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// An owned block of bytes of the pool. Dropping it gives the block back.
///
/// Its bytes are always initialised. The bytes of a former user could change under a reference,
/// because the kernel may take offered pages.
///
/// ```
/// let mut frame = tenure::pool::Buffer::zeroed(1920 * 1080 * 4)?;
/// frame[..4].copy_from_slice(&[255, 0, 0, 255]);
/// drop(frame); // warm: the next frame starts with its pages
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct Buffer {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer alone owns its bytes, and the pool's calls may come from any thread.
unsafe impl Send for Buffer {}
// SAFETY: code that has a shared reference can only read the bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Makes a buffer of `len` zero bytes. In a run that was used before, only the pages that are
    /// resident are zeroed.
    ///
    /// ```
    /// let buffer = tenure::pool::Buffer::zeroed(300_000)?;
    /// assert!(buffer.iter().all(|byte| *byte == 0));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`alloc`](super::alloc) with zeroing: 24 ns for each page that the run has.
    ///
    /// # Errors
    /// `EINVAL`: the length is 0. `ENOMEM`: as [`Pool::alloc`](super::Pool::alloc).
    #[doc(alias = "calloc")]
    pub fn zeroed(len: usize) -> Result<Buffer> {
        Buffer::new("Buffer::zeroed", len, true)
    }

    /// Makes a buffer with a copy of `bytes`, without zeroing it first.
    ///
    /// ```
    /// let buffer = tenure::pool::Buffer::copy_of(b"some bytes")?;
    /// assert_eq!(&buffer[..], b"some bytes");
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`alloc`](super::alloc), and the copy.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn copy_of(bytes: &[u8]) -> Result<Buffer> {
        let buffer = Buffer::new("Buffer::copy_of", bytes.len(), false)?;
        // SAFETY: a new run of that length, and no reference of the caller points into it.
        unsafe { buffer.at.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(buffer)
    }

    fn new(call: &'static str, len: usize, zeroed: bool) -> Result<Buffer> {
        if len == 0 {
            return Err(Error::new(
                ErrorKind::BadRange,
                call,
                "the length is 0",
                "ask for at least one byte",
            ));
        }
        super::prepare_if_needed();
        match super::alloc(len, 1, zeroed) {
            Some(at) => Ok(Buffer { at, len }),
            None => Err(api::refused(call, len)),
        }
    }

    /// Makes the buffer `len` bytes long. New bytes are zeros. For a large buffer the kernel moves
    /// the pages, and nothing is copied.
    ///
    /// ```
    /// let mut buffer = tenure::pool::Buffer::copy_of(&[7; 100_000])?;
    /// buffer.resize(200_000)?;
    /// assert_eq!(buffer[99_999..100_001], [7, 0]);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`realloc`](super::realloc).
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed). The buffer is then unchanged.
    #[doc(alias = "realloc")]
    #[doc(alias = "mremap")]
    pub fn resize(&mut self, len: usize) -> Result<()> {
        if len == 0 {
            return Err(Error::new(
                ErrorKind::BadRange,
                "Buffer::resize",
                "the length is 0",
                "drop the buffer instead",
            ));
        }
        // SAFETY: `at` is the buffer's own block, and `&mut self` means that no other reference to
        // it exists.
        match unsafe { resize::realloc(self.at.as_ptr() as usize, Some(self.len), len, 1, true) } {
            Some(at) => {
                (self.at, self.len) = (at, len);
                Ok(())
            }
            None => Err(api::refused("Buffer::resize", len)),
        }
    }

    /// Returns how long the buffer may become without moving.
    ///
    /// ```
    /// let buffer = tenure::pool::Buffer::zeroed(100_000)?;
    /// assert!(buffer.capacity() >= 100_000);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn capacity(&self) -> usize {
        super::raw::room(self.at).map_or(self.len, |(_, room, _)| room)
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns `len` initialised bytes at `at`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns `len` initialised bytes at `at`, and `&mut self` means that no
        // other reference to them exists.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer {{ at: {:p}, len: {} }}", self.at, self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `at` is the buffer's own block, and no borrow outlives the buffer. `drop` runs
        // once, so the block is given back once.
        unsafe { super::free(self.at) }
    }
}
