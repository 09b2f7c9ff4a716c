//! How large a cache may be. Free memory lets it grow, and purges teach it where to stop.
//!
//! A cache that only grows makes the kernel discard what the program wants next: 800 MiB of cache
//! in 512 MiB of room had a hit rate of 0.61, where 480 MiB had 0.92. So the cache stays just below
//! what the kernel lets it keep, and replaces its own coldest values there.

use crate::os::room_now::Room;
use std::time::{Duration, Instant};

/// How long after a purge the cache tries to grow again if it knows of no free memory.
const QUIET: Duration = Duration::from_secs(1);
/// How often it then tries one more segment, and how often it asks for the free memory.
const PACE: Duration = Duration::from_millis(100);
/// Segments that a cache may have beyond its size: they take the values that survive an eviction.
const SPARE: u64 = 2;

pub(super) struct Growth {
    /// The bytes of a segment.
    segment: u64,
    /// The size that purges have allowed so far.
    target: u64,
    floor: u64,
    ceiling: u64,
    last_purge: Option<Instant>,
    last_try: Option<Instant>,
    heard: Option<Instant>,
    /// Bytes that were free for the cache when it asked last, less what it took since.
    available: u64,
    /// Bytes by which the cache may grow before it asks again: the free bytes, or none after a
    /// purge.
    allowance: u64,
    /// The memory limit of the process.
    limit: u64,
}

fn since(now: Instant, at: Option<Instant>) -> Duration {
    at.map_or(Duration::MAX, |at| now.saturating_duration_since(at))
}

impl Growth {
    pub fn new(segment: u64, floor: u64, ceiling: u64) -> Growth {
        Growth {
            segment,
            target: floor,
            floor,
            // The spare segments are also within what the program allows.
            ceiling: ceiling.saturating_sub(SPARE * segment).max(floor),
            last_purge: None,
            last_try: None,
            heard: None,
            available: 0,
            allowance: 0,
            limit: 0,
        }
    }

    /// Returns the size that the cache keeps to now.
    pub fn target(&self) -> u64 {
        self.target.min(self.ceiling)
    }

    /// Returns whether the caller should call [`Growth::hear`].
    pub fn is_due(&self, now: Instant) -> bool {
        since(now, self.heard) >= PACE
    }

    /// Takes over how much memory is free now. `offered` bytes of it are the cache's own.
    pub fn hear(&mut self, room: Room, offered: u64, now: Instant) {
        if self.is_due(now) {
            self.heard = Some(now);
            self.look(room, offered);
            self.allowance = self.available;
        }
    }

    /// As [`hear`](Self::hear), also just after a purge, and without leave to grow.
    pub fn look(&mut self, room: Room, offered: u64) {
        self.limit = room.limit;
        self.available = room.free.saturating_sub(offered).saturating_sub(self.margin());
    }

    /// Returns how many bytes are left free for others.
    fn margin(&self) -> u64 {
        (self.limit / 16).clamp(8 << 20, 1 << 30)
    }

    /// The kernel took `bytes` of the cache's `footprint`: the cache was too large by that much.
    pub fn purged(&mut self, bytes: u64, footprint: u64, now: Instant) {
        self.target = self.target.min(footprint).saturating_sub(bytes).max(self.floor);
        self.last_purge = Some(now);
        self.allowance = 0;
        self.heard = Some(now);
    }

    /// The cache gave `bytes` back.
    pub fn gave_back(&mut self, bytes: u64) {
        self.available = self.available.saturating_add(bytes);
        self.allowance = self.allowance.saturating_add(bytes);
    }

    /// Returns whether the cache may take one more segment.
    pub fn may_grow(&mut self, footprint: u64, now: Instant) -> bool {
        let bytes = self.segment;
        let grown = footprint + bytes;
        if grown > self.ceiling {
            return false;
        }
        if grown <= self.target {
            self.available = self.available.saturating_sub(bytes);
            return true;
        }
        if self.allowance >= bytes {
            self.allowance -= bytes;
        } else {
            let tries = since(now, self.last_purge) >= QUIET && since(now, self.last_try) >= PACE;
            if !tries {
                return false;
            }
            self.last_try = Some(now);
        }
        self.available = self.available.saturating_sub(bytes);
        self.target = grown;
        true
    }

    /// Returns whether the cache may take `bytes` for a large value. They must be free now: the
    /// caller writes them at once, and the kernel cannot take them meanwhile. `last`: the cache has
    /// nothing left to give up instead.
    pub fn may_take(&mut self, bytes: u64, footprint: u64, last: bool) -> bool {
        let grown = footprint + bytes;
        let wanted = last || grown <= self.target || bytes <= self.allowance;
        if grown > self.ceiling || bytes > self.available || !wanted {
            return false;
        }
        self.available -= bytes;
        self.allowance = self.allowance.saturating_sub(bytes);
        self.target = self.target.max(grown);
        true
    }

