//! What the bytes of a cache are worth, so that the kernel takes the least valuable one of several
//! caches first.
//!
//! A cache's hits save the time that its misses would cost. That time, in each second and for each
//! byte, is the worth of its memory. The cache measures what a miss costs in the calls that make
//! values, or the program sets it. When the worker is about to offer memory, it compares the
//! caches. Those whose bytes save at least [`TIMES`] as much as those of the least worthy are
//! *spared*: the kernel takes the others first (`tracking/spared.rs`). If there is one cache, or
//! the cost of only one is known, the worker compares nothing. A cache with its own priority takes
//! no part.

use super::segment::SEGMENT;
use crate::tracking::settings::Priority;
use crate::tracking::spared;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the worker compares caches, and for how long their hits count.
const PACE: Duration = Duration::from_millis(250);
const MEMORY: f64 = 4.0;
/// A cache must be worth this many times the least to be spared.
const TIMES: f64 = 2.0;
/// A cache with less memory has nothing to give.
const LEAST_BYTES: u64 = 4 * SEGMENT as u64;
/// The newest miss counts for an eighth of the average.
const NEWEST: u64 = 8;

/// What one cache knows of its worth.
pub(super) struct Worth {
    /// What a miss costs, in nanoseconds. 0: not known.
    cost: AtomicU64,
    /// The program has set the cost.
    is_given: bool,
    /// The program has set a priority.
    is_ranked: bool,
    /// Hits up to the last comparison. Only the worker changes this field and those that follow.
    hits: AtomicU64,
    /// Hits in a second, as the bits of an `f64`.
    rate: AtomicU64,
    /// Nanoseconds that a byte saves in a second, as the bits of an `f64`. 0: not known.
    worth: AtomicU64,
    is_spared: AtomicBool,
}

impl Worth {
    pub fn new(given: Option<Duration>, priority: Priority) -> Worth {
        Worth {
            cost: AtomicU64::new(given.map_or(0, nanoseconds)),
            is_given: given.is_some(),
            is_ranked: priority != Priority::DEFAULT,
            hits: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            worth: AtomicU64::new(0),
            is_spared: AtomicBool::new(false),
        }
    }

    /// Returns what a miss costs, in nanoseconds. 0: not known.
    pub fn cost(&self) -> u64 {
        self.cost.load(Ordering::Relaxed)
    }

    /// Returns whether the kernel should take other caches' memory first.
    pub fn is_spared(&self) -> bool {
        self.is_spared.load(Ordering::Relaxed)
    }

    /// Counts the time in which a value was made. If two threads count at once, one of them may be
    /// lost.
    pub fn made(&self, took: Duration) {
        if self.is_given {
            return;
        }
        let took = nanoseconds(took);
        let cost = match self.cost() {
            0 => took,
            before => before - before / NEWEST + took / NEWEST,
        };
        self.cost.store(cost.max(1), Ordering::Relaxed);
    }

    /// Returns the hits since the last comparison. `hits`: all hits so far.
    fn news(&self, hits: u64) -> u64 {
        hits.saturating_sub(self.hits.swap(hits, Ordering::Relaxed))
    }

    /// Follows the worth, after this many hits in this many seconds, of this many bytes.
    fn follow(&self, hits: u64, seconds: f64, bytes: u64) {
        let newest = (seconds / MEMORY).min(1.0);
        let before = f64::from_bits(self.rate.load(Ordering::Relaxed));
        let rate = before + (hits as f64 / seconds - before) * newest;
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
        let known = !self.is_ranked && bytes >= LEAST_BYTES;
        let worth = if known { rate * self.cost() as f64 / bytes as f64 } else { 0.0 };
        self.worth.store(worth.to_bits(), Ordering::Relaxed);
    }

