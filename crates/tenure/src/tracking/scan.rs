//! One scan by the background thread: it looks at all ranges, offers those that are due, and sets
//! the time of the next scan.

use super::offer::{self, Refusal};
use super::settings::{settings, Priority};
use super::state::{flag, RangeId, Tracked, Word};
use super::{backpressure, raw, settle, shape, spared, TRACKING};
use crate::os::lru;
use crate::os::work::Work;
use crate::runtime::budget;
use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::services::{self, Next, Task, Visit};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Scans may take this share of the time: a million ranges take about 5 ms, so they are looked at
/// every 250 ms, not every 60.
const SHARE: u32 = 50;
/// The pause between scans when nothing changes.
const IDLE: Duration = Duration::from_secs(1);
/// How long a pressure report counts.
const PRESSED: Duration = Duration::from_secs(1);

/// Memory for so many candidates is kept from scan to scan.
const KEPT: usize = 1 << 12;

/// The state that is kept from scan to scan.
struct Scans {
    last: Instant,
    /// The rest of the time since the last scan that is less than a unit of age.
    rest: Duration,
    /// When the next scan is due, if no caller asks for one earlier.
    due: Option<Instant>,
    pressed_until: Option<Instant>,
    /// When the kernel is told again which ranges are spared.
    spared: spared::Due,
    candidates: Vec<Candidate>,
}

/// A marked range, or an offered one of which pages were made again.
struct Candidate {
    /// Its level, and whether it is spared: lower goes first.
    order: u8,
    /// 0 if it was used since the last scan. Such a range is offered only to keep the bound.
    age: u8,
    due: bool,
    id: RangeId,
    word: Word,
}

// A million ranges are a million candidates.
const _: () = assert!(size_of::<Candidate>() <= 16);

/// The results of a scan.
#[derive(Default)]
struct Seen {
    marked_bytes: u64,
    /// The offered ranges of which pages were made again, and the bytes of those that can be
    /// offered again now.
    made_again: usize,
    made_again_bytes: u64,
    pending: bool,
    active: bool,
    /// Some range is pinned, marked or made again in part.
    resident: bool,
}

pub(super) fn task() -> Task {
    let mut scans = Scans::new();
    Box::new(move |visit| scans.visit(visit))
}

impl Scans {
    fn new() -> Scans {
        Scans {
            last: Instant::now(),
            rest: Duration::ZERO,
            due: None,
            pressed_until: None,
            spared: spared::Due::now(),
            candidates: Vec::new(),
        }
    }

    /// Scans if it is time.
    fn visit(&mut self, visit: &Visit) -> Next {
        if let Some(due) = self.due.filter(|due| *due > visit.now) {
            // A range became known while others wait for their time: their scan will see it.
            if !visit.called && !visit.pressure {
                return Next::After(due - visit.now);
            }
        }
        match self.scan(visit.pressure) {
            Some(pause) => {
                self.due = Some(Instant::now() + pause);
                Next::After(pause)
            }
            None => {
                self.due = None;
                Next::WhenStirred
            }
        }
    }

    /// Looks, offers, tells, and returns how long to pause (`None`: until a range becomes known or is
    /// taken back).
    fn scan(&mut self, pressure: bool) -> Option<Duration> {
        let now = Instant::now();
        let exposed = backpressure::scan_begins();
        // Read before the look, which then finds all ranges with these bytes.
        let made_again = backpressure::made_again_so_far();
        if TRACKING.slab.live() == 0 {
            self.last = now;
            backpressure::scan_ended(exposed, 0, backpressure::least());
            return None;
        }
        add(&COUNTERS.keeper_rounds, 1);
        if pressure {
            self.pressed_until = Some(now + PRESSED);
        }
        let pressed = self.pressed_until.is_some_and(|until| now < until);
        services::before_offers(now);
        let settings = settings();
        let eighth = (settings.offer_after / 8).max(Duration::from_millis(1));
        let units = self.age_units(now, eighth);
        let bound = bound(now, settings.unoffered_max, pressed);

        let at_once = settings.offer_after.is_zero();
        let work = Work::begin();
        let seen = self.look(units, pressed, at_once);
        // It is not known how much of each range was made again: at most all of it.
        let again = made_again.min(seen.made_again_bytes);
        let marked = seen.marked_bytes + again;
        if marked > bound {
            self.collect_all(pressed, at_once);
        }
        let looked = work.spent();
        let (left, told_again) = self.offer(marked, again, bound, pressed);
        let tells_again = spared::tell_all(&mut self.spared, now, pressed, SHARE);
        if told_again == seen.made_again {
            backpressure::told_again(made_again);
        }
        backpressure::scan_ended(exposed, left, bound);

        if !seen.resident {
            return tells_again.map(|pause| pause.max(looked * SHARE));
        }
        let pause = if left > bound {
            Duration::from_millis(10)
        } else if seen.pending || seen.active {
            eighth.clamp(Duration::from_millis(5), Duration::from_millis(250))
        } else {
            IDLE
        };
        Some(pause.min(tells_again.unwrap_or(pause)).max(looked * SHARE))
    }

