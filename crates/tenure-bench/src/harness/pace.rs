//! The time limit of a run, its progress, and whether it was interrupted.

use super::progress::Progress;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of rounds that a comparison should have even if time is short.
const WISHED: u32 = 3;

/// A bench's part of the whole: used to share the time, and to estimate how much is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Its time, in any unit, as long as all benches have the same.
    pub weight: u32,
    /// About how many comparisons it has.
    pub comparisons: u32,
}

/// The pace of a whole run.
pub(crate) struct Pace {
    began: Instant,
    within: Option<Duration>,
    interrupted: Option<Arc<AtomicBool>>,
    /// The benches that are yet to come, the current one in front.
    to_come: Vec<Share>,
    /// The sum of all benches at the beginning.
    weight: u32,
    bench: BenchPace,
    progress: Progress,
}

/// The pace of the current bench.
struct BenchPace {
    until: Option<Instant>,
    share: Duration,
    done: u32,
}

impl Pace {
    pub fn new(
        shares: Vec<Share>,
        within: Option<Duration>,
        interrupted: Option<Arc<AtomicBool>>,
        progress: Progress,
    ) -> Pace {
        Pace {
            began: Instant::now(),
            // A tenth is reserved, because the time of the last comparison is not known before.
            within: within.map(|within| within - within / 10),
            interrupted,
            weight: weight(&shares),
            // The first bench takes its place in `begin`.
            to_come: shares,
            bench: BenchPace { until: None, share: Duration::ZERO, done: 0 },
            progress,
        }
    }

    /// Starts a bench. It gets its share of the time that is left.
    pub fn begin(&mut self, name: &str, is_first: bool) {
        if !is_first && !self.to_come.is_empty() {
            self.to_come.remove(0);
        }
        let own = self.to_come.first().map_or(1, |share| share.weight);
        let share = self.left().map(|left| left * own / weight(&self.to_come).max(1));
        self.bench = BenchPace {
            until: share.map(|share| Instant::now() + share),
            share: share.unwrap_or_default(),
            done: 0,
        };
        self.progress.begin(name);
    }

    /// The time that is left of the whole.
    fn left(&self) -> Option<Duration> {
        self.within.map(|within| within.saturating_sub(self.began.elapsed()))
    }

    /// Whether the time does not allow another comparison of this bench. Each bench has at least
    /// one.
    pub fn is_over(&self) -> bool {
        if self.bench.done == 0 {
            return false;
        }
        let late = self.bench.until.is_some_and(|until| {
            Instant::now().saturating_duration_since(until) > self.bench.share / 4
        });
        late || self.left().is_some_and(|left| left.is_zero())
    }

    /// The turn of the next comparison.
    pub fn turn(&mut self, title: &str) -> Turn<'_> {
        let planned = self.to_come.first().map_or(1, |share| share.comparisons);
        let ahead = planned.saturating_sub(self.bench.done).max(1);
        let now = Instant::now();
        let may_take = self.bench.until.map(|until| until.saturating_duration_since(now) / ahead);
        self.progress.turn(title);
        Turn {
            began: now,
            may_take,
            interrupted: self.interrupted.clone(),
            round: 0,
            rounds: 1,
            round_began: now,
            longest: Duration::ZERO,
            pace: Some(self),
        }
    }

    /// Notes that a comparison is done.
    pub fn done(&mut self) {
        self.bench.done += 1;
    }

    /// Returns whether the user has requested an end.
    pub fn is_interrupted(&self) -> bool {
        is_set(self.interrupted.as_ref())
    }

    /// How much of the work is done, with `part` of the current comparison: 0 to 1.
    fn share_done(&self, part: f64) -> f64 {
        let Some(current) = self.to_come.first() else { return 1.0 };
        let before = self.weight - weight(&self.to_come);
        let planned = f64::from(current.comparisons.max(self.bench.done + 1));
        let of_bench = (f64::from(self.bench.done) + part) / planned;
        (f64::from(before) + of_bench * f64::from(current.weight)) / f64::from(self.weight.max(1))
    }

    fn show(&mut self, part: f64) {
        let share = self.share_done(part);
        let passed = self.began.elapsed();
        let estimated = passed.mul_f64((1.0 - share) / share.max(1e-3));
        let left = self.left().map_or(estimated, |left| left.min(estimated));
        self.progress.show(share, left);
    }

    /// Takes the progress off the terminal while `print` prints.
    pub fn aside<T>(&mut self, print: impl FnOnce() -> T) -> T {
        self.progress.aside(print)
    }
}

fn weight(shares: &[Share]) -> u32 {
    shares.iter().map(|share| share.weight).sum()
}

