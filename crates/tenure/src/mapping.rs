//! Owned mappings: memory that is unmapped when its owner is dropped.

#![allow(unsafe_code, reason = "gives out the bytes of a mapping that it owns")]

use crate::error::{Error, ErrorKind, Result};
use crate::os::files::memfd_of;
use crate::os::{self, advise, reserve};
use crate::range::PageRange;
use crate::runtime::services;
use crate::text::text;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{fstat, MemfdFlags};
use rustix::io::Errno;
use std::ffi::CString;

/// The longest name that `memfd_create` takes.
const LONGEST_NAME: usize = 249;

/// The size of pages that an anonymous mapping asks for.
///
/// ```
/// use tenure::{Mapping, PageSize};
/// let table = Mapping::anonymous_with(4 << 20, PageSize::Huge)?;
/// assert_eq!(table.as_ptr() as usize % (2 << 20), 0);
/// # Ok::<(), tenure::Error>(())
/// ```
#[doc(alias = "MADV_HUGEPAGE")]
#[doc(alias = "MADV_NOHUGEPAGE")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// The size that the system's setting gives.
    #[default]
    System,
    /// Base pages only.
    Base,
    /// Huge pages where they fit: the mapping starts at a huge-page boundary and is advised
    /// `MADV_HUGEPAGE` before its first touch.
    Huge,
}

/// An owned mapping of whole pages. Dropping it unmaps it. A mapping of
/// [`min_bytes`](crate::retire::Settings::min_bytes) or more is [retired](crate::retire).
///
/// ```
/// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
/// memory.as_mut_slice()[0] = 7;
/// assert_eq!(memory.as_slice()[..2], [7, 0]);
/// # Ok::<(), tenure::Error>(())
/// ```
#[doc(alias = "mmap")]
#[derive(Debug)]
pub struct Mapping {
    range: PageRange,
    len: usize,
    writable: bool,
    pages: PageSize,
}

// The memory behind a mapping is plain bytes, reached through `&self` for reading and `&mut self`
// for writing only; `PageRange` is two numbers, so both traits hold by themselves.

impl Mapping {
    /// Maps `len` bytes (rounded up to whole pages) of zeroed private memory. Nothing is reserved
    /// (`MAP_NORESERVE`), so it may be far larger than memory and used in parts: see
    /// [`populate`](Mapping::populate) and [`discard`](Mapping::discard).
    ///
    /// ```
    /// let sparse = tenure::Mapping::anonymous(1 << 40)?; // 1 TiB of addresses, no memory yet
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// One or two system calls, about 2 µs with the unmapping. It takes no memory before the first
    /// touch.
    ///
    /// # Errors
    /// `EINVAL`: `len` is 0. `ENOMEM`: no address space, too many mappings, or over `RLIMIT_AS`.
    #[doc(alias = "mmap")]
    #[doc(alias = "MAP_ANONYMOUS")]
    #[doc(alias = "MAP_NORESERVE")]
    pub fn anonymous(len: usize) -> Result<Mapping> {
        Mapping::anonymous_with(len, PageSize::System)
    }

    /// Maps memory as [`Mapping::anonymous`] does, with a choice of page size.
    ///
    /// ```
    /// use tenure::{Mapping, PageSize};
    /// let base_pages = Mapping::anonymous_with(4 << 20, PageSize::Base)?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As [`Mapping::anonymous`].
    ///
    /// # Errors
    /// As [`Mapping::anonymous`]. A kernel without huge pages gives base pages, without an error.
    #[doc(alias = "mmap")]
    #[doc(alias = "MADV_HUGEPAGE")]
    pub fn anonymous_with(len: usize, pages: PageSize) -> Result<Mapping> {
        let size = whole_pages("Mapping::anonymous", len)?;
        let align = if pages == PageSize::Huge { os::HUGE_PAGE } else { os::page_size() };
        let range = relieved(|| reserve::map_anonymous(size, align))
            .map_err(|errno| Error::system("Mapping::anonymous", "mmap", errno))?;
        // Advice only: a refusal costs speed, not correctness.
        let _ = match pages {
            PageSize::System => Ok(()),
            PageSize::Base => advise::want_base_pages(range),
            PageSize::Huge => advise::want_huge_pages(range),
        };
        Ok(Mapping { range, len, writable: true, pages })
    }