    /// Returns how many eighths of the wait have passed since the last scan.
    fn age_units(&mut self, now: Instant, eighth: Duration) -> u8 {
        let passed = now - self.last + self.rest;
        self.last = now;
        let units = (passed.as_nanos() / eighth.as_nanos()).min(255) as u8;
        self.rest = if units == 255 { Duration::ZERO } else { passed - eighth * u32::from(units) };
        units
    }

    /// Ages the marked ranges and collects those that are due. They are usually few, so the list is
    /// small.
    fn look(&mut self, units: u8, pressed: bool, at_once: bool) -> Seen {
        let candidates = &mut self.candidates;
        candidates.clear();
        let mut seen = Seen::default();
        TRACKING.slab.each(|id, tracked, word| {
            if tracked.len() == 0 {
                return;
            }
            if word.has(Word::OFFERED) {
                if tracked.is(flag::MADE_AGAIN) {
                    let candidate = seen.look_again(id, tracked, word, units, pressed, at_once);
                    candidates.extend(candidate);
                }
                return;
            }
            seen.resident = true;
            let used = tracked.is_seen(word, units);
            seen.active |= used;
            if word.pins() > 0 || word.has(Word::CLAIMED) {
                return;
            }
            let age = tracked.age.load(Ordering::Relaxed);
            if rests(tracked, units) && !pressed {
                return;
            }
            seen.marked_bytes += tracked.len() as u64;
            let due = at_once || (!used && u64::from(age) >= wait(tracked.level(), pressed));
            seen.pending |= !due;
            if due {
                candidates.push(Candidate { order: spared::order(tracked), age, due, id, word });
            }
        });
        seen
    }

    /// Collects every marked range, because more is marked than the bound allows.
    fn collect_all(&mut self, pressed: bool, at_once: bool) {
        let candidates = &mut self.candidates;
        candidates.clear();
        TRACKING.slab.each(|id, tracked, word| {
            let told = word.has(Word::OFFERED) && !tracked.is(flag::MADE_AGAIN);
            let claimed = word.has(Word::CLAIMED) && !word.has(Word::OFFERED);
            let busy = told || claimed || word.pins() > 0;
            let resting = tracked.rest.load(Ordering::Relaxed) > 0 && !pressed;
            if busy || resting || tracked.len() == 0 {
                return;
            }
            // An offered range ages from the first page that was made again.
            let age = match word.has(Word::OFFERED) {
                true => tracked.age.load(Ordering::Relaxed),
                false => tracked.marked_age(word),
            };
            let due = at_once || (age > 0 && u64::from(age) >= wait(tracked.level(), pressed));
            candidates.push(Candidate { order: spared::order(tracked), age, due, id, word });
        });
    }

