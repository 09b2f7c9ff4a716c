//! The size, the holes and the free room of the file behind a mapping. Files of memory.

use super::brief::{self, open_for_facts, Brief};
use super::limits;
use super::maps_line::Mapping;
use super::smaps::Entry;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{
    fallocate, fstat, fstatfs, ftruncate, major, memfd_create, minor, stat, FallocateFlags,
    FileType, MemfdFlags, Stat,
};
use rustix::io::Errno;
use std::ffi::CStr;

const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58f6;

/// Facts about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub inode: u64,
    pub size: u64,
    /// Its allocated bytes. This is more than `size` where the file system allocates whole blocks.
    pub allocated: u64,
    /// Bytes that its file system could still allocate to this user; `None` where it has no bound
    /// (memfd and other kernel-internal tmpfs).
    pub free: Option<u64>,
    pub tmpfs: bool,
    pub hugetlbfs: bool,
}

/// Returns whether the file of a mapping in a tmpfs is a regular one, and no device's node. `None`: its
/// name does not lead to it, and the kernel shows the file itself to privileged processes alone.
pub(crate) fn is_regular(mapping: &Mapping, name: &str) -> Option<bool> {
    let is_mapped = |at: &Stat| {
        at.st_ino == mapping.inode && (major(at.st_dev), minor(at.st_dev)) == mapping.device
    };
    let itself = format!("/proc/self/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let found = stat(name).ok().filter(is_mapped).or_else(|| stat(itself).ok());
    found.map(|at| FileType::from_raw_mode(at.st_mode) == FileType::RegularFile)
}

pub(crate) fn facts(fd: BorrowedFd<'_>) -> Result<Facts, Errno> {
    let file = fstat(fd)?;
    let system = fstatfs(fd)?;
    let tmpfs = system.f_type as u64 == TMPFS;
    let hugetlbfs = system.f_type as u64 == HUGETLBFS;
    // A tmpfs (or hugetlbfs) without a size limit reports 0 blocks in all.
    let bounded = system.f_blocks > 0;
    Ok(Facts {
        inode: file.st_ino,
        size: file.st_size as u64,
        allocated: file.st_blocks as u64 * 512,
        free: bounded.then(|| (system.f_bavail as u64).saturating_mul(system.f_bsize as u64)),
        tmpfs,
        hugetlbfs,
    })
}

/// The file behind a mapping: the given one, or one that is found through `/proc`.
fn behind(given: Option<BorrowedFd<'_>>, entry: &Entry) -> Option<Facts> {
    if let Some(fd) = given {
        return facts(fd).ok();
    }
    let mapping = &entry.mapping;
    if mapping.inode == 0 {
        return None;
    }
    let look = |path: &str| {
        let fd = open_for_facts(path).ok()?;
        let stat = fstat(&fd).ok()?;
        let device = (major(stat.st_dev), minor(stat.st_dev));
        ((stat.st_ino, device) == (mapping.inode, mapping.device))
            .then(|| facts(fd.as_fd()).ok())?
    };
    // Only privileged processes can open the first path; the second path works while the file still
    // has its name.
    look(&format!("/proc/self/map_files/{:x}-{:x}", mapping.start, mapping.end))
        .or_else(|| entry.name.starts_with('/').then(|| look(&entry.name))?)
        .or_else(|| {
            let open_files = std::fs::read_dir("/proc/self/fd").ok()?;
            open_files.flatten().find_map(|file| look(file.path().to_str()?))
        })
}

/// The size of the file behind a mapping, if the file can be found.
pub(crate) fn size_behind(given: Option<BorrowedFd<'_>>, entry: &Entry) -> Option<u64> {
    behind(given, entry).map(|facts| facts.size)
}

/// The bytes that its file system could still allocate, if the file can be found and there is a
/// bound.
pub(crate) fn free_behind(given: Option<BorrowedFd<'_>>, entry: &Entry) -> Option<u64> {
    behind(given, entry)?.free
}

/// Allocates the missing blocks of a part of a file; its size stays.
///
/// `ENOSPC`, `EDQUOT`: no room. `EOPNOTSUPP`: the file system cannot.
pub(crate) fn allocate(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    loop {
        match fallocate(fd, FallocateFlags::KEEP_SIZE, offset, len) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Makes a file of memory that cannot be executed. Some systems allow only such files
/// (`vm.memfd_noexec`). Before Linux 6.3 the flag is unknown.
fn memfd(name: &CStr, flags: MemfdFlags) -> Result<Brief, Errno> {
    let make = || match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    };
    brief::open_by(make, |_, _| true)
}

/// Makes a file of memory of this length.
///
/// # Errors
/// The call that failed, and why. `EFBIG`: `RLIMIT_FSIZE` (`ulimit -f`) is below the length. The
/// kernel would end the program with SIGXFSZ.
pub(crate) fn memfd_of(
    name: &CStr,
    flags: MemfdFlags,
    bytes: u64,
) -> Result<Brief, (&'static str, Errno)> {
    if limits::file_bytes().is_some_and(|limit| limit < bytes) {
        return Err(("making the file, which RLIMIT_FSIZE (ulimit -f) forbids", Errno::FBIG));
    }
    let fd = memfd(name, flags).map_err(|errno| ("memfd_create", errno))?;
    ftruncate(&fd, bytes).map_err(|errno| ("ftruncate", errno))?;
    Ok(fd)
}
