//! Opening files without waiting, and telling one state of a file from the next.

use rustix::fs::{fstat, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Device and inode: one file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Length in bytes.
    pub size: u64,
    blocks: u64,
    /// Nanoseconds. Not the time of the inode's change, which a rename moves, too.
    modified: i128,
}

impl FileId {
    /// Of the file that this describes.
    pub fn of(metadata: &Metadata) -> FileId {
        FileId { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl Stamp {
    /// Of the file that this describes.
    pub fn of(metadata: &Metadata) -> Stamp {
        let modified =
            i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Stamp { size: metadata.size(), blocks: metadata.blocks(), modified }
    }
}

impl Stamp {
    /// Whether the file has been left alone long enough for its next change to have another time: the
    /// kernel's clock for them steps by up to 10 ms.
    pub fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.modified + 50_000_000 < now.as_nanos() as i128
    }
}

/// Opens a regular file for reading, with its identity and state.
///
/// It is looked at again after it was opened: a pipe put in its place must not be waited for.
pub fn open(path: &Path) -> io::Result<(File, FileId, Stamp)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Warming a file is not using it; only its owner may say so.
    let fd = match rustix::fs::open(path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::open(path, flags, Mode::empty())?,
        other => other?,
    };
    let stat: Stat = fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no regular file any more"));
    }
    let file = File::from(fd);
    let metadata = file.metadata()?;
    Ok((file, FileId::of(&metadata), Stamp::of(&metadata)))
}

/// Opens an open file once more, wherever its name leads by now: the kernel reads ahead by such
/// descriptors.
pub fn again(file: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}
