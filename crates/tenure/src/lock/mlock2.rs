//! The uncounted calls on a range.

use super::change::{self, Uncleared};
use super::guard::refuse_volatile;
use super::{diagnose, ledger, Kinds, When};
use crate::error::{Error, ErrorKind, Result};
use crate::range::PageRange;

/// Locks the pages that `[addr, addr + len)` touches without a guard, as the kernel's `mlock2`
/// does. A second call adds nothing, and [`munlock2`] clears the lock of any caller.
///
/// The two kinds are kept apart: a range locked in both ways and then cleared of [`When::Now`] is
/// still locked on fault. A lock on fault does not weaken a full one, and a failure changes
/// nothing.
///
/// ```
/// use tenure::lock::{mlock2, munlock2, Kinds, When};
/// let memory = tenure::Mapping::anonymous(4096)?;
/// mlock2(memory.as_ptr(), 4096, When::OnFault)?;
/// munlock2(memory.as_ptr(), 4096, Kinds::ALL)?;
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As for [`lock`](super::lock()).
///
/// # Errors
/// As for [`lock`](super::lock()): `ENOMEM` or `EPERM` over the limit, `EINVAL` for a bad or
/// volatile range, and others. Nothing is changed then.
#[doc(alias = "mlock")]
#[doc(alias = "MLOCK_ONFAULT")]
pub fn mlock2(addr: *const u8, len: usize, when: When) -> Result<()> {
    let range = PageRange::touched("mlock2", addr, len)?;
    refuse_volatile("mlock2", range)?;
    change::take_uncounted("mlock2", range, when)
}

/// Clears these kinds of lock from the pages that `[addr, addr + len)` touches, whichever caller
/// has set them. Guards keep their locks. Pages that stay locked are not unlocked for an instant.
///
/// ```
/// use tenure::lock::{mlock2, munlock2, receipt, Kinds, When};
/// let memory = tenure::Mapping::anonymous(4096)?;
/// mlock2(memory.as_ptr(), 4096, When::Now)?;
/// mlock2(memory.as_ptr(), 4096, When::OnFault)?;
/// munlock2(memory.as_ptr(), 4096, Kinds { now: true, on_fault: false })?;
/// assert_eq!(receipt(memory.as_ptr(), 4096)?.on_fault_bytes(), 4096);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// One system call if nothing is locked. Otherwise a reading of `/proc/self/smaps` (10 ns for each
/// resident page of the process), and a call for each mapping that changes.
///
/// # Errors
/// After an error nothing is changed.
/// - `EINVAL`: empty or wrapping; `addr` is not a multiple of the page size; or no kind is named.
/// - `ENOMEM`: part of it is not mapped; a mapping cannot be split; or a full lock should become
///   one on fault, and `RLIMIT_MEMLOCK` was lowered below the locked bytes.
/// - Others: `/proc/self/smaps` could not be read.
#[doc(alias = "munlock")]
pub fn munlock2(addr: *const u8, len: usize, kinds: Kinds) -> Result<()> {
    let call = "munlock2";
    let range = PageRange::touched(call, addr, len)?;
    if kinds == Kinds::default() {
        let remedy = "name MLOCK_LOCKED, MLOCK_ONFAULT or both";
        return Err(Error::new(ErrorKind::BadRange, call, "no kind of lock is named", remedy)
            .on(range.start, len));
    }
    change::clear(&mut ledger::open(), range, kinds).map_err(|uncleared| match uncleared {
        Uncleared::Trouble(trouble) => diagnose::trouble(call, range, trouble),
        Uncleared::Refused(error) => diagnose::not_weakened(call, range, error),
    })
}
