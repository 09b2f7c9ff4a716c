//! The machine's clock, as a number that fits an atomic.

use rustix::time::{clock_gettime, ClockId};
use std::time::Duration;

/// Returns the time since the machine's start. A forked child may live in a time namespace whose
/// clock is behind its parent's.
pub(crate) fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
