//! Tells which parts of a file are in the page cache, without touching the file.
//!
//! **For** deciding whether to populate a file, and for monitors. **Not for** memory of the
//! process: see [`lock::receipt`](crate::lock::receipt()) and [`survey`](crate::survey()).
//!
//! ```
//! let file = std::fs::File::open("/proc/self/exe")?;
//! let len = file.metadata()?.len();
//! if let Some(resident) = tenure::page_cache::resident_bytes(&file, 0..len)? {
//!     println!("{resident} of {len} bytes are in the page cache");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The functions call `cachestat` (6.5), and before that `mincore`. Neither tells the truth to a
//! user that does not own the file, may not write it, and does not have `CAP_FOWNER`. The functions
//! return `None` to such a user, where `mincore` would report that everything is resident.

use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::text::text;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{accessat, fstat, Access, AtFlags, CWD};
use rustix::io::Errno;
use std::ops::Range;

const CALL: &str = "page_cache";

/// Returns how many bytes of `[range.start, range.end)` of the file are in the page cache, in whole
/// pages. The last page is cut to the range. `None`: the kernel does not tell this user.
///
/// Pages that are being read at this moment count. Costs 0.2 to 3 ms a GiB with `cachestat`, 20
/// with `mincore`.
///
/// ```
/// let file = std::fs::File::open("/proc/self/exe")?;
/// let len = file.metadata()?.len();
/// match tenure::page_cache::resident_bytes(&file, 0..len)? {
///     Some(bytes) => assert!(bytes <= len), // it runs, so much of it is there
///     None => println!("the kernel does not tell this user"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// `EINVAL`: the range does not begin at a page boundary. `EOPNOTSUPP`: the file is on hugetlbfs,
/// whose pages are always resident. `ENODEV`: before 6.5, a file that cannot be mapped.
#[doc(alias = "cachestat")]
#[doc(alias = "mincore")]
pub fn resident_bytes(file: impl AsFd, range: Range<u64>) -> Result<Option<u64>> {
    let range = checked(range)?;
    let fd = file.as_fd();
    match os::page_cache::cached_pages(fd, range.clone()) {
        // The last page may reach past the range.
        Ok(pages) => {
            Ok(Some((pages * os::page_size() as u64).min(range.end.saturating_sub(range.start))))
        }
        Err(Errno::PERM) => Ok(None),
        Err(Errno::NOSYS) => {
            Ok(by_mincore(fd, range)?.map(|parts| parts.iter().map(|p| p.end - p.start).sum()))
        }
        Err(errno) => Err(Error::system(CALL, "cachestat", errno)),
    }
}

/// Returns the parts of `[range.start, range.end)` of the file that are in the page cache, in
/// order. They begin and end at page boundaries, or where the range does. `None`: the kernel does
/// not tell this user.
///
/// Costs a few `cachestat` calls (0.4 µs) for each end of a part.
///
/// ```
/// let file = std::fs::File::open("/proc/self/exe")?;
/// let len = file.metadata()?.len();
/// for part in tenure::page_cache::resident_parts(&file, 0..len)?.unwrap_or_default() {
///     println!("bytes {} to {} are in the page cache", part.start, part.end);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As for [`resident_bytes`].
#[doc(alias = "cachestat")]
#[doc(alias = "mincore")]
pub fn resident_parts(file: impl AsFd, range: Range<u64>) -> Result<Option<Vec<Range<u64>>>> {
    let range = checked(range)?;
    let fd = file.as_fd();
    let mut parts = Vec::new();
    match halve(fd, range.clone(), &mut parts) {
        Ok(()) => Ok(Some(parts)),
        Err(Errno::PERM) => Ok(None),
        Err(Errno::NOSYS) => by_mincore(fd, range),
        Err(errno) => Err(Error::system(CALL, "cachestat", errno)),
    }
}

fn checked(range: Range<u64>) -> Result<Range<u64>> {
    if range.start % os::page_size() as u64 == 0 {
        return Ok(range);
    }
    let why = text!("the range begins at {}, inside a page", range.start);
    Err(Error::new(ErrorKind::BadRange, CALL, why, "begin at a page boundary"))
}

