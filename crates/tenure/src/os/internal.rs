//! Memory that is listed as if it were a file: what lives on mounts of the kernel's own.
//!
//! Its names (`/memfd:x (deleted)`, `/SYSV00000000 (deleted)`) are paths that a file on a disk can have
//! as well. The device is what no such file has.

use super::apart::{self, Congruent};
use super::{maps, mounts, page_size, reserve};
use crate::range::PageRange;
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{AtomicU64, Ordering};

/// For the whole process: the device of the kernel's own tmpfs and a bit that says that it is known. No lock: a child of fork
/// could find it held for ever.
static SHMEM: AtomicU64 = AtomicU64::new(0);
const KNOWN: u64 = 1 << 63;

/// Whether it is the device of the tmpfs that holds memfds, System V and shared anonymous memory, and
/// nothing else. Shared anonymous memory of our own shows which that is (10 µs, once).
pub(crate) fn is_shmem(device: (u32, u32)) -> bool {
    let key = |(major, minor): (u32, u32)| KNOWN | u64::from(major) << 32 | u64::from(minor);
    if SHMEM.load(Ordering::Relaxed) == 0 {
        if let Some(found) = shmem_device() {
            SHMEM.store(key(found), Ordering::Relaxed);
        }
    }
    SHMEM.load(Ordering::Relaxed) == key(device)
}

fn shmem_device() -> Option<(u32, u32)> {
    let any = Congruent::aligned(page_size());
    let at = apart::map(page_size(), any, ProtFlags::empty(), MapFlags::SHARED).ok()?;
    let page = PageRange::new(at, at + page_size());
    let mut device = None;
    let looked = maps::each_mapping(page, |mapping| device = Some(mapping.device));
    // SAFETY: mapped above, and nobody else knows of it.
    let _ = unsafe { reserve::unmap(page) };
    looked.ok().and(device)
}

/// Whether a mapping of this name and device is `memfd_secret` memory: its file system is never mounted.
pub(crate) fn is_secret(name: &str, device: (u32, u32)) -> bool {
    name.starts_with("/secretmem") && mounts::is_unmounted(device)
}
