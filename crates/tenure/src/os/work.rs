//! The processor time of a piece of work. A background thread rests in proportion to it. On a busy machine
//! a thread that works for 1 ms takes 20 ms, and would rest for twenty times too long by the clock.

#![allow(
    unsafe_code,
    reason = "reads the thread's clock, where rustix panics if a filter refuses that"
)]

use std::time::{Duration, Instant};

/// Work of the calling thread that has begun.
pub(crate) struct Work {
    begun: Instant,
    processor: Option<Duration>,
}

impl Work {
    pub fn begin() -> Work {
        Work { begun: Instant::now(), processor: processor_time() }
    }

    /// Returns how much processor time it has taken: a system call. Where a filter refuses that call (it
    /// may have come meanwhile), the time by the clock, which needs none.
    pub fn spent(&self) -> Duration {
        match (self.processor, processor_time()) {
            (Some(begun), Some(now)) => now.saturating_sub(begun),
            _ => self.begun.elapsed(),
        }
    }
}

fn processor_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a local.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    (done == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_is_no_work() {
        let work = Work::begin();
        std::thread::sleep(Duration::from_millis(100));
        assert!(work.spent() < Duration::from_millis(90), "{:?}", work.spent());
        assert!(work.spent() > Duration::ZERO);
    }

    #[test]
    fn a_filter_that_comes_meanwhile_makes_no_age_of_it() {
        for processor in [None, processor_time()] {
            let work = Work { begun: Instant::now(), processor };
            assert!(work.spent() < Duration::from_secs(60), "{:?}", work.spent());
        }
    }
}
