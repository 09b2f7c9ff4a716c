//! Remembers which keys the cache evicted lately: two bytes for each, found by the key's hash.
//!
//! A ghost is a fingerprint of 10 bits, the time of the eviction in 5 bits, and a bit that says that
//! its value came back before. Eight ghosts are a bucket. A new ghost replaces the oldest one, long
//! before the time wraps. Threads change the table without a lock: if two threads collide, one ghost
//! may be lost.

#![allow(unsafe_code, reason = "reads a table without a lock")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};

const BUCKET: usize = 8;
/// The first table's ghosts; each further one has twice as many.
const FIRST: usize = 1 << 12;
const TABLES: usize = 18;
/// The tables take no more than this part of the cache's bytes, even while the values are very
/// small.
const PART: u64 = 64;
/// The number of moments; then the time wraps.
const MOMENTS: u16 = 32;
/// Moments in which the cache evicts as many bytes as it has.
const PER_CACHE: u64 = 8;

/// See the module's head. Takes no memory before the first eviction.
pub(super) struct Ghosts {
    /// A table that has become too small is not used any more. It stays, because threads may still
    /// read it.
    tables: [AtomicPtr<AtomicU16>; TABLES],
    current: AtomicU32,
    /// Bytes evicted so far.
    evicted: AtomicU64,
    /// How many evicted bytes one moment is.
    moment: AtomicU64,
}

/// The value came back before, and was evicted again.
const CAME_BACK: u16 = MOMENTS;
const FINGERPRINT: u16 = !(2 * MOMENTS - 1);

fn ghost(hash: u32, moment: u16) -> u16 {
    // Not 0: that means that there is no ghost.
    (hash as u16 & (u16::MAX / (2 * MOMENTS))).max(1) * 2 * MOMENTS + moment
}

impl Ghosts {
    pub fn new() -> Ghosts {
        Ghosts {
            tables: [const { AtomicPtr::new(null_mut()) }; TABLES],
            current: AtomicU32::new(0),
            evicted: AtomicU64::new(0),
            moment: AtomicU64::new(u64::MAX),
        }
    }

    /// Follows the cache's size: `values` values of `bytes` bytes together. Allocates; under no
    /// lock. If the kernel refuses memory, the table stays as it is.
    pub fn fit(&self, values: u64, bytes: u64) {
        self.moment.store((bytes / PER_CACHE).max(1), Ordering::Relaxed);
        let wanted = |number: &usize| {
            let ghosts = (FIRST << number) as u64;
            ghosts >= values || 2 * ghosts * size_of::<AtomicU16>() as u64 * PART > bytes
        };
        let number = (0..TABLES).find(wanted).unwrap_or(TABLES - 1);
        let current = self.current.load(Ordering::Relaxed) as usize;
        // Not a smaller one: a cache that shrinks may grow again.
        let number = number.max(current);
        if self.table(number).is_none() {
            let mut new: Vec<AtomicU16> = Vec::new();
            if new.try_reserve_exact(FIRST << number).is_err() {
                return;
            }
            new.resize_with(FIRST << number, || AtomicU16::new(0));
            let new = new.into_boxed_slice();
            let (new, place) = (Box::into_raw(new).cast(), &self.tables[number]);
            let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
            if place.compare_exchange(null_mut(), new, order, failed).is_err() {
                // SAFETY: made above, and not published.
                unsafe { free(number, new) };
            }
        }
        self.current.store(number as u32, Ordering::Relaxed);
    }

    fn table(&self, number: usize) -> Option<&[AtomicU16]> {
        let table = self.tables[number].load(Ordering::Acquire);
        // SAFETY: the pointer is not null, so it leads to a table of this number. The table has
        // this many ghosts, does not move, and is freed with `self`.
        (!table.is_null()).then(|| unsafe { std::slice::from_raw_parts(table, FIRST << number) })
    }

    fn now(&self) -> u16 {
        let moments = self.evicted.load(Ordering::Relaxed) / self.moment.load(Ordering::Relaxed);
        (moments % u64::from(MOMENTS)) as u16
    }

    /// Returns the bucket of a hash. It uses bits of the hash that are not in the fingerprint.
    fn bucket(&self, hash: u32) -> Option<&[AtomicU16]> {
        let table = self.table(self.current.load(Ordering::Relaxed) as usize)?;
        let buckets = (table.len() / BUCKET) as u64;
        // The low bits of a hash choose its shard. The high bits are not in the fingerprint.
        let number = (u64::from(hash) * buckets) >> 32;
        table.get(number as usize * BUCKET..(number as usize + 1) * BUCKET)
    }

