//! Opens files without waiting, and distinguishes the states of a file.

use rustix::fs::{fstat, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tenure_command::call::failed;

/// Device and inode: one file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

/// Facts that differ when a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Length in bytes.
    pub size: u64,
    blocks: u64,
    /// Nanoseconds. This is not the time of the inode's change, which a rename also moves.
    modified: i128,
}

impl FileId {
    /// The identity of the file that this describes.
    pub fn of(metadata: &Metadata) -> FileId {
        FileId { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl Stamp {
    /// The state of the file that this describes.
    pub fn of(metadata: &Metadata) -> Stamp {
        let modified =
            i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Stamp { size: metadata.size(), blocks: metadata.blocks(), modified }
    }
}

impl Stamp {
    /// Returns whether the file has been unchanged for so long that its next change will have
    /// another time: the kernel's clock for these times steps by up to 10 ms.
    pub fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.modified + 50_000_000 < now.as_nanos() as i128
    }
}

/// Opens a regular file for reading, with its identity and state.
///
/// The file is checked again after it was opened: this must not wait for a pipe put in its place.
pub fn open(path: &Path) -> io::Result<(File, FileId, Stamp)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Warming a file is not a use of it; only its owner may suppress the access time.
    let fd = match rustix::fs::open(path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::open(path, flags, Mode::empty()),
        other => other,
    };
    let fd = fd.map_err(|errno| failed("open", errno.into()))?;
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
