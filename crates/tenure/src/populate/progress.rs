//! The progress and the result of a populate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The progress of a populate.
///
/// ```
/// use std::time::Duration;
/// use tenure::populate::{Access, Populate};
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// let populate = Populate::new(memory.as_ptr(), memory.len(), Access::Write);
/// populate.run_with(Duration::from_millis(100), |progress| {
///     println!("{} of {} bytes", progress.populated, progress.bytes);
/// })?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Progress {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes populated so far; never goes backwards.
    pub populated: u64,
    /// Time since it began.
    pub elapsed: Duration,
    /// Rate of about the last half second.
    pub bytes_per_second: u64,
}

/// The result of a populate.
///
/// ```
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// let report = memory.populate(0, 1 << 20, tenure::populate::Access::Write)?;
/// println!("{} bytes in {:?}", report.populated, report.elapsed);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// Bytes in the range.
    pub bytes: u64,
    /// Bytes that this call has populated. Pages that were there already count.
    pub populated: u64,
    /// Threads that worked.
    pub threads: usize,
    /// The time from beginning to end.
    pub elapsed: Duration,
    /// Address of the lowest page that this call has not populated; `None`: all are. Everything
    /// before it is populated, and so may be some pages after it.
    pub first_missing: Option<usize>,
}

/// Bytes done, and the two marks from which the rate is computed. Plain atomics: a child made by
/// fork may read them while a thread that it does not have was counting.
#[derive(Debug, Default)]
pub(super) struct Counter {
    done: AtomicU64,
    older: Mark,
    newer: Mark,
}

#[derive(Debug, Default)]
struct Mark {
    at: AtomicU64,
    done: AtomicU64,
}

const HALF_WINDOW: u64 = 250_000_000;

impl Counter {
    pub fn add(&self, bytes: u64, since_start: Duration) {
        let done = self.done.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let now = since_start.as_nanos() as u64;
        let newest = self.newer.at.load(Ordering::Relaxed);
        // The thread that wins moves the marks; a reader between the stores is off by one window.
        if now >= newest.saturating_add(HALF_WINDOW)
            && self
                .newer
                .at
                .compare_exchange(newest, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.older.at.store(newest, Ordering::Relaxed);
            self.older.done.store(self.newer.done.swap(done, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    pub fn progress(&self, bytes: u64, elapsed: Duration) -> Progress {
        let populated = self.done();
        let since =
            (elapsed.as_nanos() as u64).saturating_sub(self.older.at.load(Ordering::Relaxed));
        let of_late = populated.saturating_sub(self.older.done.load(Ordering::Relaxed));
        let rate = u128::from(of_late) * 1_000_000_000 / u128::from(since.max(1));
        Progress { bytes, populated, elapsed, bytes_per_second: rate.min(u64::MAX.into()) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_late() {
        let counter = Counter::default();
        let ms = Duration::from_millis;
        // A second at 1000 bytes a millisecond, a second at 10.
        (1..=1000).for_each(|i| counter.add(1000, ms(i)));
        let fast = counter.progress(2_000_000, ms(1000)).bytes_per_second;
        (1001..=2000).for_each(|i| counter.add(10, ms(i)));
        let slow = counter.progress(2_000_000, ms(2000)).bytes_per_second;
        assert!((900_000..1_100_000).contains(&fast), "{fast}");
        assert!((9_000..11_000).contains(&slow), "{slow}");
        // When no more bytes come, the rate falls.
        assert!(counter.progress(2_000_000, ms(9000)).bytes_per_second < 1_000);
    }
}
