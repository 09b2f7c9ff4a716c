//! A buffer for keys and passwords.

#![allow(unsafe_code, reason = "writes the zeros so that the compiler keeps them")]

use super::guard::{lock_new, Lock};
use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::os::mincore::in_memory;
use crate::os::{advise, page_size};
use crate::range::PageRange;
use rustix::io::Errno;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{compiler_fence, Ordering};

/// Bytes that leave this process's memory in none of four ways: they are not paged out, not in a
/// core dump, not in a child of a fork, and not in memory that the process has given back.
///
/// The bytes are zeros at first. Read and write them in place: each copy is one more secret. They
/// are not printed by [`Debug`](fmt::Debug).
///
/// ```
/// use tenure::lock::Secret;
/// let mut key = Secret::new(32)?;
/// key.copy_from_slice(b"never on a disk, nor in a child.");
/// assert_eq!(format!("{key:?}"), "Secret { len: 32, .. }");
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// | way | protection |
/// | --- | --- |
/// | swap | locked on fault from the start, before anything is written |
/// | a core dump | `MADV_DONTDUMP`; not against a debugger, which reads the process |
/// | a forked child | `MADV_WIPEONFORK`: a child has zeros there, and no lock. It makes a secret of its own |
/// | freed memory | zeros are written before the memory is unmapped |
///
/// Raw `munlock` and `munlockall` calls unlock it. A child of `vfork` has its parent's memory until it
/// calls `exec`. At the end of the process nothing is written: the kernel clears pages before another
/// process gets them. Hibernation writes all of memory to the disk, locked or not.
#[doc(alias = "mlock")]
#[doc(alias = "MADV_DONTDUMP")]
#[doc(alias = "MADV_WIPEONFORK")]
#[doc(alias = "MADV_UNMERGEABLE")]
pub struct Secret {
    /// Ends before the memory is unmapped. As a guard, it is left alone by `munlockall2`.
    _lock: Lock,
    pages: Mapping,
}

impl Secret {
    /// Makes room for `len` bytes, all zeros. It takes whole pages, and the limit of locked memory
    /// (`RLIMIT_MEMLOCK`) is charged with them until it is dropped.
    ///
    /// ```
    /// let mut password = tenure::lock::Secret::new(64)?;
    /// password[0] = b'?';
    /// assert_eq!(password.len(), 64);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// Five system calls; with the drop 5 µs for 32 bytes (a loop of 10,000). A drop reads the pages that
    /// were touched, and writes zeros to those that hold anything else.
    ///
    /// # Errors
    /// As for [`Mapping::anonymous`] and [`lock`](super::lock()): `EINVAL`: `len` is 0. `ENOMEM`: over the
    /// limit of locked memory, or no memory. `EPERM`: the limit is 0. The errno of `madvise`, if a
    /// filter refuses one of the protections. Then there is no secret.
    pub fn new(len: usize) -> Result<Secret> {
        let pages = Mapping::anonymous(len)?;
        let range = range_of(&pages);
        let failed = |what: &'static str| move |errno| Error::system("Secret::new", what, errno);
        advise::keep_from_dumps(range).map_err(failed("madvise(MADV_DONTDUMP)"))?;
        advise::wipe_on_fork(range).map_err(failed("madvise(MADV_WIPEONFORK)"))?;
        match advise::keep_from_merges(range) {
            // A kernel without such merges.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(failed("madvise(MADV_UNMERGEABLE)")(errno)),
        }
        Ok(Secret { _lock: lock_new("Secret::new", range)?, pages })
    }
}

fn range_of(pages: &Mapping) -> PageRange {
    let start = pages.as_ptr() as usize;
    PageRange::new(start, start + pages.len().next_multiple_of(page_size()))
}

impl Deref for Secret {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.pages.as_slice()
    }
}

impl DerefMut for Secret {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut_slice()
    }
}

impl AsRef<[u8]> for Secret {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Secret {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        const BATCH: usize = 256;
        let (page, whole) = (page_size(), range_of(&self.pages));
        for piece in whole.pieces(BATCH * page) {
            // A page that was never touched, as all pages in a child, would take memory here.
            for (at, there) in piece.pieces(page).zip(in_memory::<BATCH>(piece)) {
                let start = at.start - whole.start;
                let end = (start + page).min(self.pages.len());
                if there & 1 == 1 && self[start..end].iter().any(|byte| *byte != 0) {
                    wipe(&mut self[start..end]);
                }
            }
        }
        compiler_fence(Ordering::SeqCst);
    }
}

fn wipe(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: a byte that is borrowed exclusively. The write is volatile, or else the compiler
        // would leave it out, because nobody reads the memory before it is unmapped.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
}
