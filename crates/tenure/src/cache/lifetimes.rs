//! How long values live: by the cache's settings, or by their own time.

use super::header::{Times, TIME};
use crate::os::clock;
use std::time::Duration;

/// The largest step in which the cache notes uses of values, in milliseconds.
const STEP: u64 = 1000;

/// The cache's settings of times.
pub(super) struct Lifetimes {
    to_live_ms: Option<u64>,
    idle: Option<Idle>,
}

/// A time to idle. The cache notes a use only if the last note is a step old, so that few gets
/// write.
#[derive(Clone, Copy)]
struct Idle {
    ms: u64,
    step: u64,
}

/// What a value's times mean now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    Over,
    Alive,
    /// Alive, and the caller should note a use now.
    AliveUnused(u64),
}

/// Returns a time in milliseconds. A time that does not fit means for ever.
fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Lifetimes {
    pub fn new(to_live: Option<Duration>, to_idle: Option<Duration>) -> Lifetimes {
        let idle = to_idle.map(in_ms).map(|ms| Idle { ms, step: (ms / 4).clamp(ms.min(1), STEP) });
        Lifetimes { to_live_ms: to_live.map(in_ms), idle }
    }

    /// Returns the bytes of the times of a value that ends.
    pub fn bytes(&self) -> usize {
        TIME * if self.idle.is_some() { 2 } else { 1 }
    }

    /// Returns whether the cache notes uses of values.
    #[inline]
    pub fn has_idle(&self) -> bool {
        self.idle.is_some()
    }

    /// Returns whether every value has times.
    pub fn of_all(&self) -> bool {
        self.to_live_ms.is_some() || self.idle.is_some()
    }

    /// Returns the times of a value that is put in now. `own`: its own time to live.
    pub fn begin(&self, own: Option<Duration>) -> Option<Times> {
        let to_live = own.map(in_ms).or(self.to_live_ms);
        if to_live.is_none() && self.idle.is_none() {
            return None;
        }
        let now = now_ms();
        let deadline = to_live.map_or(u64::MAX, |ms| now.saturating_add(ms));
        Some(Times { deadline, used: if self.has_idle() { now } else { 0 } })
    }

    pub fn age(&self, times: Times) -> Age {
        self.age_at(times, now_ms())
    }

    pub fn is_over(&self, times: Times) -> bool {
        self.age(times) == Age::Over
    }

    fn age_at(&self, times: Times, now: u64) -> Age {
        if times.deadline <= now {
            return Age::Over;
        }
        let Some(Idle { ms, step }) = self.idle else { return Age::Alive };
        // Another thread may have noted a later moment.
        let unused = now.saturating_sub(times.used);
        // The last use may be almost a step later than the note.
        if unused >= ms.saturating_add(step) {
            Age::Over
        } else if unused >= step {
            Age::AliveUnused(now)
        } else {
            Age::Alive
        }
    }
}

/// Returns the kernel's clock in milliseconds. It does not count from the making of the cache: a
/// forked child may live in a time namespace whose clock is before that moment.
fn now_ms() -> u64 {
    clock::monotonic().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lifetimes(to_live: Option<u64>, to_idle: Option<u64>) -> Lifetimes {
        Lifetimes::new(to_live.map(Duration::from_millis), to_idle.map(Duration::from_millis))
    }

    proptest! {
        /// A value lives for the time to idle after its last use, and at most one step longer.
        #[test]
        fn idle_values_end_in_time(idle in 0u64..10_000, gaps in prop::collection::vec(0u64..12_000, 1..40)) {
            let all = lifetimes(None, Some(idle));
            let step = all.idle.unwrap().step;
            prop_assert_eq!(step == 0, idle == 0);
            let (mut times, mut used, mut now) = (Times { deadline: u64::MAX, used: 5 }, 5, 5);
            for gap in gaps {
                now += gap;
                let age = all.age_at(times, now);
                prop_assert!(age != Age::Over || now - used >= idle);
                prop_assert!(age == Age::Over || now - used < idle + step || step == 0 && idle == 0);
                match age {
                    Age::Over => break,
                    Age::Alive => {}
                    Age::AliveUnused(now) => times.used = now,
                }
                used = now;
            }
        }

        /// A time to live ends to the millisecond, with any time to idle.
        #[test]
        fn living_values_end_in_time(deadline in 0u64..10_000, idle in 10_001u64..20_000, now in 0u64..10_000) {
            for all in [lifetimes(None, None), lifetimes(None, Some(idle))] {
                let age = all.age_at(Times { deadline, used: 0 }, now);
                prop_assert_eq!(age == Age::Over, now >= deadline);
            }
        }
    }

    #[test]
    fn a_value_s_own_time_goes_before_the_cache_s() {
        let all = lifetimes(Some(1000), None);
        let own = all.begin(Some(Duration::from_secs(1 << 61))).unwrap();
        assert_eq!(own.deadline, u64::MAX);
        assert!(all.begin(None).unwrap().deadline <= now_ms() + 1000);
        assert_eq!(lifetimes(None, None).begin(None), None);
    }
}
