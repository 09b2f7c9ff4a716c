//! Which values stay when the cache may not grow.
//!
//! A new value is on *probation*: its segment is the first to be emptied. A value that was used
//! meanwhile moves to the *protected* part, and the others leave a [ghost](super::ghosts). A value
//! that comes back while its ghost is there, once or twice in a row, is protected at once. When the
//! oldest protected segment is emptied, its used values move to the newest one, and each move takes
//! a use from them (S3-FIFO, on segments). So one scan washes out no more than probation. The
//! [trials] choose the [settings](Settings).

#![allow(unsafe_code, reason = "one thread at a time has the trials")]

use super::ghosts::Ghosts;
use super::place::MOST_USES;
use super::trials::{self, Settings, Size, Trials, SETTINGS, START, VALUES};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// See the module's head.
pub(super) struct Policy {
    /// The policy plays a key in the trials if its mixed hash is below this. 0 before the first
    /// segment is full.
    sampled_below: AtomicU32,
    /// The number of the settings in use.
    settings: AtomicUsize,
    /// The bytes that a value takes. 1: not known.
    average: AtomicU32,
    /// The bytes and values of the segments that `average` comes from, two `f32`.
    seen: AtomicU64,
    /// Bytes of the cache, in proportion to the sample: the size of each trial's cache.
    room: AtomicU64,
    /// The cache has evicted nothing so far.
    grows: AtomicBool,
    ghosts: Ghosts,
    /// A thread plays a request in the trials, or makes them. Other threads do not wait for it. If
    /// another thread forks meanwhile, the flag stays set in the child: the settings stay as they
    /// are there.
    is_playing: AtomicBool,
    trials: UnsafeCell<Option<Trials>>,
}

// SAFETY: `trials` is the only field that is not `Sync`. Only the thread that has set `is_playing`
// uses it, and any thread may use its contents.
unsafe impl Sync for Policy {}

#[inline]
fn mixed(hash: u32) -> u32 {
    // The high bits of the result decide. They depend on all bits of the hash, so a sample has keys
    // of every slot and shard.
    hash.wrapping_mul(0x9E37_79B1)
}

impl Policy {
    pub fn new() -> Policy {
        Policy {
            sampled_below: AtomicU32::new(0),
            settings: AtomicUsize::new(START),
            average: AtomicU32::new(1),
            seen: AtomicU64::new(0),
            room: AtomicU64::new(0),
            grows: AtomicBool::new(true),
            ghosts: Ghosts::new(),
            is_playing: AtomicBool::new(false),
            trials: UnsafeCell::new(None),
        }
    }

    fn settings(&self) -> Settings {
        SETTINGS[self.settings.load(Ordering::Relaxed)]
    }

    /// Returns whether the caller should [`play`](Policy::play) requests for this key.
    #[inline]
    pub fn samples(&self, hash: u32) -> bool {
        mixed(hash) < self.sampled_below.load(Ordering::Relaxed)
    }

    /// As [`Policy::samples`], for a get of a value with this many uses. While the cache grows, every
    /// trial has all values, so a use matters only as long as it is counted.
    #[inline]
    pub fn samples_use(&self, hash: u32, uses: u32) -> bool {
        self.samples(hash) && (uses < MOST_USES || !self.grows.load(Ordering::Relaxed))
    }

    /// Plays a request in the trials, unless another thread does so.
    #[cold]
    pub fn play(&self, hash: u32, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let size = Size {
            room: self.room.load(Ordering::Relaxed),
            average: self.average.load(Ordering::Relaxed),
            grows: self.grows.load(Ordering::Relaxed),
        };
        self.with_trials(|trials| {
            if let Some(trials) = trials {
                let best = trials.request(hash, bytes, size);
                self.settings.store(best, Ordering::Relaxed);
            }
        });
    }

    fn with_trials(&self, change: impl FnOnce(&mut Option<Trials>)) {
        if self.is_playing.swap(true, Ordering::Acquire) {
            return;
        }
        // SAFETY: this thread has set `is_playing`, so no other thread uses the trials until it is
        // cleared below. A signal handler on this thread that comes here meanwhile also finds it
        // set.
        change(unsafe { &mut *self.trials.get() });
        self.is_playing.store(false, Ordering::Release);
    }

    /// Prepares an eviction, or follows the cache as it `grows`. The cache has `bytes`. A segment,
    /// which is to be emptied or was filled just now, has `values` values in `filled` bytes.
    /// Allocates; under no lock.
    #[cold]
    #[inline(never)]
    pub fn follow(&self, bytes: u64, values: u32, filled: usize, grows: bool) {
        if values > 0 {
            self.see(values, filled, bytes);
        }
        let average = self.average.load(Ordering::Relaxed);
        if average == 1 {
            // The average length of the values is not known yet.
            return;
        }
        let values = (bytes / u64::from(average)).max(1);
        if !grows {
            self.ghosts.fit(values, bytes);
            self.grows.store(false, Ordering::Relaxed);
        }
        let wanted = (VALUES << 32) / values.max(VALUES + 1);
        let below = u64::from(self.sampled_below.load(Ordering::Relaxed));
        let fits = below > wanted / 2 && below / 2 < wanted;
        if !fits {
            self.with_trials(|trials| {
                match trials {
                    Some(trials) => trials.thin(|hash| u64::from(mixed(hash)) < wanted),
                    None => *trials = Trials::new(),
                }
                self.sampled_below.store(wanted as u32, Ordering::Relaxed);
            });
        }
        let below = u64::from(self.sampled_below.load(Ordering::Relaxed));
        let room = (u128::from(bytes) * u128::from(below)) >> 32;
        self.room.store(room as u64, Ordering::Relaxed);
    }