    /// Offers the due ranges, and enough others to keep the bound. `again` of the marked bytes are
    /// pages that were made again in offered ranges. Returns how many bytes stay marked, and how
    /// many ranges were offered again.
    fn offer(&mut self, marked: u64, again: u64, bound: u64, pressed: bool) -> (u64, usize) {
        let (mut left, mut again, mut told_again) = (marked, again, 0);
        // Lowest priority first; within a priority first the ranges that are not spared, then the
        // longest unused.
        self.candidates.sort_unstable_by_key(|c| (c.order, u8::MAX - c.age, c.id));
        for candidate in self.candidates.drain(..) {
            if !candidate.due && left <= bound {
                continue;
            }
            let (id, word) = (candidate.id, candidate.word);
            let tracked = TRACKING.slab.get(id);
            let len = tracked.len() as u64;
            if word.has(Word::OFFERED) {
                if told_again == 0 {
                    // The pages that were made last wait in batches, in which the kernel would skip
                    // them.
                    lru::drain();
                }
                if tell_again(id) {
                    let bytes = again.min(len);
                    (left, again) = (left.saturating_sub(bytes), again - bytes);
                    told_again += 1;
                }
                continue;
            }
            // A claim makes a new word, so this skips a range that was joined to another one.
            let claim = match word.has(Word::RAW) {
                true => shape::claim_with_neighbours(id, word),
                false => TRACKING.claims.try_claim_from(id, tracked, word),
            };
            let Some(mut claim) = claim else {
                // It was joined to a range that was offered, so it no longer counts as marked.
                if tracked.load().has(Word::FREE | Word::OFFERED) {
                    left = left.saturating_sub(len);
                }
                continue;
            };
            match settle::offer(&mut claim, pressed) {
                Ok(()) => {
                    spared::after_offer(&mut claim);
                    left = left.saturating_sub(len);
                }
                Err(Refusal::Wanted) => {}
                Err(refusal) => {
                    // Each try of a range that waits for mappings costs 4 µs, and there may be a
                    // million. A look at the holes of a large range costs as much as ten thousand
                    // such tries.
                    let costly = matches!(refusal, Refusal::TooManyMappings | Refusal::TooSparse);
                    let scans = if costly { u8::MAX } else { REST };
                    tracked.rest.store(scans, Ordering::Relaxed);
                    left = left.saturating_sub(len);
                    let maybe_changed =
                        matches!(refusal, Refusal::Changed(_) | Refusal::Kernel(..));
                    if maybe_changed && claim.is_raw() {
                        let range = claim.range();
                        drop(claim);
                        raw::forget_changed(range);
                    }
                }
            }
        }
        self.candidates.shrink_to(KEPT);
        (left, told_again)
    }
}

impl Seen {
    /// Ages an offered range of which pages were made again, by so many units, and returns it if it
    /// has waited long enough. It waits like a marked range, from the first such page. The claims
    /// that make other pages do not count as uses.
    fn look_again(
        &mut self,
        id: RangeId,
        tracked: &Tracked,
        word: Word,
        units: u8,
        pressed: bool,
        at_once: bool,
    ) -> Option<Candidate> {
        self.resident = true;
        self.made_again += 1;
        let age = tracked.age.load(Ordering::Relaxed).saturating_add(units);
        tracked.age.store(age, Ordering::Relaxed);
        if rests(tracked, units) && !pressed {
            return None;
        }
        self.pending = true;
        if word.pins() > 0 {
            return None;
        }
        self.made_again_bytes += tracked.len() as u64;
        let due = at_once || u64::from(age) >= wait(tracked.level(), pressed);
        due.then_some(Candidate { order: spared::order(tracked), age, due, id, word })
    }
}

/// How long a refused range rests: a page that the kernel is moving counts as shared for a moment.
const REST: u8 = 16;

/// Returns whether a refused range still rests, after so many more units of age. A scan counts as
/// more than one unit where scans are far apart, but not for a range that waits for mappings.
fn rests(tracked: &Tracked, units: u8) -> bool {
    let rest = tracked.rest.load(Ordering::Relaxed);
    let passed = if rest > REST { 1 } else { units.clamp(1, REST / 2) };
    if rest > 0 {
        tracked.rest.store(rest.saturating_sub(passed), Ordering::Relaxed);
    }
    rest > 0
}

