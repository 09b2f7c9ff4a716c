//! One report for a process and those that it forks: what a child has counted is added to its ancestor's report when
//! the child ends.
//!
//! The ancestor is the process in which this library was loaded; the sums lie in memory that its children share. A
//! child that ends after its ancestor, and one that has become another program by `exec`, reports by itself.

#![allow(
    unsafe_code,
    reason = "shares memory with the children, and asks whether a process is there"
)]

use crate::{counters, keeper};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// What a report counts besides [`counters`].
pub const TOTALS: usize = 11;

/// In memory that the processes share. Zeros at first.
struct Sums {
    /// The ancestor has made its report.
    is_closed: AtomicBool,
    /// Children that have ended.
    ended: AtomicU64,
    counts: [AtomicU64; counters::COUNT],
    totals: [AtomicU64; TOTALS],
}

struct Family {
    /// Null: there is no such memory.
    sums: AtomicPtr<Sums>,
    /// The ancestor.
    head: AtomicI32,
    /// Children that have ended, and their totals, as this process has taken them over.
    ended: AtomicU64,
    totals: [AtomicU64; TOTALS],
}

/// For the whole process: it has one report.
static FAMILY: Family = Family {
    sums: AtomicPtr::new(std::ptr::null_mut()),
    head: AtomicI32::new(0),
    ended: AtomicU64::new(0),
    totals: [const { AtomicU64::new(0) }; TOTALS],
};

/// In the constructor: this process is an ancestor.
pub fn begin() {
    use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let at = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            size_of::<Sums>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
        )
    };
    if let Ok(at) = at {
        FAMILY.sums.store(at.cast(), Ordering::Relaxed);
        FAMILY.head.store(keeper::pid(), Ordering::Relaxed);
    }
}

fn sums() -> Option<&'static Sums> {
    // SAFETY: null, or mapped in the constructor for the process's lifetime and its children's; zeros are valid, and all
    // fields are atomics.
    unsafe { FAMILY.sums.load(Ordering::Relaxed).as_ref() }
}

/// In a child.
pub fn restart_in_child() {
    FAMILY.ended.store(0, Ordering::Relaxed);
    FAMILY.totals.iter().for_each(|total| total.store(0, Ordering::Relaxed));
}

/// At the end of a child: adds what it has counted to its ancestor's report. `false`: there is no ancestor that will
/// report.
pub fn tell_ancestor(totals: &[u64; TOTALS]) -> bool {
    let head = FAMILY.head.load(Ordering::Relaxed);
    let Some(sums) = sums().filter(|_| head != 0 && head != keeper::pid()) else { return false };
    // SAFETY: signal 0 is sent to nobody.
    let is_there = unsafe { libc::syscall(libc::SYS_kill, head, 0) } == 0;
    if !is_there || sums.is_closed.load(Ordering::Acquire) {
        return false;
    }
    counters::add_to(&sums.counts);
    for (sum, total) in sums.totals.iter().zip(totals) {
        sum.fetch_add(*total, Ordering::Relaxed);
    }
    sums.ended.fetch_add(1, Ordering::Release);
    true
}

/// Before a report of the ancestor's: takes over what its children have counted. Returns how many of them have ended so
/// far, and their totals.
pub fn take(is_last: bool) -> (u64, [u64; TOTALS]) {
    if let Some(sums) = sums().filter(|_| FAMILY.head.load(Ordering::Relaxed) == keeper::pid()) {
        if is_last {
            sums.is_closed.store(true, Ordering::Release);
        }
        FAMILY.ended.fetch_add(sums.ended.swap(0, Ordering::Acquire), Ordering::Relaxed);
        counters::take_from(&sums.counts);
        for (own, sum) in FAMILY.totals.iter().zip(&sums.totals) {
            own.fetch_add(sum.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    let totals = std::array::from_fn(|at| FAMILY.totals[at].load(Ordering::Relaxed));
    (FAMILY.ended.load(Ordering::Relaxed), totals)
}