    /// Counts evicted bytes.
    pub fn pass(&self, bytes: usize) {
        self.evicted.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes that the cache evicted the value of this hash now. If it came back before, its ghost is
    /// still there.
    pub fn add(&self, hash: u32) {
        let now = self.now();
        let Some(bucket) = self.bucket(hash) else { return };
        if let Some(own) = find(bucket, hash) {
            let came_back = own.load(Ordering::Relaxed) & CAME_BACK;
            return own.store(ghost(hash, now) | came_back, Ordering::Relaxed);
        }
        let age = |place: &&AtomicU16| match place.load(Ordering::Relaxed) {
            0 => MOMENTS,
            ghost => now.wrapping_sub(ghost) % MOMENTS,
        };
        if let Some(oldest) = bucket.iter().max_by_key(age) {
            oldest.store(ghost(hash, now), Ordering::Relaxed);
        }
    }

    /// Returns whether the cache evicted the value of this hash within the last `moments`, and
    /// forgets the ghost. `again`: the value must have come back before, too. If it comes back for
    /// the first time, its ghost stays and notes that.
    pub fn take(&self, hash: u32, moments: u16, again: bool) -> bool {
        let now = self.now();
        let found = self.bucket(hash).and_then(|bucket| find(bucket, hash));
        found.is_some_and(|place| {
            let ghost = place.swap(0, Ordering::Relaxed);
            let is_recent = ghost != 0 && now.wrapping_sub(ghost) % MOMENTS <= moments;
            if is_recent && again && ghost & CAME_BACK == 0 {
                place.store(ghost | CAME_BACK, Ordering::Relaxed);
                return false;
            }
            is_recent
        })
    }

    /// Returns the bytes of the tables.
    pub fn bytes(&self) -> u64 {
        (0..TABLES).filter_map(|number| self.table(number)).map(size_of_val).sum::<usize>() as u64
    }
}

/// Returns the place of the hash's ghost.
fn find(bucket: &[AtomicU16], hash: u32) -> Option<&AtomicU16> {
    let own = ghost(hash, 0);
    bucket.iter().find(|place| place.load(Ordering::Relaxed) & FINGERPRINT == own)
}

/// # Safety
/// The pointer is null, or a table of that number that only the caller has.
unsafe fn free(number: usize, table: *mut AtomicU16) {
    if !table.is_null() {
        let table = std::ptr::slice_from_raw_parts_mut(table, FIRST << number);
        // SAFETY: from `Box::into_raw` of a slice of this length, and only the caller has it.
        drop(unsafe { Box::from_raw(table) });
    }
}

impl Drop for Ghosts {
    fn drop(&mut self) {
        for (number, table) in self.tables.iter_mut().enumerate() {
            // SAFETY: the pointer is null, or a table of this number that this value owns.
            // `&mut self` proves that no thread reads it.
            unsafe { free(number, *table.get_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: u32) -> u32 {
        key.wrapping_mul(0x9E37_79B1)
    }

    #[test]
    fn ghosts_are_found_once_and_for_as_long_as_asked() {
        let ghosts = Ghosts::new();
        assert!(!ghosts.take(hash(1), 15, false), "nothing was evicted");
        ghosts.fit(4000, 4000 * 100);
        (0..2000).for_each(|key| {
            ghosts.pass(100);
            ghosts.add(hash(key));
        });
        // 2000 of 4000 values: half of the cache, four moments.
        assert!((0..100).filter(|key| ghosts.take(hash(*key), 3, false)).count() < 10);
        let found = (1000..2000).filter(|key| ghosts.take(hash(*key), 3, false)).count();
        assert!(found > 950, "{found} of 1000");
        assert!((1000..2000).filter(|key| ghosts.take(hash(*key), 15, false)).count() < 20);
        let strangers = (10_000..20_000).filter(|key| ghosts.take(hash(*key), 15, false)).count();
        assert!(strangers < 50, "{strangers} of 10000");
    }

    #[test]
    fn a_value_that_must_come_back_twice_does() {
        let ghosts = Ghosts::new();
        ghosts.fit(4000, 4000 * 100);
        for (round, back) in [false, true, false, true].into_iter().enumerate() {
            ghosts.add(hash(1));
            assert_eq!(ghosts.take(hash(1), 7, true), back, "{round}");
        }
        // In time only.
        ghosts.add(hash(1));
        assert!(!ghosts.take(hash(1), 7, true));
        ghosts.add(hash(1));
        ghosts.pass(4000 * 100 * 9 / 8);
        assert!(!ghosts.take(hash(1), 7, true));
    }

    #[test]
    fn what_was_evicted_long_ago_does_not_look_new() {
        for times in [3, 4, 5, 8, 9] {
            let ghosts = Ghosts::new();
            ghosts.fit(4100, 4100 * 100);
            let mut back = 0;
            for at in 0..20 * 4100u32 {
                let key = hash(at % (4100 * times));
                back += u32::from(ghosts.take(key, 7, false));
                ghosts.pass(100);
                ghosts.add(key);
            }
            assert!(back < 20 * 41, "{back} of a loop {times} times as long as the cache");
        }
    }
}
