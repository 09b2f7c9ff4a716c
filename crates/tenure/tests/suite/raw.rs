//! Mappings that a test makes itself, of kinds that the owned ones do not have.

// Each test binary uses a part of it.
#![allow(dead_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use tenure_testkit::pages;

pub const PAGE: usize = 4096;
pub const MIB: usize = 1 << 20;
pub const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// A mapping, unmapped on drop.
pub struct Raw {
    pub start: usize,
    pub len: usize,
}

/// Far below the addresses that the kernel chooses, so that no other mapping lands in a hole that a
/// test makes.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);

impl Raw {
    pub fn try_map(len: usize, prot: i32, flags: i32, fd: i32) -> Result<Raw, String> {
        let room = len.next_multiple_of(2 * MIB) + 2 * MIB;
        let hint = NEXT.fetch_add(room, Ordering::Relaxed);
        // SAFETY: a new mapping; the address is a hint, used if nothing is there.
        let at = unsafe { libc::mmap(hint as *mut _, len, prot, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(format!("mmap: {}", std::io::Error::last_os_error()));
        }
        Ok(Raw { start: at as usize, len })
    }

    pub fn anonymous(pages: usize) -> Raw {
        Raw::try_map(pages * PAGE, READ_WRITE, ANONYMOUS, -1).unwrap()
    }

    pub fn shared(fd: &impl AsRawFd, len: usize) -> Raw {
        Raw::try_map(len, READ_WRITE, libc::MAP_SHARED, fd.as_raw_fd()).unwrap()
    }

    pub fn private(fd: &impl AsRawFd, len: usize) -> Raw {
        Raw::try_map(len, READ_WRITE, libc::MAP_PRIVATE, fd.as_raw_fd()).unwrap()
    }

    pub fn page(&self, i: usize) -> usize {
        self.start + i * PAGE
    }

    pub fn ptr(&self) -> *const u8 {
        self.start as *const u8
    }

    pub fn unmap(&self, page: usize) {
        // SAFETY: a page of this mapping, which no code uses.
        assert_eq!(unsafe { libc::munmap(self.page(page) as *mut _, PAGE) }, 0);
    }

    pub fn protect(&self, page: usize, prot: i32) {
        // SAFETY: a page of this mapping, to which there are no references.
        assert_eq!(unsafe { libc::mprotect(self.page(page) as *mut _, PAGE, prot) }, 0);
    }

    pub fn advise(&self, page: usize, pages: usize, advice: i32) -> Result<(), i32> {
        // SAFETY: pages of this mapping, whose contents are not needed.
        match unsafe { libc::madvise(self.page(page) as *mut _, pages * PAGE, advice) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }

    pub fn present(&self) -> Vec<bool> {
        pages::present_pages(self.start, self.len)
    }

    /// How many pages from the start on are there without a gap.
    pub fn leading(&self) -> usize {
        self.present().iter().take_while(|there| **there).count()
    }

    /// How many pages from the start on are in the page cache without a gap.
    ///
    /// A disk's file is counted by this, because its pages do not stay mapped. While the kernel
    /// compacts memory for any process, it takes some out of the page tables, and the next touch
    /// maps them again: in 19 of 80 runs beside `compact_memory` (6.18).
    pub fn cached(&self) -> usize {
        let mut there = vec![0u8; self.len / PAGE];
        // SAFETY: mincore writes a byte for each page of the range into the vector.
        let asked = unsafe { libc::mincore(self.start as *mut _, self.len, there.as_mut_ptr()) };
        assert_eq!(asked, 0, "mincore: {}", std::io::Error::last_os_error());
        there.iter().take_while(|page| **page & 1 == 1).count()
    }

    pub fn byte(&self, page: usize) -> u8 {
        // SAFETY: the calling tests have mapped it readable.
        unsafe { std::ptr::read_volatile(self.page(page) as *const u8) }
    }

    pub fn set(&self, page: usize, byte: u8) {
        // SAFETY: the calling tests have mapped it writable, and only they use it.
        unsafe { std::ptr::write_volatile(self.page(page) as *mut u8, byte) }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the memory is this structure's own. Each test maps at addresses that no other
        // mapping gets, so nothing else is in its holes.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

pub fn memfd(len: usize, flags: libc::c_uint) -> Result<OwnedFd, String> {
    // SAFETY: a NUL-terminated name; the descriptor is new, so no other code owns it.
    let fd = unsafe {
        let fd = libc::memfd_create(c"populate".as_ptr(), flags | libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(format!("memfd_create: {}", std::io::Error::last_os_error()));
        }
        OwnedFd::from_raw_fd(fd)
    };
    truncate(&fd, len);
    Ok(fd)
}

pub fn truncate(fd: &impl AsRawFd, len: usize) {
    // SAFETY: the descriptor is borrowed for the call, which changes the length of its file only.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), len as i64) }, 0);
}

/// A directory of this test's own, removed on drop. On request it has a file system of its own
/// mounted on it.
pub struct Place {
    pub path: PathBuf,
    mounted: bool,
}

impl Place {
    pub fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("tenure-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Place { path, mounted: false }
    }

    /// With a tmpfs of this size, in bytes.
    pub fn tmpfs(name: &str, size: usize, more: &str) -> Result<Place, String> {
        let mut place = Place::new(name);
        let options = std::ffi::CString::new(format!("size={size}{more}")).unwrap();
        let target = std::ffi::CString::new(place.path.to_str().unwrap()).unwrap();
        // SAFETY: NUL-terminated strings.
        let done = unsafe {
            libc::mount(
                c"tenure-test".as_ptr(),
                target.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        if done != 0 {
            return Err(format!("cannot mount a tmpfs: {}", std::io::Error::last_os_error()));
        }
        place.mounted = true;
        Ok(place)
    }

    /// A file of this length in it, all of it a hole.
    pub fn file(&self, len: usize) -> std::fs::File {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.path.join("file"))
            .unwrap();
        file.set_len(len as u64).unwrap();
        file
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.mounted {
            let target = std::ffi::CString::new(self.path.to_str().unwrap()).unwrap();
            // SAFETY: a NUL-terminated string. Detached, because a mapping may still hold it.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
pub struct UffdRange {
    pub start: u64,
    pub len: u64,
    pub mode: u64,
    pub out: i64,
}

/// The reaction to a touch of a missing page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// The program gets SIGBUS, and the kernel an error.
    Sigbus,
    /// The program and the kernel wait for [`fill_with_zeros`].
    Waits,
}

/// Watches the pages for missing ones.
pub fn watch(raw: &Raw, first: usize, pages: usize, touch: Touch) -> Result<OwnedFd, String> {
    const SIGBUS_FEATURE: u64 = 1 << 7;
    const USER_MODE_ONLY: i64 = 1;
    let (flags, features) = match touch {
        Touch::Sigbus => (USER_MODE_ONLY, SIGBUS_FEATURE),
        Touch::Waits => (0, 0),
    };
    // SAFETY: plain numbers; the ioctls' arguments have the kernel's layout and outlive them.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC as i64);
        if fd < 0 {
            return Err(format!("no userfaultfd: errno {}", errno()));
        }
        let fd = OwnedFd::from_raw_fd(fd as i32);
        let mut api = UffdApi { api: 0xAA, features, ioctls: 0 };
        if libc::ioctl(fd.as_raw_fd(), 0xC018_AA3F_u32 as _, &mut api) != 0 {
            return Err(format!("UFFDIO_API: errno {}", errno()));
        }
        let (start, len) = (raw.page(first) as u64, (pages * PAGE) as u64);
        let mut range = UffdRange { start, len, mode: 1, out: 0 };
        if libc::ioctl(fd.as_raw_fd(), 0xC020_AA00_u32 as _, &mut range) != 0 {
            return Err(format!("UFFDIO_REGISTER: errno {}", errno()));
        }
        Ok(fd)
    }
}

/// Fills missing pages that are watched, and wakes the threads that wait for them.
pub fn fill_with_zeros(watch: &OwnedFd, raw: &Raw) {
    let mut range = UffdRange { start: raw.start as u64, len: raw.len as u64, mode: 0, out: 0 };
    // SAFETY: the argument has the kernel's layout and outlives the call.
    unsafe { libc::ioctl(watch.as_raw_fd(), 0xC020_AA04_u32 as _, &mut range) };
}
