//! Shared memory with the calls of Android's ashmem, for programs that were written for it.
//!
//! A region is a descriptor that the program itself maps. Every page is pinned at first. Pins
//! belong to the region, as in ashmem: they have no count. One unpin by any process that has the
//! descriptor lets pages be purged. One pin by any process keeps them again, and returns whether
//! some were purged. Purged pages read zeros. [`SharedVolatile`](super::SharedVolatile) gives new
//! code more: counted pins that end with a process, and bytes that are made once.
//!
//! ```
//! use tenure::shared::ashmem;
//! use std::os::fd::AsFd;
//! let region = ashmem::create(c"tiles", 1 << 20)?;
//! ashmem::unpin(region.as_fd(), 0, 0)?; // all of it may go from here on
//! if ashmem::pin(region.as_fd(), 0, 0)? {
//!     println!("some of it is gone");
//! }
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! A process's first pin or unpin of a region opens it. From then on the process helps to purge
//! unpinned pages, until it has closed the descriptor. At most 24 processes may have a region open
//! in this way.

#![allow(unsafe_code, reason = "changes what a descriptor of the program's is open for")]

use super::kept;
use super::layout::{Facts, Shape, Use};
use super::region::Region;
use super::{list, service};
use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::os::shared_file::{file_of, open_again, SharedFile};
use crate::text::text;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{fcntl_getfl, OFlags};
use rustix::io::{dup3, fcntl_getfd, pread, DupFlags, Errno, FdFlags};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::Arc;

/// A record of one cache line has room for this many processes, and there is one record for each
/// page.
const PROCESSES: u32 = 24;
/// The longest name that `memfd_create` takes.
const NAME: usize = 249;

/// Makes a region of `size` bytes, all zeros and pinned. The program maps it from offset 0 on.
///
/// ```
/// let region = tenure::shared::ashmem::create(c"tiles", 100_000)?;
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// As [`SharedVolatileBuilder::build`](super::SharedVolatileBuilder::build).
pub fn create(name: &CStr, size: usize) -> Result<OwnedFd> {
    let call = "ashmem::create";
    let page = os::page_size();
    let shape = Shape { asked: size, ..Shape::new(call, size, page, PROCESSES)? };
    let mut short = [0; NAME + 1];
    for (to, from) in short[..NAME].iter_mut().zip(name.to_bytes()) {
        *to = *from;
    }
    let name = CStr::from_bytes_until_nul(&short).unwrap_or_default();
    let file = SharedFile::make(name, shape.file())
        .map_err(|(what, errno)| Error::system(call, what, errno))?;
    let region = service::open(call, file, Some(shape), Use::Kept, false)?;
    let number = rustix::io::fcntl_dupfd_cloexec(&region.file, 0).map_err(|errno| {
        list::remove(&region);
        Error::system(call, "fcntl(F_DUPFD_CLOEXEC)", errno)
    })?;
    region.file.borrow(number.as_fd());
    Ok(number)
}

/// Keeps pages until [`unpin`]. Returns `true` if some of them were purged since they were pinned
/// last. They read zeros now, and no other call reports this loss. A `len` of 0 means all pages
/// from `offset` on.
///
/// ```
/// use std::os::fd::AsFd;
/// let region = tenure::shared::ashmem::create(c"tiles", 1 << 20)?;
/// assert!(!tenure::shared::ashmem::pin(region.as_fd(), 0, 4096)?);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// `ENOTTY`: the descriptor does not belong to a region. `EINVAL`: the range does not consist of
/// whole pages, or is past the end. `EUSERS`: 24 other processes have the region open. `EPROTO`:
/// another process has overwritten the header. The errors of opening and of mapping a file. After
/// an error the next call reports what this call found.
pub fn pin(fd: BorrowedFd<'_>, offset: usize, len: usize) -> Result<bool> {
    let call = "ashmem::pin";
    let region = open(call, fd)?;
    let chunks = pages(call, &region, offset, len)?;
    kept::keep(&region, call, chunks)
}

/// Lets pages be purged when memory is short, even if they were pinned more than once. A `len` of 0
/// means all pages from `offset` on.
///
/// ```
/// use std::os::fd::AsFd;
/// let region = tenure::shared::ashmem::create(c"tiles", 1 << 20)?;
/// tenure::shared::ashmem::unpin(region.as_fd(), 0, 4096)?;
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// As [`pin`].
pub fn unpin(fd: BorrowedFd<'_>, offset: usize, len: usize) -> Result<()> {
    let call = "ashmem::unpin";
    let region = open(call, fd)?;
    let chunks = pages(call, &region, offset, len)?;
    kept::release(&region, chunks);
    Ok(())
}

/// Purges the unpinned pages of a region, as happens when memory is short. Returns their number.
///
/// ```
/// use std::os::fd::AsFd;
/// use tenure::shared::ashmem;
/// let region = ashmem::create(c"tiles", 1 << 20)?;
/// assert_eq!(ashmem::purge_now(region.as_fd())?, 0);
/// ashmem::unpin(region.as_fd(), 0, 4096)?;
/// assert_eq!(ashmem::purge_now(region.as_fd())?, 1);
/// assert!(ashmem::pin(region.as_fd(), 0, 0)?);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// As [`pin`].
pub fn purge_now(fd: BorrowedFd<'_>) -> Result<usize> {
    let call = "ashmem::purge_now";
    let region = open(call, fd)?;
    region.slots.own(call)?;
    let bytes = super::purge::purge_some(&region, u64::MAX, false);
    Ok((bytes / region.shape.chunk as u64) as usize)
}