/// Offers an offered range again. `true`: nothing of it remains to be offered for now.
fn tell_again(id: RangeId) -> bool {
    let tracked = TRACKING.slab.get(id);
    // This does not require that the word is unchanged: a thread that makes page after page changes
    // it all the time.
    let volatile = |word: Word| word.has(Word::OFFERED) && word.pins() == 0;
    let Some(mut claim) = TRACKING.claims.claim(id, tracked, volatile) else { return false };
    match offer::tell_again(&mut claim) {
        Ok(()) => true,
        Err(Refusal::Wanted) => false,
        Err(_) => {
            tracked.rest.store(REST, Ordering::Relaxed);
            true
        }
    }
}

/// Returns for how many eighths of the wait a range must be unused before it is offered.
fn wait(level: u8, pressed: bool) -> u64 {
    let wait = Priority::new(level).unwrap_or_default().wait_eighths();
    if pressed {
        wait / 8
    } else {
        wait
    }
}

/// Returns how many bytes may be marked and not offered.
fn bound(now: Instant, set: Option<u64>, pressed: bool) -> u64 {
    // Also if the program has set a bound, because an offer uses the room that was found here.
    let share = budget::share(now);
    if let Some(bytes) = set {
        return bytes;
    }
    backpressure::set_least(share.least);
    if pressed {
        share.least
    } else {
        share.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use crate::os::page_size;
    use crate::tracking::owned::{Losses, OwnedRange};
    use crate::tracking::settings::{configure, Settings};
    use crate::tracking::{detection, ready, touched};
    use rustix::thread::sched_setaffinity;
    use tenure_testkit::pages::smaps_over;
    use tenure_testkit::{in_child, skip, this_test};

    /// Else the order of priorities would be lost where it matters most.
    #[test]
    fn under_pressure_each_priority_waits_an_eighth_as_long() {
        let levels = 0..=Priority::HIGHEST.level();
        let waits: Vec<_> = levels.map(|level| (wait(level, false), wait(level, true))).collect();
        assert!(waits.iter().all(|(usual, pressed)| *pressed == usual / 8), "{waits:?}");
        assert!(waits.is_sorted() && waits[0].1 < waits[7].1, "{waits:?}");
    }

    /// Such a page waits in a batch of the processor that made it, and the kernel skips it there.
    /// Nothing would offer it later.
    #[test]
    fn the_page_that_was_made_last_is_offered_again_too() {
        const ROUNDS: usize = 20;
        in_child(this_test!(), &[], || {
            // The background thread offers nothing.
            let never = Settings::default().with_offer_after(Duration::from_secs(3600));
            configure(never.with_unoffered_max(u64::MAX));
            ready("test").unwrap();
            if !detection::by_userfaultfd() {
                skip!("no userfaultfd");
            }
            let works = |_: &[_; 2]| lru::tests::is_needed_and_works();
            let Some([here, there]) = lru::tests::two_processors().filter(works) else {
                skip!("no page waits on another processor, or nothing empties its batches");
            };
            sched_setaffinity(None, &here).unwrap();
            let (page, len) = (page_size(), 16 * page_size());
            let mut memory = Mapping::anonymous(len).unwrap();
            memory.as_mut_slice().fill(7);
            let owned = OwnedRange::new("test", memory, 4, Losses::AreMadeAgain).unwrap();
            owned.unpin();
            let at = owned.range().start;
            let is_offered_again = || {
                // Another thread's look at a page holds it for a moment.
                assert!((0..10_000).any(|_| owned.purge_now() == Ok(len)));
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        sched_setaffinity(None, &there).unwrap();
                        touched::fill_page(at, &vec![7; page]).unwrap();
                    });
                });
                let (order, word) = (spared::order(owned.tracked()), owned.tracked().load());
                let mut scans = Scans::new();
                scans.candidates.push(Candidate { order, age: 1, due: true, id: owned.id(), word });
                assert_eq!(scans.offer(0, 0, 0, false).1, 1);
                // What was offered waits in a batch, too, and does not count until it leaves that.
                lru::drain();
                smaps_over(at, page).iter().any(|mapping| mapping.lazy_free >= page as u64)
            };
            let offered = (0..ROUNDS).filter(|_| is_offered_again()).count();
            assert!(offered > ROUNDS / 2, "{offered} of {ROUNDS}");
        });
    }
}
