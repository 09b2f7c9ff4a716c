//! Files on hugetlbfs: their pages are allocated from a pool, and stay.
//!
//! The page cache's calls do not work for them: `cachestat` is refused, and `SEEK_DATA` does not
//! find their holes.

use rustix::fs::{fstat, fstatfs};
use std::fs::File;

const HUGETLBFS: u64 = 0x9584_58f6;

/// The facts about such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Huge {
    /// Bytes of a page of it.
    pub page: u64,
    /// Bytes that are allocated, at any place in the file: all of them are resident.
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