    /// Counts a segment in the average. Segments count less by and by, as the cache replaces all
    /// its bytes: a few large values, each in a segment of its own, must not look like all values.
    fn see(&self, values: u32, filled: usize, bytes: u64) {
        let (values, filled) = (values as f32, filled as f32);
        let stays = 1.0 - (filled / bytes.max(1) as f32).min(1.0);
        let pack = |[bytes, values]: [f32; 2]| {
            u64::from(bytes.to_bits()) << 32 | u64::from(values.to_bits())
        };
        let unpack = |seen: u64| [f32::from_bits((seen >> 32) as u32), f32::from_bits(seen as u32)];
        let add = |seen: u64| {
            let [bytes, before] = unpack(seen);
            Some(pack([bytes * stays + filled, before * stays + values]))
        };
        let _ = self.seen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let [bytes, values] = unpack(self.seen.load(Ordering::Relaxed));
        let average = (bytes / values).clamp(2.0, (1 << 30) as f32);
        self.average.store(average as u32, Ordering::Relaxed);
    }

    /// Returns whether probation has more than its part: `bytes` of the cache's `all`.
    pub fn is_full(&self, bytes: u64, all: u64) -> bool {
        bytes > all / 1024 * self.settings().probation
    }

    /// Returns how many uses keep a value of this length.
    pub fn cost(&self, bytes: usize) -> u32 {
        trials::cost(bytes, self.average.load(Ordering::Relaxed))
    }

    /// Returns the uses that are left to a protected value of this cost after it moved.
    pub fn left(&self, uses: u32, cost: u32) -> u32 {
        self.settings().left(uses, cost)
    }

    /// Notes that the cache evicted a value of this hash and length. A protected value leaves no
    /// ghost: in a loop, each value that comes back would evict the next one that the loop needs.
    pub fn evicted(&self, hash: u32, bytes: usize, was_protected: bool) {
        self.ghosts.pass(bytes);
        if !was_protected {
            self.ghosts.add(hash);
        }
    }

    /// Returns whether a new value of this hash and length is protected at once.
    pub fn comes_back(&self, hash: u32, bytes: usize) -> bool {
        let Settings { memory, twice, .. } = self.settings();
        self.ghosts.take(hash, memory, twice) && trials::comes_back(self.cost(bytes))
    }

    /// Takes these settings, and keeps the trials from choosing others, until the trials
    /// [may choose](Policy::lets_trials_choose) again.
    #[cfg(test)]
    pub fn holds_to(&self, settings: usize) {
        self.is_playing.store(true, Ordering::Relaxed);
        self.settings.store(settings, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub fn lets_trials_choose(&self) {
        self.is_playing.store(false, Ordering::Relaxed);
    }

    /// Returns the bytes that the policy takes.
    pub fn bytes(&self) -> u64 {
        let trials = self.sampled_below.load(Ordering::Relaxed) > 0;
        self.ghosts.bytes() + if trials { Trials::BYTES } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_as_large_as_trials_want_it() {
        let policy = Policy::new();
        let hashes = || (0..100_000u32).map(|key| key.wrapping_mul(0x85EB_CA6B));
        assert!(!hashes().any(|hash| policy.samples(hash)), "nothing was evicted");
        policy.follow(100_000 * 500, 1000, 500_000, false);
        let sampled = hashes().filter(|hash| policy.samples(*hash)).count() as u64;
        assert!((VALUES / 2..VALUES * 2).contains(&sampled), "{sampled} of 100000");
        assert!(policy.bytes() < 100_000 * 5, "{} bytes", policy.bytes());
    }

    #[test]
    fn nobody_waits_for_a_thread_that_plays() {
        let policy = Policy::new();
        policy.follow(1 << 20, 10, 1000, false);
        policy.is_playing.store(true, Ordering::Relaxed);
        let hash = (0..u32::MAX).find(|hash| policy.samples(*hash)).unwrap();
        policy.play(hash, 100);
        policy.follow(64 << 20, 10, 1000, false);
        assert_eq!(policy.settings(), SETTINGS[START]);
    }

    /// Else a value that was used once would stay for ever.
    #[test]
    fn each_move_takes_the_uses_that_a_value_costs() {
        let policy = Policy::new();
        let left = |uses, cost| policy.left(uses, cost);
        assert_eq!([left(3, 1), left(3, 2), left(1, 1), left(0, 1)], [2, 1, 0, 0]);
    }
}