fn is_set(flag: Option<&Arc<AtomicBool>>) -> bool {
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// The time of one comparison.
pub(crate) struct Turn<'p> {
    began: Instant,
    may_take: Option<Duration>,
    interrupted: Option<Arc<AtomicBool>>,
    round: u32,
    rounds: u32,
    round_began: Instant,
    longest: Duration,
    pace: Option<&'p mut Pace>,
}

impl Turn<'_> {
    /// A turn without a time limit.
    pub fn unhurried() -> Turn<'static> {
        let now = Instant::now();
        Turn {
            began: now,
            may_take: None,
            interrupted: None,
            round: 0,
            rounds: 1,
            round_began: now,
            longest: Duration::ZERO,
            pace: None,
        }
    }

    /// Begins a round. Returns whether it is the last one.
    pub fn begin(&mut self, round: u32, rounds: u32) -> bool {
        let now = Instant::now();
        if round > 0 {
            self.longest = self.longest.max(now - self.round_began);
        }
        (self.round, self.rounds, self.round_began) = (round, rounds, now);
        let is_short = self.may_take.is_some_and(|may_take| {
            // A few rounds may take some time of later comparisons.
            let may_take = if round < WISHED { may_take * 2 } else { may_take };
            now - self.began + self.longest * 2 > may_take
        });
        round == rounds || (round > 0 && is_short)
    }

    /// Notes that `done` of `number` contestants of this round were measured.
    pub fn measured(&mut self, done: usize, number: usize) {
        let in_round = done as f64 / number.max(1) as f64;
        let part = (f64::from(self.round) + in_round) / (f64::from(self.rounds) + 1.0);
        if let Some(pace) = &mut self.pace {
            pace.show(part);
        }
    }

    /// # Errors
    /// `Interrupted`, if the user has requested an end.
    pub fn check(&self) -> io::Result<()> {
        match self.is_interrupted() {
            true => Err(interrupted()),
            false => Ok(()),
        }
    }

    pub fn is_interrupted(&self) -> bool {
        is_set(self.interrupted.as_ref())
    }
}

/// The error of a run that the user ends.
pub(crate) fn interrupted() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> Vec<Share> {
        vec![Share { weight: 1, comparisons: 2 }, Share { weight: 3, comparisons: 4 }]
    }

    fn pace(within: Option<Duration>) -> Pace {
        Pace::new(shares(), within, None, Progress::hidden())
    }

    #[test]
    fn without_a_limit_all_rounds_are_run() {
        let mut pace = pace(None);
        pace.begin("a", true);
        let mut turn = pace.turn("t");
        let last: Vec<bool> = (0..=3).map(|round| turn.begin(round, 3)).collect();
        assert_eq!(last, [false, false, false, true]);
        assert!(!pace.is_over());
    }

    #[test]
    fn time_goes_by_weight_and_what_is_not_used_goes_on() {
        let mut pace = pace(Some(Duration::from_secs(445)));
        pace.begin("a", true);
        assert!((95..=100).contains(&pace.bench.share.as_secs()), "{:?}", pace.bench.share);
        let may_take = pace.turn("t").may_take.unwrap();
        assert!((45..=50).contains(&may_take.as_secs()), "{may_take:?}");
        pace.done();
        assert!((95..=100).contains(&pace.turn("t").may_take.unwrap().as_secs()));
        pace.begin("b", false);
        assert!((395..=400).contains(&pace.bench.share.as_secs()), "{:?}", pace.bench.share);
    }

    #[test]
    fn a_turn_ends_when_another_round_would_not_fit() {
        let mut turn = Turn::unhurried();
        turn.may_take = Some(Duration::from_secs(10));
        turn.longest = Duration::from_secs(4);
        // 8 s of 10 are needed from the third round on, and of 20 before.
        assert!(!turn.begin(0, 9) && !turn.begin(3, 9));
        turn.longest = Duration::from_secs(6);
        assert!(!turn.begin(2, 9) && turn.begin(3, 9));
        turn.longest = Duration::from_secs(60);
        assert!(!turn.begin(0, 9) && turn.begin(1, 9), "one round is always measured");
    }

    #[test]
    fn when_the_time_is_over_each_bench_still_has_one_comparison() {
        let mut pace = pace(Some(Duration::ZERO));
        for (name, is_first) in [("a", true), ("b", false)] {
            pace.begin(name, is_first);
            assert!(!pace.is_over());
            pace.done();
            assert!(pace.is_over());
        }
    }

    #[test]
    fn the_share_that_is_done_grows_to_one() {
        let mut pace = pace(None);
        pace.begin("a", true);
        let mut before = 0.0;
        for at in 0..6 {
            if at == 2 {
                pace.begin("b", false);
            }
            for part in [0.0, 0.5, 1.0] {
                let share = pace.share_done(part);
                assert!(share >= before && share <= 1.0, "{share} after {before}");
                before = share;
            }
            pace.done();
        }
        assert_eq!(before, 1.0);
    }
}
