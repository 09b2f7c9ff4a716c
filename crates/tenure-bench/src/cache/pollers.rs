//! Caches as programs have them today: a thread of the program changes the size according to the
//! free memory. Each gets the best that its rule can do: eviction at once, and freed memory given
//! back to the system (`malloc_trim`).

#![allow(unsafe_code, reason = "has the allocator give memory back")]

use super::beside::Looks;
use super::peers::Resizable;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The rule by which a size follows the free memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rule {
    /// CacheLib's memory monitor: below the lower bound of free memory the cache gives up 5 % of
    /// the distance, above the upper one it grows by as much. Its bounds are an eighth and a
    /// quarter of the limit here, the distance is that to the limit, and it looks ten times a
    /// second. CacheLib's own example looks every second.
    CacheLib,
    /// ClickHouse's userspace page cache: every 50 ms, the rest of 85 % of the limit beside the
    /// highest use by others in the last second.
    ClickHouse,
    /// Midas's rule: the free memory, less a margin of a sixteenth, every second.
    Midas,
}

impl Rule {
    pub const ALL: [Rule; 3] = [Rule::CacheLib, Rule::ClickHouse, Rule::Midas];

    pub fn name(self) -> &'static str {
        match self {
            Rule::CacheLib => "quick_cache, CacheLib's rule",
            Rule::ClickHouse => "quick_cache, ClickHouse's rule",
            Rule::Midas => "quick_cache, Midas's rule",
        }
    }

    fn period(self) -> Duration {
        Duration::from_millis(match self {
            Rule::CacheLib => 100,
            Rule::ClickHouse => 50,
            Rule::Midas => 1000,
        })
    }

    /// Resizes the cache until the stop flag is set.
    pub fn follow(self, cache: &Resizable, looks: &Looks<'_>, stop: &AtomicBool) {
        let mut others = Peak::new();
        while !stop.load(Ordering::Relaxed) {
            let (used, limit, held) = (looks.used(), looks.limit, cache.held());
            let size = match self {
                Rule::CacheLib => match limit.saturating_sub(used) {
                    free if free < limit / 8 => held.saturating_sub(limit / 20),
                    free if free > limit / 4 => held + limit / 20,
                    _ => held,
                },
                Rule::ClickHouse => {
                    let most = limit / 100 * 85;
                    most.saturating_sub(others.follow(used.saturating_sub(held)))
                }
                Rule::Midas => (held + limit.saturating_sub(used)).saturating_sub(limit / 16),
            };
            let size = size.clamp(limit / 32, limit);
            cache.resize(size);
            if size < held {
                // SAFETY: it only gives back pages that hold no block.
                unsafe { libc::malloc_trim(0) };
            }
            thread::sleep(self.period());
        }
    }
}

/// The highest of the last second, or of up to two.
struct Peak {
    of_seconds: [u64; 2],
    since: Instant,
}

impl Peak {
    fn new() -> Peak {
        Peak { of_seconds: [0; 2], since: Instant::now() }
    }

    fn follow(&mut self, now: u64) -> u64 {
        if self.since.elapsed() >= Duration::from_secs(1) {
            self.of_seconds = [0, self.of_seconds[0]];
            self.since = Instant::now();
        }
        self.of_seconds[0] = self.of_seconds[0].max(now);
        self.of_seconds[0].max(self.of_seconds[1])
    }
}