    /// Returns the largest memory that a value can get if the cache gives up everything except the
    /// `held` bytes of its `footprint`.
    pub fn most(&self, footprint: u64, held: u64) -> u64 {
        let given_up = footprint.saturating_sub(held);
        self.available.saturating_add(given_up).min(self.ceiling.saturating_sub(held))
    }

    /// Returns whether `bytes` are more than a quarter of the ceiling.
    pub fn is_much_of_ceiling(&self, bytes: u64) -> bool {
        bytes > self.ceiling / 4
    }

    /// Returns whether the cache may take one segment beyond its size for a moment.
    pub fn has_spare(&self, footprint: u64) -> bool {
        footprint + self.segment <= self.target() + SPARE * self.segment
    }

    /// Returns whether one more segment may be used, of memory that the cache has or may have. The
    /// segment that values move to does not count.
    pub fn has_room(&self, used: u64) -> bool {
        used <= self.target()
    }

    /// Returns whether the cache is larger than it should be. The segments that take the survivors
    /// of an eviction do not count.
    pub fn too_large(&self, footprint: u64) -> bool {
        footprint > self.target() + SPARE * self.segment && footprint > self.floor
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment::SEGMENT;
    use super::*;
    const S: u64 = SEGMENT as u64;

    #[test]
    fn purges_lower_the_target_and_quiet_raises_it_slowly() {
        let mut growth = Growth::new(S, 4 * S, u64::MAX);
        let start = Instant::now();
        growth.purged(10 * S, 100 * S, start);
        growth.target = 100 * S;
        growth.purged(10 * S, 100 * S, start);
        assert_eq!(growth.target(), 90 * S);
        assert!(growth.may_grow(89 * S, start));
        assert!(!growth.may_grow(90 * S, start), "just purged: no growth");
        assert!(growth.too_large(93 * S) && !growth.too_large(92 * S));
        let later = start + QUIET;
        assert!(growth.may_grow(90 * S, later), "one try after a quiet second");
        assert!(!growth.may_grow(91 * S, later), "but no second at once");
        growth.purged(u64::MAX, 91 * S, later);
        assert_eq!(growth.target(), 4 * S, "never below the floor");
    }

    #[test]
    fn the_ceiling_holds() {
        let mut growth = Growth::new(S, 2 * S, 8 * S);
        growth.hear(Room { limit: 1 << 40, free: 1 << 40 }, 0, Instant::now());
        assert!(growth.may_grow(5 * S, Instant::now()));
        assert!(!growth.may_grow(6 * S, Instant::now()));
        assert!(!growth.may_take(7 * S, 0, true));
        assert_eq!(growth.most(4 * S, 3 * S), 3 * S);
        // With what takes in survivors it has what the program allows.
        assert!(growth.has_spare(7 * S) && !growth.has_spare(8 * S));
    }

    #[test]
    fn what_is_free_is_given_out_once() {
        let mut growth = Growth::new(S, 2 * S, u64::MAX);
        let now = Instant::now();
        growth.hear(Room { limit: 128 * S, free: 100 * S }, 10 * S, now);
        assert_eq!(growth.most(10 * S, 0), 92 * S, "a sixteenth of the limit is left to others");
        assert!(!growth.may_take(83 * S, 10 * S, true), "10 of the 100 are ours already");
        assert!(growth.may_take(80 * S, 10 * S, false));
        assert!(!growth.may_take(4 * S, 90 * S, true), "2 are left");
        growth.gave_back(2 * S);
        assert!(growth.may_take(4 * S, 88 * S, false));
        growth.gave_back(10 * S);
        growth.purged(80 * S, 92 * S, now);
        assert!(!growth.may_take(4 * S, 12 * S, false), "a purge: something else is to go first");
        assert!(growth.may_take(4 * S, 12 * S, true));
    }

    #[test]
    fn a_cache_grows_by_no_more_than_is_free() {
        let mut growth = Growth::new(S, 2 * S, u64::MAX);
        let now = Instant::now();
        growth.hear(Room { limit: 128 * S, free: 18 * S }, 0, now);
        assert_eq!(growth.most(2 * S, 2 * S), 10 * S, "nothing else would be tested");
        let grown = (2..100).take_while(|segments| growth.may_grow(segments * S, now)).count();
        // One more is the try that shows whether the kernel lets it.
        assert!((10..=11).contains(&grown), "{grown} segments");
    }
}