/// Returns the size for which a region was made.
///
/// ```
/// use std::os::fd::AsFd;
/// let region = tenure::shared::ashmem::create(c"tiles", 100_000)?;
/// assert_eq!(tenure::shared::ashmem::size(region.as_fd())?, 100_000);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// `ENOTTY`: the descriptor does not belong to a region.
pub fn size(fd: BorrowedFd<'_>) -> Result<usize> {
    shape_of("ashmem::size", fd).map(|shape| shape.asked)
}

/// Takes the right to write from a descriptor of a region. From now on it is open only for reading,
/// also in processes that receive it later. Mappings, and other descriptors of the region, stay as
/// they are.
///
/// ```
/// use std::os::fd::AsFd;
/// let region = tenure::shared::ashmem::create(c"tiles", 1 << 20)?;
/// tenure::shared::ashmem::make_read_only(region.as_fd())?;
/// assert!(!tenure::shared::ashmem::is_writable(region.as_fd())?);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// This is no protection: a process of the same user may open the file again to write.
///
/// # Errors
/// `ENOTTY`: the descriptor does not belong to a region. The errors of opening a file.
pub fn make_read_only(fd: BorrowedFd<'_>) -> Result<()> {
    let call = "ashmem::make_read_only";
    if !is_writable(fd)? {
        return Ok(());
    }
    let system = |errno| Error::system(call, "opening the file anew to read", errno);
    let reader = open_again(fd, false).map_err(system)?;
    let flags = fcntl_getfd(fd).map_err(system)?;
    // SAFETY: only the open file behind the number changes, to another one of the same file.
    // `ManuallyDrop` keeps the number open.
    let mut there = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) });
    let closes = flags.contains(FdFlags::CLOEXEC);
    // One call: another thread may fork and exec at any moment.
    dup3(&reader, &mut there, if closes { DupFlags::CLOEXEC } else { DupFlags::empty() })
        .map_err(system)
}

/// Returns whether a descriptor of a region is open for writing.
///
/// ```
/// use std::os::fd::AsFd;
/// let region = tenure::shared::ashmem::create(c"tiles", 1 << 20)?;
/// assert!(tenure::shared::ashmem::is_writable(region.as_fd())?);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// `ENOTTY`: the descriptor does not belong to a region.
pub fn is_writable(fd: BorrowedFd<'_>) -> Result<bool> {
    let call = "ashmem::is_writable";
    shape_of(call, fd)?;
    let flags = fcntl_getfl(fd).map_err(|errno| Error::system(call, "fcntl", errno))?;
    Ok(flags & OFlags::ACCMODE == OFlags::RDWR)
}

/// Returns the facts of a region, as they are in the file.
fn shape_of(call: &'static str, fd: BorrowedFd<'_>) -> Result<Shape> {
    let not_one = |_| Error::system(call, "asking for the region's size", Errno::NOTTY);
    let stat = rustix::fs::fstat(fd).map_err(|errno| Error::system(call, "fstat", errno))?;
    let bytes = stat.st_size as u64;
    let at = bytes.checked_sub(os::page_size() as u64).ok_or(()).map_err(not_one)?;
    let mut facts = [0; Facts::LEN];
    match pread(fd, &mut facts, at) {
        Ok(Facts::LEN) => {}
        _ => return Err(not_one(())),
    }
    let shape = Shape::read(call, &Facts::of(facts), bytes, Use::Kept).map_err(|_| not_one(()))?;
    match shape.asked {
        0 => Err(not_one(())),
        _ => Ok(shape),
    }
}

/// Returns the region of a descriptor, as this process has it open. The worker closes the region
/// after the program has closed the descriptor.
fn open(call: &'static str, fd: BorrowedFd<'_>) -> Result<Arc<Region>> {
    crate::runtime::fork::look();
    let system = |errno| Error::system(call, "fstat", errno);
    let file = file_of(fd).map_err(system)?;
    let is_it = |region: &Region| region.shape.asked != 0 && region.file.is(file);
    if let Some(region) = list::find(is_it) {
        region.file.borrow(fd);
        return Ok(region);
    }
    shape_of(call, fd)?;
    // A pin is a write, even for a process that only reads the data.
    let own = open_again(fd, true)
        .and_then(SharedFile::of)
        .map_err(|errno| Error::system(call, "opening the region to write its pins", errno))?;
    match own.len() {
        Ok((_, true)) => {}
        _ => return Err(Error::system(call, "asking for the region's seals", Errno::NOTTY)),
    }
    let region = service::open(call, own, None, Use::Kept, false)?;
    region.file.borrow(fd);
    Ok(region)
}

/// Returns the pages of a call's range.
fn pages(call: &'static str, region: &Region, offset: usize, len: usize) -> Result<Range<usize>> {
    let (page, data) = (region.shape.chunk, region.shape.data);
    let end = if len == 0 { Some(data) } else { offset.checked_add(len) };
    match end {
        Some(end) if offset % page == 0 && end % page == 0 && offset <= end && end <= data => {
            Ok(offset / page..end / page)
        }
        _ => {
            let why = text!("{len} bytes from {offset} on are no whole pages of {data} bytes");
            let remedy = "pass multiples of the page size within the region";
            Err(Error::new(ErrorKind::BadRange, call, why, remedy))
        }
    }
}
