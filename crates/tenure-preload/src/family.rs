//! One report for a process and the processes that it forks. When a child ends, its counts are
//! added to its ancestor's report.
//!
//! The ancestor is the process in which this library was loaded. The sums lie in memory that its
//! children share. A child that ends after its ancestor reports by itself, and so does a child that
//! has become another program by `exec`.

#![allow(
    unsafe_code,
    reason = "shares memory with the children, and asks whether a process is there"
)]

use crate::kernel::kernel;
use crate::{counters, keeper};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// The number of totals in a report besides [`counters`].
pub const TOTALS: usize = 11;

/// Sums in memory that the processes share. Zeros at first.
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
    /// The ancestor's process number.
    head: AtomicI32,
    /// The children that have ended, and their totals, that this process has already taken over.
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

/// Called in the constructor: this process is an ancestor.
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
    // SAFETY: null, or mapped in the constructor for the lifetime of the process and its children.
    // Zeros are valid, and all fields are atomics.
    unsafe { FAMILY.sums.load(Ordering::Relaxed).as_ref() }
}

/// Called in a child.
pub fn restart_in_child() {
    FAMILY.ended.store(0, Ordering::Relaxed);
    FAMILY.totals.iter().for_each(|total| total.store(0, Ordering::Relaxed));
}

/// Called at the end of a child: adds its counts to its ancestor's report. `false`: there is no
/// ancestor that will report.
pub fn tell_ancestor(totals: &[u64; TOTALS]) -> bool {
    let head = FAMILY.head.load(Ordering::Relaxed);
    let Some(sums) = sums().filter(|_| head != 0 && head != keeper::pid()) else { return false };
    // SAFETY: signal 0 is not sent; the kernel only checks that the process exists.
    let is_there = unsafe { kernel!(libc::SYS_kill, head, 0) } == 0;
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

/// Called before a report of the ancestor: takes over the counts of its children. Returns how many
/// of them have ended so far, and their totals.
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