    /// Maps a private, writable copy of `len` bytes of a file from `offset`; writes stay in memory.
    ///
    /// ```
    /// let program = std::fs::File::open("/proc/self/exe")?;
    /// // SAFETY: no process truncates or writes a program that runs.
    /// let head = unsafe { tenure::Mapping::file(&program, 0, 4096) }?;
    /// assert_eq!(head.as_slice()[1..4], *b"ELF");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Cost
    /// Two system calls. Nothing is read before the first touch.
    ///
    /// # Safety
    /// No process truncates or writes the file while it is mapped: touching a page past its end
    /// raises SIGBUS, and bytes that change under a `&[u8]` are undefined behaviour.
    ///
    /// # Errors
    /// `EINVAL`: `len` is 0, `offset` is not page-aligned, or the range ends past the end of the
    /// file. Others are `mmap`'s.
    #[doc(alias = "mmap")]
    #[doc(alias = "MAP_PRIVATE")]
    pub unsafe fn file(file: impl AsFd, offset: u64, len: usize) -> Result<Mapping> {
        map_file("Mapping::file", file.as_fd(), offset, len, false)
    }

    /// Makes a memfd of `len` bytes (rounded up to whole pages) and maps it shared.
    ///
    /// ```
    /// let mut shared = tenure::Mapping::memfd("table", 1 << 20)?;
    /// shared.as_mut_slice().fill(7);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// Three system calls and the closing of the descriptor: about 3 µs with the unmapping.
    ///
    /// # Errors
    /// `EINVAL`: `len` is 0, or the name has a byte 0 or is longer than 249 bytes. `EFBIG`:
    /// `RLIMIT_FSIZE` (`ulimit -f`) is below the length. `ENOMEM`, `EMFILE`, `ENFILE`: as
    /// `memfd_create` and `mmap`.
    #[doc(alias = "memfd_create")]
    #[doc(alias = "MAP_SHARED")]
    pub fn memfd(name: &str, len: usize) -> Result<Mapping> {
        let call = "Mapping::memfd";
        let size = whole_pages(call, len)?;
        let bad = |why| {
            let remedy = "pass a name of at most 249 bytes, without a byte 0";
            Error::new(ErrorKind::BadRange, call, why, remedy)
        };
        if name.len() > LONGEST_NAME {
            return Err(bad(text!("the name of the file has {} bytes", name.len())));
        }
        let name = CString::new(name).map_err(|_| bad(text!("the name has a byte 0")))?;
        let fd = memfd_of(&name, MemfdFlags::CLOEXEC, size as u64)
            .map_err(|(what, errno)| Error::system(call, what, errno))?;
        let mut mapping = map_file(call, fd.as_fd(), 0, size, true)?;
        mapping.len = len;
        Ok(mapping)
    }

    /// Takes over a whole, readable and writable mapping that was made otherwise and has no other
    /// owner.
    pub(crate) fn adopt(range: PageRange, len: usize) -> Mapping {
        debug_assert!(len > 0 && len <= range.len());
        Mapping { range, len, writable: true, pages: PageSize::System }
    }

    /// Returns the bytes.
    ///
    /// ```
    /// assert!(tenure::Mapping::anonymous(4096)?.as_slice().iter().all(|byte| *byte == 0));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped readable for the life of `self`; initialised (zeros or file contents).
        unsafe { std::slice::from_raw_parts(self.range.start as *const u8, self.len) }
    }

    /// Returns the bytes, for writing.
    ///
    /// ```
    /// let mut memory = tenure::Mapping::anonymous(4096)?;
    /// memory.as_mut_slice().fill(7);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.writable);
        // SAFETY: mapped writable for the life of `self`, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.range.start as *mut u8, self.len) }
    }

    /// Returns the address of the first byte.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(4096)?;
    /// assert_eq!(memory.as_ptr(), memory.as_slice().as_ptr());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn as_ptr(&self) -> *const u8 {
        self.range.start as *const u8
    }

    /// Returns the address of the first byte, for the calls that take raw ranges.
    ///
    /// ```
    /// let mut memory = tenure::Mapping::anonymous(4096)?;
    /// let (addr, len) = (memory.as_mut_ptr(), memory.len());
    /// // SAFETY: the mapping stays as it is, and is not touched while it is marked.
    /// unsafe { tenure::volatile::mark(addr, len)? };
    /// # unsafe { tenure::volatile::forget(addr, len)? };
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.range.start as *mut u8
    }

    /// Returns the length in bytes, as it was asked for.
    ///
    /// ```
    /// assert_eq!(tenure::Mapping::anonymous(5000)?.len(), 5000); // as asked for
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: a mapping has at least one byte.
    ///
    /// ```
    /// assert!(!tenure::Mapping::anonymous(1)?.is_empty());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A part of the mapping, checked as `check` does.
    pub(crate) fn part(
        &self,
        call: &'static str,
        offset: usize,
        len: usize,
        check: impl Fn(&'static str, *const u8, usize) -> Result<PageRange>,
    ) -> Result<PageRange> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.range.len());
        if !inside {
            let why = text!(
                "{len} bytes from {offset} are not inside the mapping's {} bytes",
                self.range.len()
            );
            return Err(Error::new(ErrorKind::BadRange, call, why, "pass a part of the mapping")
                .on(self.range.start.wrapping_add(offset), len));
        }
        check(call, (self.range.start + offset) as *const u8, len)
    }

    /// The size of pages that the mapping asked for.
    pub(crate) fn pages(&self) -> PageSize {
        self.pages
    }

    pub(crate) fn range(&self) -> PageRange {
        self.range
    }
}

