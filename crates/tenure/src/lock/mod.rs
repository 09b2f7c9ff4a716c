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
mod unmaps;
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
pub(crate) use unmaps::{forget_unmapped, may_be_locked, stays};
pub use within::{within, Within, WithinStatus};
