//! Moves the remaining values of segments together, after many of their values were overwritten or
//! removed.
//!
//! The share of dead bytes has a limit over all segments, not in each one: the cache moves the
//! emptiest segment when too much is dead in all of them. So if a few segments become empty by
//! themselves, nothing is copied. If values are overwritten at random by others that cannot take
//! [their places](super::reuse), the cache takes about a quarter more than the values' bytes, and
//! copies about two bytes for each that is put in.
//!
//! The cache knows how many keys lead to a segment, but not how many bytes they lead to: a thread
//! that takes a key's place away does not look at the value's header, because the kernel may have
//! purged it. If all values have about the same length, the number of keys is enough. Otherwise a
//! few short values could keep a segment whose long ones are gone. So the cache counts such a
//! segment when most of it may have gone since the last count.

use super::lanes::Filling;
use super::listener::RemovalCause;
use super::place::Place;
use super::segment::Segment;
use super::space::{Index, Space};
use std::sync::atomic::Ordering;

/// How many segments a search for the sparsest one checks.
const SAMPLE: usize = 64;
/// Overwritten and removed values take at most this share of the closed segments. With the open and
/// the emptied ones the cache then takes 1.22 times the values' bytes; with a seventh it took up to
/// 1.256.
const DEAD: f64 = 1.0 / 8.0;
/// A segment with a larger share left is not moved: freeing one byte never costs the copy of more
/// than four.
const MOST_LEFT: f64 = 0.8;

/// Returns the distance between the segments that a search checks, of `made` segments.
fn step(made: u32) -> u32 {
    if made as usize <= SAMPLE {
        return 1;
    }
    // The golden ratio spreads any number of steps evenly. With a common divisor some segments
    // would be left out, for ever if no more are made.
    let has_divisor = |step: u32| {
        let (mut a, mut b) = (made, step);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a > 1
    };
    let mut step = (f64::from(made) * 0.618) as u32 | 1;
    while has_divisor(step) {
        step += 2;
    }
    step
}

impl Space {
    /// Moves the remaining values of the emptiest segments into `into` while much is dead in all
    /// segments, so that overwriting does not make the cache grow. Returns `false` if there is no
    /// such segment.
    pub(super) fn compact(&self, index: &dyn Index, into: &mut Filling<'_>) -> bool {
        let mut any = false;
        // Fills most of the segment with moved values. So long-lived values lie apart from values
        // that will soon be overwritten, and are not moved again and again.
        while into.at < self.segment_bytes / 4 * 3 {
            let Some(sparse) = self.sparsest(index, self.segment_bytes - into.at) else { break };
            let generation = sparse.life.generation();
            let (mut left, mut has_memory) = (Vec::new(), true);
            let (mut bytes, mut longest) = (0, 0);
            self.each_value(sparse, |at, head| {
                let from = Place::new(sparse.number, generation, at);
                let need = self.need(head);
                let Some(place) = index.holds(head.hash, from) else { return };
                let cause = self.cause(sparse, at, head);
                if cause == RemovalCause::Evicted {
                    has_memory = has_memory && left.try_reserve(1).is_ok();
                    if has_memory {
                        left.push((place, head));
                    }
                    bytes += need;
                    longest = need.max(longest);
                } else if index.forget(head.hash, from, cause) {
                    self.left(from, &self.counts.evicted);
                }
            });
            if bytes > self.segment_bytes - into.at || !has_memory {
                // The segment has few values, but large ones. Or it keeps its values.
                sparse.lengths.count(sparse.life.live(), bytes, longest);
                self.put_back(sparse);
                break;
            }
            for (from, head) in left {
                self.move_value(sparse, from, from.uses(), into, head, index);
            }
            self.expire(index, sparse, &self.counts.evicted);
            self.put_away(sparse, false);
            any = true;
        }
        any
    }

