//! Locks: pages that the kernel does not page out, from now on or each from its first touch on.
//!
//! **For** secrets, and for data that a program must reach without waiting for a disk. **Not for**
//! memory that the kernel should be able to take when other programs need it, and not instead of
//! `memory.low` for a whole service.
//!
//! ```
//! # fn main() -> tenure::Result<()> {
//! use tenure::lock::{self, When};
//! let memory = tenure::Mapping::anonymous(64 << 10)?;
//! let whole = lock::lock(memory.as_ptr(), memory.len(), When::OnFault)?;
//! let first = lock::lock(memory.as_ptr(), 4096, When::Now)?; // another guard
//! drop(whole);
//! assert_eq!(first.receipt()?.full_bytes(), 4096);
//! # Ok(()) }
//! ```
//!
//! | you want | call |
//! | --- | --- |
//! | a range locked while a guard lives | [`lock`](fn@lock) |
//! | a large range usable at once, and resident soon | [`gradually()`] |
//! | the part of a range that was used last, up to a budget | [`within()`] |
//! | a buffer for a key or a password | [`Secret`] |
//! | to see which memory is really locked | [`receipt()`] |
//! | to know whether a lock would be allowed, and the lines that raise the limit | [`explain()`] |
//! | the calls as C has them, without a guard | [`mlock2()`], [`munlock2`], [`mlockall()`], [`munlockall2`], [`mmap_on_fault`] |
//!
//! Guards count: where two overlap and one is dropped, the pages of the other stay locked. The
//! kernel's own calls do not count: they set and clear kinds of lock, and leave the locks of
//! guards. A range is locked as a whole or not at all. After a failure every page is as it was
//! before, and the error names the cause, for which the kernel has only `ENOMEM`.
//!
//! # What the limit counts
//! The kernel charges the limit `RLIMIT_MEMLOCK` with the whole length when a range is locked,
//! touched or not, and once however many guards hold it. `CAP_IPC_LOCK` in the machine's first user
//! namespace lifts the limit. Locks belong to the process: a forked child has none, and guards do
//! nothing there.
//!
//! # What cannot be seen
//! tenure does not see plain `mlock` and `munlock` calls of other code on pages that are already
//! locked through this module. Pages that were locked before the first guard came stay locked when
//! the last one goes.
//! If the kernel refuses to unlock pages at a guard's end (`vm.max_map_count`), they stay locked, and a
//! later call for a lock of them tries again. What other code has locked there since, it unlocks.
//!
//! # What the kernel must have
//! `mlock2` (4.4). `PROCMAP_QUERY` (6.11) makes a lock cheaper.

mod account;
mod change;
mod claims;
mod diagnose;
mod explain;
mod forgotten;
mod gradually;
mod guard;
mod inspect;
mod kinds;
mod ledger;
mod map_on_fault;
mod mlock2;
mod mlockall;
mod receipt;
mod secret;
mod within;

pub use self::mlockall::{mlockall, munlockall2, Scope};
pub use account::{account, Account};
pub use explain::{explain, Explanation, Verdict};
pub(crate) use forgotten::Unmapping;
pub use gradually::{gradually, Gradual};
pub use guard::{lock, Lock};
pub use kinds::{Kinds, When};
pub use map_on_fault::{mmap, mmap_on_fault};
pub use mlock2::{mlock2, munlock2};
pub use receipt::{receipt, receipt_of_everything, Part, Receipt, State};
pub use secret::Secret;
pub use within::{within, Within, WithinStatus};

use crate::os::{maps, page_size};
use crate::range::PageRange;

/// Drops all claims on a range that is being unmapped, so that the next mapping there neither
/// inherits nor loses a lock. One load if nothing was locked through tenure. A signal handler and an
/// allocator may call it.
pub(crate) fn forget_unmapped(range: PageRange) -> Unmapping {
    ledger::forget_unmapped(range)
}

/// The kernel has not unmapped these parts of the range, which are in order: their locks are as before.
/// (Unless a thread has used locks meanwhile: then these pages stay locked until munlock(2).)
pub(crate) fn stays(unmapping: Unmapping, parts: &[PageRange]) {
    ledger::stays(unmapping, parts);
    // A mmap(2) may fail when the old mapping is gone: for huge pages, for a file that refuses, and
    // before Linux 6.12 at the limit of memory.
    let may_have_holes = |part: &&PageRange| !maps::is_mapped(**part);
    parts.iter().filter(may_have_holes).for_each(|part| forget_holes(*part));
}

/// Drops the claims on memory that is not mapped.
#[cold]
fn forget_holes(range: PageRange) {
    if may_be_locked(range) {
        ledger::forget_holes(|hole| each_hole(range, hole));
    }
}

fn each_hole(range: PageRange, hole: &mut dyn FnMut(PageRange)) {
    let mut tell = |start: usize, end: usize| {
        if start < end {
            hole(PageRange::new(start, end));
        }
    };
    let mut at = range.start;
    let listed = maps::each_mapping(range, |mapping| {
        tell(at, mapping.start.min(range.end));
        at = mapping.end;
    });
    match listed {
        Ok(()) => tell(at, range.end),
        // No descriptor is free, or there is no /proc: 130 ns for each page.
        Err(_) => {
            range.pieces(page_size()).filter(|page| !maps::is_mapped(*page)).for_each(hole);
        }
    }
}

/// Returns whether tenure may know of a lock in the range.
pub(crate) fn may_be_locked(range: PageRange) -> bool {
    ledger::may_know(range)
}
