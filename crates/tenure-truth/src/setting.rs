//! Settings of this whole process, chosen by its configuration.

use crate::tally::{add, tally};
use crate::wrong;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Purges are detected by words: touching a purged page reads zeros, and volatile memory is not
/// written.
pub static WORDS: AtomicBool = AtomicBool::new(false);
/// The errno with which system calls are made to fail; 0: none.
pub static INJECTED: AtomicI32 = AtomicI32::new(0);
/// Children of fork may share pages.
pub static FORKS: AtomicBool = AtomicBool::new(false);
/// Memory may be short.
pub static SHORT: AtomicBool = AtomicBool::new(false);
/// Descriptors are closed.
pub static CLOSES: AtomicBool = AtomicBool::new(false);
/// Children find another time.
pub static JUMPS: AtomicBool = AtomicBool::new(false);
/// Offered memory was not watched for a time, so all of it counts as lost: in the child of a raw
/// clone, and in one that has closed its descriptors.
pub static UNWATCHED: AtomicBool = AtomicBool::new(false);
/// When the run ends, in the clock of `sys::now_ms`.
pub static END_MS: AtomicU64 = AtomicU64::new(0);

/// Whether a setting holds.
pub fn is(setting: &AtomicBool) -> bool {
    setting.load(Ordering::Relaxed)
}

/// Whether a touch of a purged page raises SIGBUS at this moment.
pub fn touches_raise() -> bool {
    !is(&WORDS) && !is(&UNWATCHED)
}

/// Tries until it works, if calls are made to fail; once otherwise.
pub fn persist(attempt: impl Fn() -> bool) -> bool {
    let tries = if INJECTED.load(Ordering::Relaxed) != 0 { 200 } else { 1 };
    (0..tries).any(|n| {
        if n > 0 {
            crate::sys::nap_us(300);
        }
        attempt()
    })
}

/// Judges an error: `allowed` are the errnos that the documentation names for the driver's call.
pub fn judge(call: &str, error: &tenure::Error, allowed: &[i32]) {
    add(&tally().errors, 1);
    let errno = error.errno();
    let injected = INJECTED.load(Ordering::Relaxed);
    let excused = allowed.contains(&errno)
        || (injected != 0
            && [injected, libc::ENOMEM, libc::EIO, libc::EOPNOTSUPP].contains(&errno))
        || (is(&SHORT) && errno == libc::ENOMEM);
    if !excused {
        wrong!("{call} failed with errno {errno}: {error}");
    }
}
