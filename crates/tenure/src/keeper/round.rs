//! One look of the keeper at all ranges: which to offer now, and when to look again.

use super::node::{flag, slab, NodeId, Phase};
use super::pages::Refusal;
use super::settings::{settings, Priority};
use super::{bound, inbox, index, pin, room};
use crate::stats::{self, COUNTERS};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A look at all ranges may take this share of the time: a million take about 5 ms, so they are
/// looked at every 250 ms, not every 60.
const SHARE: u32 = 50;
/// The pause between rounds when nothing changes.
const IDLE: Duration = Duration::from_secs(1);
/// How long a pressure report counts.
const PRESSED: Duration = Duration::from_secs(1);

/// What the keeper remembers from round to round.
pub(crate) struct Rounds {
    last: Instant,
    rest: Duration,
    pressed_until: Option<Instant>,
    /// Nothing is resident, and this is how often something had been when that was seen.
    asleep_at: Option<u64>,
    candidates: Vec<Candidate>,
}

struct Candidate {
    priority: u8,
    /// Set when it was used since the last round: such a range is offered only to keep the bound.
    used: bool,
    age: u8,
    due: bool,
    id: NodeId,
    len: u64,
}

/// What a round saw.
#[derive(Default)]
struct Seen {
    marked_bytes: u64,
    pending: bool,
    active: bool,
    /// Some range is pinned or marked.
    resident: bool,
}

impl Rounds {
    pub fn new() -> Rounds {
        Rounds {
            last: Instant::now(),
            rest: Duration::ZERO,
            pressed_until: None,
            asleep_at: None,
            candidates: Vec::new(),
        }
    }

    /// Whether there is nothing to offer before a range becomes known or is taken back.
    pub fn may_sleep(&self) -> bool {
        self.asleep_at == Some(inbox::times_stirred())
    }

    /// Looks, offers, and answers how long to pause (`None`: until called).
    pub fn round(&mut self, pressure: bool) -> Option<Duration> {
        let now = Instant::now();
        let stirred = inbox::times_stirred();
        let exposed = bound::round_begins();
        self.asleep_at = None;
        if slab().live() == 0 {
            self.asleep_at = Some(stirred);
            self.last = now;
            bound::round_ended(exposed, 0, bound::least());
            return None;
        }
        stats::add(&COUNTERS.keeper_rounds, 1);
        if pressure {
            self.pressed_until = Some(now + PRESSED);
        }
        let pressed = self.pressed_until.is_some_and(|until| now < until);
        let settings = settings();
        let eighth = (settings.offer_after / 8).max(Duration::from_millis(1));
        let units = self.age_units(now, eighth);
        let bound = self.bound(now, settings.unoffered_max, pressed);

        let seen = self.look(units, pressed, settings.offer_after.is_zero());
        let looked = now.elapsed();
        let left = self.offer(seen.marked_bytes, bound, pressed);
        bound::round_ended(exposed, left, bound);

        if !seen.resident {
            self.asleep_at = Some(stirred);
            return None;
        }
        let pause = if left > bound {
            Duration::from_millis(10)
        } else if seen.pending || seen.active {
            eighth.clamp(Duration::from_millis(5), Duration::from_millis(250))
        } else {
            IDLE
        };
        Some(pause.max(looked * SHARE))
    }

    /// How many eighths of the wait have passed since the last round.
    fn age_units(&mut self, now: Instant, eighth: Duration) -> u8 {
        let passed = now - self.last + self.rest;
        self.last = now;
        let units = (passed.as_nanos() / eighth.as_nanos()).min(255) as u8;
        self.rest = if units == 255 { Duration::ZERO } else { passed - eighth * u32::from(units) };
        units
    }

    fn bound(&self, now: Instant, set: Option<u64>, pressed: bool) -> u64 {
        if let Some(bytes) = set {
            return bytes;
        }
        let room = room::room(now);
        let least = bound::set_least(room.limit);
        if pressed {
            least
        } else {
            (room.free / 4).max(least)
        }
    }

    /// Ages the marked ranges and collects those that could be offered.
    fn look(&mut self, units: u8, pressed: bool, at_once: bool) -> Seen {
        let candidates = &mut self.candidates;
        candidates.clear();
        let mut seen = Seen::default();
        slab().each(|id, node, word| {
            if word.phase() != Phase::Resident {
                return;
            }
            seen.resident = true;
            let used = node.seen_uses.swap(word.uses(), Ordering::Relaxed) != word.uses();
            seen.active |= used;
            if word.pins() > 0 {
                node.age.store(0, Ordering::Relaxed);
                return;
            }
            let age = if used { 0 } else { node.age.load(Ordering::Relaxed).saturating_add(units) };
            node.age.store(age, Ordering::Relaxed);
            let rest = node.rest.load(Ordering::Relaxed);
            if rest > 0 && !pressed {
                node.rest.store(rest - 1, Ordering::Relaxed);
                return;
            }
            let len = node.len() as u64;
            seen.marked_bytes += len;
            let priority = node.priority.load(Ordering::Relaxed);
            let wait = Priority::new(priority).unwrap_or_default().wait_eighths();
            let wait = if pressed { wait / 8 } else { wait };
            let due = at_once || (!used && u64::from(age) >= wait);
            seen.pending |= !due;
            candidates.push(Candidate { priority, used, age, due, id, len });
        });
        seen
    }

    /// Offers what is due and what is over the bound; answers what stays marked.
    fn offer(&mut self, marked: u64, bound: u64, pressed: bool) -> u64 {
        let mut left = marked;
        if left <= bound {
            self.candidates.retain(|c| c.due);
        }
        // Lowest priority first, then the longest unused.
        self.candidates.sort_unstable_by_key(|c| (c.priority, c.used, u8::MAX - c.age, c.id));
        for candidate in &self.candidates {
            if !candidate.due && left <= bound {
                continue;
            }
            let node = candidate.id.node();
            let id = match node.is(flag::RAW) {
                true => index::lock().merge_with_neighbours(candidate.id),
                false => candidate.id,
            };
            match pin::offer(id, pressed) {
                Ok(()) => left = left.saturating_sub(candidate.len),
                Err(Refusal::Wanted) => {}
                Err(_) => {
                    node.rest.store(16, Ordering::Relaxed);
                    left = left.saturating_sub(candidate.len);
                }
            }
        }
        left
    }
}