/// Tries again after teardown, if the address space or `RLIMIT_MEMLOCK` is full of retired
/// mappings.
fn relieved(
    attempt: impl FnMut() -> rustix::io::Result<PageRange>,
) -> rustix::io::Result<PageRange> {
    services::retry(attempt, |errno| matches!(*errno, Errno::NOMEM | Errno::AGAIN))
}

pub(crate) fn whole_pages(call: &'static str, len: usize) -> Result<usize> {
    match len.checked_next_multiple_of(os::page_size()) {
        Some(0) => Err(Error::new(
            ErrorKind::BadRange,
            call,
            "the length is 0",
            "ask for at least one byte",
        )),
        Some(size) if size <= isize::MAX as usize => Ok(size),
        _ => Err(Error::new(
            ErrorKind::BadRange,
            call,
            "the length does not fit the address space",
            "check it for an underflow",
        )),
    }
}

fn map_file(
    call: &'static str,
    fd: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    shared: bool,
) -> Result<Mapping> {
    let size = whole_pages(call, len)?;
    let end = fstat(fd).map_err(|errno| Error::system(call, "fstat", errno))?.st_size as u64;
    if offset % os::page_size() as u64 != 0 || offset.saturating_add(len as u64) > end {
        return Err(Error::new(
            ErrorKind::BadRange,
            call,
            text!("{len} bytes from {offset} are not page-aligned or end past the file's {end}"),
            "pass a page-aligned offset and a length inside the file",
        ));
    }
    let range = relieved(|| reserve::map_file(fd, offset, size, shared, true))
        .map_err(|errno| Error::system(call, "mmap", errno))?;
    Ok(Mapping { range, len, writable: true, pages: PageSize::System })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_holds_bytes() {
        let mut maps = vec![
            Mapping::anonymous(5000).unwrap(),
            Mapping::anonymous_with(3 << 20, PageSize::Huge).unwrap(),
            Mapping::anonymous_with(1 << 20, PageSize::Base).unwrap(),
            Mapping::memfd("tenure-test", 5000).unwrap(),
        ];
        for map in &mut maps {
            assert!(map.as_slice().iter().all(|byte| *byte == 0));
            let last = map.len() - 1;
            map.as_mut_slice()[last] = 9;
            assert_eq!(map.as_slice()[last], 9);
        }
        assert_eq!(maps[1].as_ptr() as usize % os::HUGE_PAGE, 0);
    }

    #[test]
    fn a_private_file_mapping_keeps_the_file() {
        let path = std::env::temp_dir().join(format!("tenure-mapping-{}", std::process::id()));
        std::fs::write(&path, vec![5u8; 9000]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        // SAFETY: the file is this test's alone.
        let mut map = unsafe { Mapping::file(&file, 4096, 4904) }.unwrap();
        map.as_mut_slice()[0] = 6;
        assert_eq!(map.as_slice()[1], 5);
        assert_eq!(std::fs::read(&path).unwrap()[4096], 5);
        // SAFETY: the file is this test's alone.
        let past_end = unsafe { Mapping::file(&file, 4096, 5000) }.unwrap_err();
        assert_eq!(past_end.errno(), libc::EINVAL);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_name_that_no_file_can_have_is_an_error_that_says_so() {
        for name in ["nul\0", &"long".repeat(70)] {
            let error = Mapping::memfd(name, 4096).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL);
            assert!(error.to_string().contains("at most 249 bytes"), "{error}");
        }
        Mapping::memfd(&"n".repeat(LONGEST_NAME), 4096).unwrap();
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        assert_eq!(Mapping::anonymous(0).unwrap_err().kind(), ErrorKind::BadRange);
        assert_eq!(Mapping::anonymous(usize::MAX).unwrap_err().kind(), ErrorKind::BadRange);
    }
}
