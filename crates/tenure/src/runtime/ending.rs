//! The end of all threads of tenure, when the program asks for it.

use super::lock::assert_none_held;
use super::{fork, refills, services, worker};
use std::time::{Duration, Instant};

/// A thread that does not say within this time that it ends is in a long system call.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Ends all threads, and waits until the kernel no longer counts them. `false`: an object with a
/// refill function needs them, and none was ended, or one has not ended in time.
pub(crate) fn end_threads() -> bool {
    // A child that is made meanwhile has no thread that is ending.
    fork::watch();
    assert_none_held();
    let until = Instant::now() + PATIENCE;
    // The background thread last: the services' threads use its descriptors.
    refills::end(until, || services::end_threads(until) && worker::stop(until))
}
