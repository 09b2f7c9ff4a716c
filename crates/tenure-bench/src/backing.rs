//! Mappings and files of every kind, empty and new for each sample.

#![allow(unsafe_code, reason = "maps memory and files")]

use rustix::fs::{memfd_create, open, openat, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::param::page_size;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use tenure_command::call::failed_at;

pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// The source of a mapping's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Anonymous memory in base pages.
    Anon,
    /// Private anonymous memory in transparent huge pages.
    AnonTransparent,
    /// Shared anonymous memory from the pool of huge pages.
    AnonHuge,
    /// A memory file in base pages.
    Memfd,
    /// A memory file from the pool of huge pages.
    MemfdHuge,
    /// A file in `/dev/shm`.
    Tmpfs,
    /// A file on a disk.
    Disk,
    /// A file of a hugetlbfs that is mounted for this, in no directory.
    Hugetlbfs,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Anon => "anon 4 KiB",
            Kind::AnonTransparent => "anon THP",
            Kind::AnonHuge => "anon 2 MiB",
            Kind::Memfd => "memfd 4 KiB",
            Kind::MemfdHuge => "memfd 2 MiB",
            Kind::Tmpfs => "tmpfs",
            Kind::Disk => "file",
            Kind::Hugetlbfs => "hugetlbfs",
        }
    }

    /// Whether its pages come from the pool that `vm.nr_hugepages` sets.
    pub fn is_pooled(self) -> bool {
        matches!(self, Kind::AnonHuge | Kind::MemfdHuge | Kind::Hugetlbfs)
    }

    pub fn has_file(self) -> bool {
        !matches!(self, Kind::Anon | Kind::AnonTransparent | Kind::AnonHuge)
    }

    /// The step of a loop that touches every page. The kernel may give base pages where transparent
    /// huge pages were requested, so a loop steps as if there were none.
    pub fn step(self) -> usize {
        match self.is_pooled() {
            true => HUGE_PAGE,
            false => page_size(),
        }
    }
}

/// Makes mappings of one kind.
pub(crate) struct Backing {
    pub kind: Kind,
    shared: bool,
    dir: PathBuf,
}

/// An empty mapping, and the empty file behind it.
pub(crate) struct Fresh {
    reserved: *mut c_void,
    reserved_len: usize,
    pub addr: *mut u8,
    pub len: usize,
    pub kind: Kind,
    pub file: Option<File>,
}

impl Backing {
    /// `dir` is where a file on a disk goes.
    pub fn new(kind: Kind, shared: bool, dir: &Path) -> Backing {
        Backing { kind, shared, dir: dir.to_owned() }
    }

    /// Maps `len` bytes, writable, at an address aligned to huge pages.
    pub fn fresh(&self, len: usize) -> io::Result<Fresh> {
        let file = self.file()?;
        if let Some(file) = &file {
            file.set_len(len as u64)?;
        }
        let (reserved, reserved_len, start) = reserve(len)?;
        let mapped = Fresh { reserved, reserved_len, addr: start, len, kind: self.kind, file };
        let how = match self.shared {
            true => MapFlags::SHARED,
            false => MapFlags::PRIVATE,
        };
        let how = how
            | MapFlags::FIXED
            | match self.kind {
                Kind::AnonHuge => MapFlags::HUGETLB | MapFlags::HUGE_2MB,
                _ => MapFlags::empty(),
            };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let addr = mapped.addr.cast();
        // SAFETY: inside the reservation just made: at most one huge page was skipped before it,
        // and one was added behind.
        let done = unsafe {
            match &mapped.file {
                Some(file) => mm::mmap(addr, len, prot, how, file, 0),
                None => mm::mmap_anonymous(addr, len, prot, how),
            }
        };
        match done {
            Err(Errno::NOMEM) if self.kind.is_pooled() => {
                return Err(unsupported("too few huge pages (vm.nr_hugepages)"))
            }
            other => other?,
        };
        match self.kind {
            Kind::Anon => mapped.advise(Advice::LinuxNoHugepage),
            Kind::AnonTransparent => mapped.advise(Advice::LinuxHugepage),
            _ => Ok(()),
        }?;
        Ok(mapped)
    }