    /// Returns the sampled segment with the smallest share of its bytes left, out of its list,
    /// pinned and settled. Returns `None` if little is dead in all segments, or no segment can be
    /// moved at a fair price. `room`: the most bytes that it should have left.
    fn sparsest(&self, index: &dyn Index, room: usize) -> Option<&Segment> {
        let mut best: Option<(f64, &Segment)> = None;
        let mut doubtful: Option<(f64, &Segment, u32)> = None;
        let (mut all, mut all_left) = (0, 0);
        let mut lists = self.lists.lock();
        self.each_sampled(&mut lists.sampled, |segment| {
            if !segment.is_shared() {
                return;
            }
            let filled = segment.filled.load(Ordering::Relaxed);
            let left = segment.lengths.left(&segment.life, filled);
            all += filled as u64;
            all_left += left.likely;
            if segment.range.pins() > 0 {
                return;
            }
            let share = |bytes: u64| bytes as f64 / filled.max(1) as f64;
            let (likely, least) = (share(left.likely), share(left.least));
            if likely < MOST_LEFT && left.likely <= room as u64 {
                if best.is_none_or(|(share, _)| likely < share) {
                    best = Some((likely, segment));
                }
            } else if likely >= 0.5
                && least < 0.4
                && doubtful.is_none_or(|(share, ..)| least < share)
            {
                doubtful = Some((least, segment, segment.life.generation()));
            }
        });
        let much_is_dead = all_left as f64 <= all as f64 * (1.0 - DEAD);
        if let Some((_, segment)) = best.filter(|_| much_is_dead) {
            let taken = lists.take(&self.segments, segment);
            drop(lists);
            return (taken && self.settle_or_return(segment)).then_some(segment);
        }
        drop(lists);
        let (_, segment, generation) = doubtful?;
        self.count(index, segment, generation).then_some(segment)
    }

    /// Calls `each` for some closed segments of all ages, and for others each time: neighbours in a
    /// list have the same age, and young ones are rarely sparse. `last`: the number of the last
    /// one.
    fn each_sampled<'a>(&'a self, last: &mut u32, mut each: impl FnMut(&'a Segment)) {
        let made = self.segments.made();
        let step = step(made);
        let mut closed = 0;
        for _ in 0..made.min(4 * SAMPLE as u32) {
            *last = (*last + step) % made;
            let Some(segment) = self.segments.get(*last).filter(|segment| segment.is_closed())
            else {
                continue;
            };
            each(segment);
            closed += 1;
            if closed == SAMPLE {
                return;
            }
        }
    }

