//! Locking: pages that are not paged out, from now on or from their first touch on.
//!
//! [`lock`] gives a guard. Guards count: where two overlap, dropping one leaves the other's pages
//! locked, which the kernel's own calls do not. What cannot be locked whole is not locked at all:
//! after a failure every page is as it was before, and the error says which of the kernel's many
//! reasons for `ENOMEM` it was. [`receipt()`] shows what is locked in fact, and [`explain()`] what would
//! happen, with the lines to write where the limit is set.
//!
//! [`gradually()`] locks on fault at once and makes the pages resident behind the caller's back.
//! [`within()`] keeps the part of a range that was used last, up to a budget.
//!
//! [`mlock2`], [`munlock2`], [`mlockall`], [`munlockall2`] and [`mmap_on_fault`] are the uncounted
//! calls, as C has them: they set and clear kinds of lock, and never take a guard's.
//!
//! # What counts against what
//! The limit `RLIMIT_MEMLOCK` is charged with the whole length when a range is locked, touched or
//! not, once however many guards hold it. `CAP_IPC_LOCK` in the machine's first user namespace lifts
//! it. Locks belong to the process: a forked child has none, and guards do nothing there.
//!
//! # What cannot be seen
//! Plain `mlock` and `munlock` calls by other code, on pages that were locked through this module
//! before. What was locked before the first guard came is found, and stays when the last one goes.
//!
//! ```
//! # fn main() -> tenure::Result<()> {
//! use tenure::lock::{self, When};
//! let memory = tenure::Mapping::anonymous(64 << 10)?;
//! let whole = lock::lock(memory.as_ptr(), memory.len(), When::OnFault)?;
//! let secret = lock::lock(memory.as_ptr(), 4096, When::Now)?; // of another owner
//! drop(whole);
//! assert_eq!(secret.receipt()?.full_bytes(), 4096);
//! # Ok(()) }
//! ```

mod account;
mod all;
mod born;
mod cause;
mod change;
mod claims;
mod explain;
mod gradually;
mod guard;
mod kinds;
mod ledger;
mod look;
mod receipt;
mod unfilled;
mod within;

pub use account::{account, Account};
pub use all::{mlockall, munlockall2, Scope};
pub use born::{mmap, mmap_on_fault};
pub use explain::{explain, Explanation, Verdict};
pub use gradually::{gradually, Gradual};
pub use guard::{lock, Lock};
pub use kinds::{mlock2, munlock2};
pub use receipt::{receipt, receipt_of_everything, Part, Receipt, State};
pub use within::{within, Within, WithinStatus};

/// When pages are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// All of them now; they are made resident first.
    Now,
    /// Each when it is first touched (`MLOCK_ONFAULT`, 4.4+).
    OnFault,
}

/// Which kinds of lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kinds {
    /// Locks made with [`When::Now`], `mlock`, `mlockall(MCL_CURRENT)` or `MAP_LOCKED`.
    pub now: bool,
    /// Locks made with [`When::OnFault`], `MLOCK_ONFAULT`, `MCL_ONFAULT` or `MAP_LOCKONFAULT`.
    pub on_fault: bool,
}

impl Kinds {
    /// Both.
    pub const ALL: Kinds = Kinds { now: true, on_fault: true };

    fn has(self, when: When) -> bool {
        match when {
            When::Now => self.now,
            When::OnFault => self.on_fault,
        }
    }

    fn with(self, when: When) -> Kinds {
        match when {
            When::Now => Kinds { now: true, ..self },
            When::OnFault => Kinds { on_fault: true, ..self },
        }
    }

    fn without(self, other: Kinds) -> Kinds {
        Kinds { now: self.now && !other.now, on_fault: self.on_fault && !other.on_fault }
    }
}

/// Drops all claims on a range that is being unmapped, so that what is mapped there next neither inherits
/// nor loses a lock. Where nothing was locked through tenure, one load.
pub(crate) fn forget_unmapped(range: crate::range::PageRange) {
    if let Some(mut ledger) = ledger::open_if_any() {
        ledger.forget_unmapped(range);
    }
}