    fn worth(&self) -> f64 {
        f64::from_bits(self.worth.load(Ordering::Relaxed))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    // Less than a nanosecond is also a known cost. A time over about a day counts as that long.
    (time.as_nanos().min(1 << 46) as u64).max(1)
}

/// What a comparison needs from a cache.
pub(super) trait Weighed {
    fn worth(&self) -> &Worth;
    /// Returns the hits so far.
    fn hits(&self) -> u64;
    /// Returns the bytes of its segments.
    fn footprint(&self) -> u64;
    /// Sets whether the kernel should take its segments after those of other caches.
    fn spare(&self, spared: bool);
}

/// Compares the caches. `each_cache` calls its argument with each of them. On the background
/// thread.
pub(super) fn compare(now: Instant, each_cache: impl Fn(&mut dyn FnMut(&dyn Weighed))) {
    thread_local! {
        /// Each thread's own: only the background thread uses it, and a new one begins anew.
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    let passed = LAST.get().map_or(PACE, |last| now.saturating_duration_since(last));
    if passed < PACE {
        return;
    }
    LAST.set(Some(now));
    let (mut caches, mut any_hits) = (0, false);
    each_cache(&mut |cache| {
        caches += usize::from(cache.worth().cost() > 0);
        any_hits |= cache.worth().hits.load(Ordering::Relaxed) != cache.hits();
    });
    // A process that rests shows nothing new.
    if !any_hits && (caches >= 2 || !spared::is_any()) {
        return;
    }
    if caches < 2 && !spared::is_any() {
        // Otherwise these hits would count as recent hits once there is another cache.
        each_cache(&mut |cache| _ = cache.worth().news(cache.hits()));
        return;
    }
    let mut least = f64::INFINITY;
    each_cache(&mut |cache| {
        let worth = cache.worth();
        worth.follow(worth.news(cache.hits()), passed.as_secs_f64(), cache.footprint());
        // A cache without any hit is worth the least possible.
        if worth.cost() > 0 && !worth.is_ranked && cache.footprint() >= LEAST_BYTES {
            least = least.min(worth.worth());
        }
    });
    let mut any = false;
    each_cache(&mut |cache| {
        let worth = cache.worth().worth();
        let spared = worth > 0.0 && worth >= TIMES * least;
        cache.worth().is_spared.store(spared, Ordering::Relaxed);
        cache.spare(spared);
        any |= spared;
    });
    spared::set_any(any);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake {
        worth: Worth,
        hits: u64,
        bytes: u64,
        is_spared: Cell<bool>,
    }

    impl Weighed for Fake {
        fn worth(&self) -> &Worth {
            &self.worth
        }
        fn hits(&self) -> u64 {
            self.hits
        }
        fn footprint(&self) -> u64 {
            self.bytes
        }
        fn spare(&self, spared: bool) {
            self.is_spared.set(spared);
        }
    }

    fn cache(cost_us: u64, priority: Priority, hits: u64, mib: u64) -> Fake {
        let given = (cost_us > 0).then(|| Duration::from_micros(cost_us));
        let worth = Worth::new(given, priority);
        Fake { worth, hits, bytes: mib << 20, is_spared: Cell::new(false) }
    }

    /// Returns which of the caches are spared after one comparison, on a thread that has made none.
    fn spared(caches: Vec<Fake>) -> Vec<bool> {
        std::thread::spawn(move || {
            compare(Instant::now(), |each| caches.iter().for_each(|cache| each(cache)));
            caches.iter().map(|cache| cache.is_spared.get()).collect()
        })
        .join()
        .unwrap()
    }

    const DEFAULT: Priority = Priority::DEFAULT;

    #[test]
    fn what_saves_twice_as_much_for_each_byte_is_spared() {
        let of = |caches: &[(u64, u64, u64)]| {
            let cache = |&(cost, hits, mib): &(u64, u64, u64)| cache(cost, DEFAULT, hits, mib);
            spared(caches.iter().map(cache).collect())
        };
        // Cost, hits, MiB.
        assert_eq!(of(&[(1000, 500, 64)]), [false], "one cache");
        assert_eq!(of(&[(1000, 500, 64), (100, 500, 64)]), [true, false], "ten times the cost");
        assert_eq!(of(&[(100, 500, 64), (100, 5000, 64)]), [false, true], "ten times the hits");
        assert_eq!(of(&[(100, 500, 640), (100, 500, 64)]), [false, true], "a tenth of the bytes");
        assert_eq!(of(&[(100, 500, 64), (150, 500, 64)]), [false, false], "about as much");
        assert_eq!(of(&[(0, 500, 64), (150, 500, 64)]), [false, false], "one cost is not known");
        assert_eq!(of(&[(100, 0, 64), (1, 5, 64)]), [false, true], "no hit at all");
        assert_eq!(of(&[(10, 5, 2), (1000, 5, 64)]), [false, false], "one has nothing to give");
        assert_eq!(of(&[(1, 9, 64), (10, 9, 64), (100, 9, 64)]), [false, true, true]);
    }

    #[test]
    fn hits_from_before_there_was_a_cache_to_compare_with_do_not_count() {
        let mut caches = [cache(100, DEFAULT, 0, 64), cache(100, DEFAULT, 0, 64)];
        let begun = Instant::now();
        for look in 0..4000 {
            caches.iter_mut().for_each(|cache| cache.hits += 250);
            // The second cache is made late.
            let there = if look < 3990 { 1 } else { 2 };
            caches[1].hits *= there - 1;
            compare(begun + PACE * look, |each| {
                caches[..there as usize].iter().for_each(|cache| each(cache));
            });
        }
        assert!(caches.iter().all(|cache| !cache.is_spared.get()));
    }

    #[test]
    fn a_priority_comes_before_worth() {
        let low = cache(1000, Priority::LOWEST, 500, 64);
        assert_eq!(spared(vec![low, cache(100, DEFAULT, 500, 64)]), [false, false]);
    }

    #[test]
    fn what_is_measured_follows_and_what_is_given_stays() {
        let measured = Worth::new(None, DEFAULT);
        assert_eq!(measured.cost(), 0);
        (0..100).for_each(|_| measured.made(Duration::from_micros(80)));
        assert_eq!(measured.cost(), 80_000);
        (0..100).for_each(|_| measured.made(Duration::from_micros(800)));
        assert!((790_000..=800_000).contains(&measured.cost()), "{}", measured.cost());
        let given = Worth::new(Some(Duration::ZERO), DEFAULT);
        given.made(Duration::from_secs(1));
        assert_eq!(given.cost(), 1, "known, however little");
    }
}
