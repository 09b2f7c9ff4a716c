//! The only place with unsafe system calls.
//!
//! All other modules call these functions. Each function documents its requirements and its
//! effects, so that the callers' reasoning rests on one contract. No function here decides policy.

#![allow(unsafe_code, reason = "makes the system calls")]

pub(crate) mod advise;
pub(crate) mod apart;
pub(crate) mod arena;
pub(crate) mod bell;
pub(crate) mod brief;
pub(crate) mod caught;
pub(crate) mod clock;
pub(crate) mod detach;
pub(crate) mod environment;
pub(crate) mod errno;
pub(crate) mod figures_page;
pub(crate) mod files;
pub(crate) mod fork;
pub(crate) mod fork_notes;
pub(crate) mod futex;
pub(crate) mod generation;
pub(crate) mod hugetlb;
pub(crate) mod internal;
pub(crate) mod kept;
pub(crate) mod kernel;
pub(crate) mod life_lock;
pub(crate) mod limits;
pub(crate) mod lock_on_fault;
pub(crate) mod lru;
pub(crate) mod mapped_files;
pub(crate) mod mapping_list;
pub(crate) mod maps;
pub(crate) mod maps_line;
pub(crate) mod memory_group;
pub(crate) mod mincore;
pub(crate) mod mlock;
pub(crate) mod mounts;
pub(crate) mod once;
pub(crate) mod own_memory;
pub(crate) mod own_pages;
pub(crate) mod own_table;
pub(crate) mod page_cache;
pub(crate) mod pagemap;
pub(crate) mod pagemap_scan;
pub(crate) mod populate;
pub(crate) mod pressure;
pub(crate) mod pressure_told;
pub(crate) mod probe;
pub(crate) mod quiet_write;
pub(crate) mod raw_map;
pub(crate) mod release;
pub(crate) mod reserve;
pub(crate) mod room_now;
pub(crate) mod seccomp;
pub(crate) mod shared_file;
pub(crate) mod sharers;
pub(crate) mod signal;
pub(crate) mod small_file;
pub(crate) mod smaps;
pub(crate) mod stack;
pub(crate) mod thp;
pub(crate) mod thread;
pub(crate) mod thread_creation;
pub(crate) mod tid;
pub(crate) mod touch;
pub(crate) mod trials;
pub(crate) mod uffd;
pub(crate) mod watched;
mod wiped;
pub(crate) mod words;
pub(crate) mod work;

use std::sync::atomic::{AtomicUsize, Ordering};

/// Size of a transparent huge page (a PMD's reach) on the architectures with 4 KiB pages.
///
/// With 16 or 64 KiB base pages a PMD has a larger reach. Ranges are still offered in pieces of
/// this size then. This splits nothing, because such a piece is smaller than the huge page that
/// `MADV_HUGEPAGE` would give, and the probe reports huge pages as absent.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// The size of a base page.
pub fn page_size() -> usize {
    /// For the whole process: the kernel has one size. There is no lock, which a forked child could
    /// find held: threads that come here together find one size.
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    match SIZE.load(Ordering::Relaxed) {
        0 => {
            let size = rustix::param::page_size();
            SIZE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}
