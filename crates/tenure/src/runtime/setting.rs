//! Settings that one thread may change while others read them without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number of bytes, or none. With none, tenure chooses.
pub(crate) struct Bytes(AtomicU64);

impl Bytes {
    const UNSET: u64 = u64::MAX;

    pub const fn unset() -> Self {
        Bytes(AtomicU64::new(Self::UNSET))
    }

    /// A program sets `u64::MAX` bytes for "no bound". The stored value is one less, because
    /// `u64::MAX` means unset.
    pub fn set(&self, bytes: Option<u64>) {
        let number = bytes.map_or(Self::UNSET, |bytes| bytes.min(Self::UNSET - 1));
        self.0.store(number, Ordering::Relaxed);
    }

    pub fn get(&self) -> Option<u64> {
        let number = self.0.load(Ordering::Relaxed);
        (number != Self::UNSET).then_some(number)
    }
}

/// A time, to the nanosecond. A time above 584 years is stored as 584 years.
pub(crate) struct Time(AtomicU64);

impl Time {
    pub const fn new(time: Duration) -> Self {
        assert!(time.as_secs() < u32::MAX as u64);
        Time(AtomicU64::new(time.as_nanos() as u64))
    }

    pub fn set(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(nanoseconds, Ordering::Relaxed);
    }

    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bound_is_not_unset() {
        let bytes = Bytes::unset();
        assert_eq!(bytes.get(), None);
        bytes.set(Some(u64::MAX));
        assert!(bytes.get() > Some(u64::MAX / 2));
        bytes.set(Some(0));
        assert_eq!(bytes.get(), Some(0));
        bytes.set(None);
        assert_eq!(bytes.get(), None);
    }

    #[test]
    fn a_long_time_stays_long() {
        let time = Time::new(Duration::from_millis(500));
        assert_eq!(time.get(), Duration::from_millis(500));
        for long in [Duration::MAX, Duration::from_secs(u64::MAX / 3)] {
            time.set(long);
            assert!(time.get() > Duration::from_secs(500 * 365 * 86_400), "{:?}", time.get());
        }
    }
}