/// Halves the range until each piece is entirely resident or entirely not. Unlike `mincore` this
/// needs no mapping, and the kernel either returns the truth or refuses.
fn halve(
    fd: BorrowedFd<'_>,
    range: Range<u64>,
    parts: &mut Vec<Range<u64>>,
) -> std::result::Result<(), Errno> {
    let page = os::page_size() as u64;
    let len = range.end.saturating_sub(range.start);
    let pages = len.div_ceil(page);
    match os::page_cache::cached_pages(fd, range.clone())? {
        0 => {}
        cached if cached >= pages => push(parts, range),
        _ => {
            let middle = range.start + pages / 2 * page;
            halve(fd, range.start..middle, parts)?;
            halve(fd, middle..range.end, parts)?;
        }
    }
    Ok(())
}

fn by_mincore(fd: BorrowedFd<'_>, range: Range<u64>) -> Result<Option<Vec<Range<u64>>>> {
    if !mincore_is_truthful(fd) {
        return Ok(None);
    }
    let page = os::page_size() as u64;
    let cached = os::page_cache::each_cached(fd, range.clone())
        .map_err(|errno| Error::system(CALL, "mincore", errno))?;
    let mut parts = Vec::new();
    for (at, _) in cached.iter().enumerate().filter(|(_, cached)| **cached) {
        let start = range.start + at as u64 * page;
        push(&mut parts, start..(start + page).min(range.end));
    }
    Ok(Some(parts))
}

fn push(parts: &mut Vec<Range<u64>>, part: Range<u64>) {
    match parts.last_mut() {
        Some(last) if last.end == part.start => last.end = part.end,
        _ => parts.push(part),
    }
}

/// The kernel's own condition (`can_do_mincore`): the file's owner, `CAP_FOWNER`, or write access.
fn mincore_is_truthful(fd: BorrowedFd<'_>) -> bool {
    use rustix::thread::{capabilities, CapabilitySet};
    let owner = fstat(fd).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
    let capable =
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FOWNER));
    let writable = || {
        let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
        accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    };
    owner || capable() || writable()
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of ranges are tested
mod tests {
    use super::*;
    use rustix::fs::{fadvise, fstatfs, Advice};
    use std::fs::File;
    use std::io::Write;
    use std::num::NonZeroU64;

    /// A file of 16 pages and a few bytes on a real file system, of which pages 4 to 7 and 12 are
    /// dropped.
    fn patchy() -> Option<(std::path::PathBuf, File)> {
        let page = os::page_size() as u64;
        let path = std::env::temp_dir().join(format!("tenure-page-cache-{}", std::process::id()));
        // Page by page: the kernel would drop a large folio as a whole or not at all.
        let mut file = File::create(&path).unwrap();
        for bytes in vec![7u8; (16 * page + 100) as usize].chunks(page as usize) {
            file.write_all(bytes).unwrap();
        }
        let file = File::open(&path).unwrap();
        // Without readahead, which would bring the dropped pages back.
        fadvise(&file, 0, None, Advice::Random).unwrap();
        rustix::fs::fsync(&file).unwrap();
        for (first, count) in [(4, 4), (12, 1)] {
            let len = NonZeroU64::new(count * page);
            fadvise(&file, first * page, len, Advice::DontNeed).unwrap();
        }
        // A tmpfs has no storage behind it, so its pages cannot be dropped.
        (fstatfs(&file).unwrap().f_type != libc::TMPFS_MAGIC).then_some((path, file))
    }

    #[test]
    fn both_ways_find_the_same_parts() {
        let page = os::page_size() as u64;
        let Some((path, file)) = patchy() else { return };
        let end = 16 * page + 100;
        let expected = vec![0..4 * page, 8 * page..12 * page, 13 * page..end];
        assert_eq!(by_mincore(file.as_fd(), 0..end).unwrap(), Some(expected.clone()));
        assert_eq!(resident_parts(&file, 0..end).unwrap(), Some(expected));
        let bytes = resident_bytes(&file, 4 * page..10 * page).unwrap();
        assert_eq!(bytes, Some(2 * page));
        assert_eq!(resident_bytes(&file, page..page).unwrap(), Some(0));
        assert_eq!(resident_bytes(&file, 100..200).unwrap_err().errno(), libc::EINVAL);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn one_page_file_is_clipped_to_its_length() {
        let path = std::env::temp_dir().join(format!("tenure-page-cache-1-{}", std::process::id()));
        std::fs::write(&path, b"seven..").unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(resident_bytes(&file, 0..7).unwrap(), Some(7));
        assert_eq!(by_mincore(file.as_fd(), 0..7).unwrap(), Some(vec![0..7]));
        std::fs::remove_file(path).unwrap();
    }
}