    /// Counts what is left of a closed segment. Returns `true` if less than half of its bytes is
    /// left: then it is out of its list, pinned and settled.
    fn count(&self, index: &dyn Index, segment: &Segment, generation: u32) -> bool {
        // While it is pinned, no thread fills it anew, and only a clear takes it out of its list.
        let Some(plain) = segment.range.pin_alone() else { return false };
        if segment.life.generation() != generation {
            segment.unpin();
            return false;
        }
        if !plain {
            match segment.settle() {
                Ok(gone) => self.met_purge(gone),
                Err(_) => {
                    segment.unpin();
                    return false;
                }
            }
        }
        let (values, mut bytes, mut longest) = (segment.life.live(), 0, 0);
        self.each_value(segment, |at, head| {
            let place = Place::new(segment.number, generation, at);
            if index.holds(head.hash, place).is_some() {
                bytes += self.need(head);
                longest = longest.max(self.need(head));
            }
        });
        segment.lengths.count(values, bytes, longest);
        let is_sparse = bytes < segment.filled.load(Ordering::Relaxed) / 2;
        let taken = is_sparse && self.lists.lock().remove(&self.segments, segment);
        if !taken {
            segment.unpin();
        }
        taken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::runtime::counters::COUNTERS;
    use crate::Cache;
    use std::cell::Cell;
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    use tenure_testkit::{this_test, undisturbed};

    fn shortages() -> u64 {
        COUNTERS.pressure_events.load(Ordering::Relaxed)
    }

    #[test]
    fn each_segment_has_its_turn() {
        for made in (1..700).chain([1597, 8989, 17_711, 89 * 233]) {
            let (mut at, mut met) = (0, vec![false; made as usize]);
            for _ in 0..made {
                at = (at + step(made)) % made;
                met[at as usize] = true;
            }
            let count = met.iter().filter(|met| **met).count();
            assert_eq!(count, made as usize, "steps of {}", step(made));
        }
    }

    /// Else a few short values would keep the memory of long ones that are gone. (While memory is
    /// short, a get returns a copy, and leaves the value's segment to the kernel.)
    #[test]
    fn a_segment_is_sparse_when_most_of_its_bytes_are_gone() {
        undisturbed(this_test!(), shortages, || {
            let cache = Cache::<u64>::builder().ceiling(64 << 20).build().unwrap();
            (0..100).for_each(|key| cache.insert(key, &[7; 100_000]).unwrap());
            let (space, index) = (&cache.inner.space, &cache.inner.shards);
            let number = |key: u64| cache.get(&key).and_then(|value| Some(value.segment()?.number));
            let made = (0..space.segments.made()).filter_map(|number| space.segments.get(number));
            let mut closed = made.filter(|segment| segment.is_closed());
            let (full, sparse) = (closed.next().unwrap(), closed.next().unwrap());
            let there: Vec<u64> =
                (0..100).filter(|key| number(*key) == Some(sparse.number)).collect();
            assert!(there.len() > 10, "{} values in a segment", there.len());
            there[1..].iter().for_each(|key| assert!(cache.remove(key)));
            let is_sparse = |segment: &Segment| {
                let found = space.count(index, segment, segment.life.generation());
                if found {
                    space.lists.lock().close(&space.segments, segment);
                    segment.unpin();
                }
                found
            };
            // Another thread may look at it just now.
            assert!((0..100).any(|_| is_sparse(sparse)));
            assert!(!is_sparse(full) || cache.stats().purged_bytes > 0);
        });
    }

    /// An index whose keys are asked for just before the first value moves.
    struct Asked<'a> {
        cache: &'a Cache<u64>,
        /// Where that value moved, and when the keys were asked for, in milliseconds.
        first: Cell<Option<(Place, u64)>>,
    }

    impl Index for Asked<'_> {
        fn holds(&self, hash: u32, place: Place) -> Option<Place> {
            self.cache.inner.shards.holds(hash, place)
        }
        fn relocate(&self, hash: u32, from: Place, to: Place) -> bool {
            if self.first.get().is_none() {
                let asked = crate::os::clock::monotonic().as_millis() as u64;
                (0..100).for_each(|key| drop(self.cache.get(&key)));
                self.first.set(Some((to, asked)));
            }
            self.cache.inner.shards.relocate(hash, from, to)
        }
        fn forget(&self, hash: u32, place: Place, cause: RemovalCause) -> bool {
            self.cache.inner.shards.forget(hash, place, cause)
        }
        fn forget_segment(&self, segment: u32) {
            self.cache.inner.shards.forget_segment(segment);
        }
    }

    /// Else a value that is in use would end, because it was idle before the cache moved it.
    #[test]
    fn a_use_is_noted_while_the_value_moves() {
        undisturbed(this_test!(), shortages, || {
            let cache = Cache::<u64>::builder().ceiling(64 << 20);
            let cache = cache.time_to_idle(Duration::from_secs(1000)).build().unwrap();
            (0..100).for_each(|key| cache.insert(key, &[7; 100_000]).unwrap());
            (0..100).filter(|key| key % 10 > 0).for_each(|key| assert!(cache.remove(&key)));
            // The cache notes uses in steps of a second.
            std::thread::sleep(Duration::from_millis(1100));
            let (space, index) =
                (&cache.inner.space, Asked { cache: &cache, first: Cell::new(None) });
            let into = space.open(&index).unwrap();
            let (to, asked) = index.first.get().expect("sparse segments are moved");
            let segment = space.segments.get(to.segment()).unwrap();
            let times = segment.times(to.offset(), space.lifetimes.bytes()).unwrap();
            assert!(times.used >= asked, "{} before it was asked for", asked - times.used);
            space.put_open(&space.lanes[0], &into);
        });
    }
}
