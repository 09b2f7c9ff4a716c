//! Files on hugetlbfs: their pages are allocated from a pool, and stay.
//!
//! The page cache has no word on them (`cachestat` is refused), nor has `SEEK_DATA` on their holes.

use rustix::fs::{fstat, fstatfs};
use std::fs::File;

const HUGETLBFS: u64 = 0x9584_58f6;

/// What is known of such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Huge {
    /// Bytes of a page of it.
    pub page: u64,
    /// Bytes that are allocated, wherever in the file: all of them resident.
    pub allocated: u64,
}

/// `None`: it is not on hugetlbfs.
pub fn of(file: &File) -> Option<Huge> {
    if fstatfs(file).ok()?.f_type as u64 != HUGETLBFS {
        return None;
    }
    let stat = fstat(file).ok()?;
    Some(Huge { page: stat.st_blksize as u64, allocated: stat.st_blocks as u64 * 512 })
}
