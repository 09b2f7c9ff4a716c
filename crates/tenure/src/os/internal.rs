//! Recognises memory that the kernel lists as a file: memory on mounts of the kernel's own.
//!
//! Its names (`/memfd:x (deleted)`, `/SYSV00000000 (deleted)`) are paths that a file on a disk can
//! have as well. But no such file has the device.

use super::apart::{self, Congruent};
use super::{maps, mounts, page_size, reserve, seccomp};
use crate::range::PageRange;
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{AtomicU64, Ordering};

/// For the whole process: all threads run on one kernel. The device of the kernel's own tmpfs, and
/// a bit that says that it is known. There is no lock, because a child of fork could find it held
/// for ever.
static SHMEM: AtomicU64 = AtomicU64::new(0);
/// For the whole process, as [`SHMEM`] is: the device of `memfd_secret`.
static SECRETS: AtomicU64 = AtomicU64::new(0);
const KNOWN: u64 = 1 << 63;

/// Returns whether it is the device of the tmpfs that holds memfds, System V and shared anonymous
/// memory, and nothing else. A shared anonymous mapping of tenure's own shows that device (10 µs,
/// once).
pub(crate) fn is_shmem(device: (u32, u32)) -> bool {
    is(device, &SHMEM, shmem_device) == Some(true)
}

/// `None`: the device that is `known` once it was found cannot be found.
fn is(device: (u32, u32), known: &AtomicU64, find: fn() -> Option<(u32, u32)>) -> Option<bool> {
    let key = |(major, minor): (u32, u32)| KNOWN | u64::from(major) << 32 | u64::from(minor);
    if known.load(Ordering::Relaxed) == 0 {
        known.store(key(find()?), Ordering::Relaxed);
    }
    Some(known.load(Ordering::Relaxed) == key(device))
}

fn shmem_device() -> Option<(u32, u32)> {
    let any = Congruent::aligned(page_size());
    let at = apart::map(page_size(), any, ProtFlags::empty(), MapFlags::SHARED).ok()?;
    let page = PageRange::new(at, at + page_size());
    let mut device = None;
    let looked = maps::each_mapping(page, |mapping| device = Some(mapping.device));
    // SAFETY: the page was mapped above, and no other code knows its address.
    let _ = unsafe { reserve::unmap(page) };
    looked.ok().and(device)
}

/// Returns whether a mapping of this name and device is `memfd_secret` memory, whose file system is
/// never mounted.
pub(crate) fn is_secret(name: &str, device: (u32, u32)) -> bool {
    name.starts_with("/secretmem") && mounts::is_unmounted(device)
}

/// Returns whether it is the device that holds `memfd_secret` memory, and nothing else. A file of
/// tenure's own shows that device (once). `None`: the kernel makes none, or a filter may kill for the
/// question.
pub(crate) fn holds_secrets(device: (u32, u32)) -> Option<bool> {
    is(device, &SECRETS, || {
        if seccomp::filters() != Some(0) {
            return None;
        }
        // SAFETY: the call takes flags only, and returns a new descriptor or an error.
        let number = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
        let number = i32::try_from(number).ok().filter(|number| *number >= 0)?;
        // SAFETY: the kernel has made the descriptor for this call alone.
        let file = unsafe { OwnedFd::from_raw_fd(number) };
        let device = rustix::fs::fstat(&file).ok()?.st_dev;
        Some((rustix::fs::major(device), rustix::fs::minor(device)))
    })
}