    fn file(&self) -> io::Result<Option<File>> {
        let file = match self.kind {
            Kind::Anon | Kind::AnonTransparent | Kind::AnonHuge => return Ok(None),
            Kind::Memfd => memfd_create("tenure-bench", MemfdFlags::CLOEXEC)?.into(),
            Kind::MemfdHuge => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
                memfd_create("tenure-bench", flags)
                    .map_err(|errno| unsupported(&format!("memfd of huge pages: {errno}")))?
                    .into()
            }
            Kind::Tmpfs => unnamed(Path::new("/dev/shm"))
                .map_err(|error| unsupported(&format!("/dev/shm: {error}")))?,
            Kind::Disk => unnamed(&self.dir)
                .map_err(|error| failed_at(&self.dir, "making a file", error.into()))?,
            Kind::Hugetlbfs => hugetlbfs_file()
                .map_err(|errno| unsupported(&format!("mounting a hugetlbfs: {errno}")))?,
        };
        Ok(Some(file))
    }
}

/// The file is in a mount of its own that is in no directory and ends with its last descriptor.
fn hugetlbfs_file() -> Result<File, Errno> {
    let context = fsopen("hugetlbfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(openat(&mount, "tenure-bench", flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// A file without a name.
fn unnamed(dir: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    Ok(open(dir, flags, Mode::RUSR | Mode::WUSR)?.into())
}

impl Fresh {
    /// One `madvise` over all of it.
    pub fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: only this value's memory changes, plain bytes to which no code holds a reference.
        match unsafe { mm::madvise(self.addr.cast(), self.len, advice) } {
            // A kernel built without huge pages has base pages anyway.
            Err(Errno::INVAL) if advice == Advice::LinuxNoHugepage => Ok(()),
            Err(Errno::INVAL) => {
                Err(unsupported(&format!("this kernel refuses madvise({advice:?})")))
            }
            other => Ok(other?),
        }
    }

    /// Calls `each` with the first byte of every page.
    pub fn each_page(&self, each: impl Fn(*mut u8)) {
        for offset in (0..self.len).step_by(self.kind.step()) {
            // SAFETY: inside the mapping.
            each(unsafe { self.addr.add(offset) });
        }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // SAFETY: the reservation, with everything mapped into it, belongs to this value.
        let _ = unsafe { mm::munmap(self.reserved, self.reserved_len) };
    }
}

/// Reserves addresses for `len` bytes at a huge page's start, with guards around them. Returns the
/// reservation, its length, and the start.
/// its length, and the start.
pub(crate) fn reserve(len: usize) -> io::Result<(*mut c_void, usize, *mut u8)> {
    let reserved_len = len + 2 * HUGE_PAGE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let reserved = unsafe {
        mm::mmap_anonymous(
            ptr::null_mut(),
            reserved_len,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    let start = (reserved as usize + page_size()).next_multiple_of(HUGE_PAGE);
    Ok((reserved, reserved_len, start as *mut u8))
}

/// An error that removes a contestant.
pub(crate) fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_is_to_be_had_is_empty_and_writable() {
        let dir = crate::Options::default().dir();
        for shared in [false, true] {
            for kind in [Kind::Anon, Kind::AnonTransparent, Kind::Memfd, Kind::Tmpfs, Kind::Disk] {
                let fresh = match Backing::new(kind, shared, &dir).fresh(HUGE_PAGE) {
                    Ok(fresh) => fresh,
                    Err(error) if error.kind() == io::ErrorKind::Unsupported => continue,
                    Err(error) => panic!("{kind:?}: {error}"),
                };
                assert_eq!(fresh.addr as usize % HUGE_PAGE, 0);
                // SAFETY: every page belongs to this mapping.
                fresh.each_page(|page| unsafe {
                    assert_eq!(page.read(), 0);
                    page.write(1);
                });
                assert_eq!(fresh.file.is_some(), kind.has_file());
            }
        }
    }
}
