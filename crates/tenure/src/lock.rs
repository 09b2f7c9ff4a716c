//! Locking memory that is not volatile.
//!
//! A page cannot be both: locked memory must not be taken, volatile memory may be. The kernel would
//! let a range be locked after it was marked and then refuse to discard it; here it is an error, as
//! the other way round is in [`crate::volatile::mark`].

use crate::error::{Error, ErrorKind, Result};
use crate::os::mlock;
use crate::range::PageRange;
use crate::volatile;

/// When pages are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All of them now; they are made resident first.
    Now,
    /// Each when it is first touched (`MLOCK_ONFAULT`, 4.4+).
    OnFault,
}

/// Locks `[addr, addr + len)`, charged against `RLIMIT_MEMLOCK`.
///
/// # Errors
/// - `EINVAL`: empty, unaligned or wrapping; or part of it is volatile.
/// - `ENOMEM`: over the limit, not mapped, or too many mappings. As with the kernel's call, a leading
///   part may be locked then.
/// - `EPERM`: `RLIMIT_MEMLOCK` is 0 and the process lacks `CAP_IPC_LOCK`.
pub fn lock(addr: *const u8, len: usize, when: When) -> Result<()> {
    let range = PageRange::check("lock", addr, len)?;
    if volatile::is_volatile(addr, len) {
        let why = "part of it is volatile, so the kernel may take it";
        return Err(
            Error::new(ErrorKind::IsVolatile, "lock", why, "unmark it first").on(range.start, len)
        );
    }
    mlock::lock(range, when == When::OnFault)
        .map_err(|errno| Error::system("lock", "mlock2", errno).on(range.start, len))
}

/// Unlocks `[addr, addr + len)`, whoever locked it.
///
/// # Errors
/// `EINVAL`: empty, unaligned or wrapping. `ENOMEM`: part of it is not mapped.
pub fn unlock(addr: *const u8, len: usize) -> Result<()> {
    let range = PageRange::check("unlock", addr, len)?;
    mlock::unlock(range)
        .map_err(|errno| Error::system("unlock", "munlock", errno).on(range.start, len))
}
