//! Compares named contestants that take turns.

use super::goal::{best_peer, findings, Goal};
use super::pace::Turn;
use super::row::{Role, Row, Unit};
use super::stats::Stats;
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::RangeInclusive;

/// One measurement: the value, and the counts beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    value: f64,
    extras: Vec<(&'static str, f64)>,
    failed: Option<String>,
}

impl From<f64> for Sample {
    fn from(value: f64) -> Self {
        Sample { value, extras: Vec::new(), failed: None }
    }
}

impl Sample {
    /// Adds a count, shown as a column of its own (the median over the rounds).
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.extras.push((name, value));
        self
    }

    /// Marks the sample as incomplete, so that the value does not measure speed. The row is shown
    /// with the reason. A peer so marked does not count as best, and a row of tenure's has lost.
    #[must_use]
    pub fn failed(mut self, why: impl Into<String>) -> Self {
        self.failed = Some(why.into());
        self
    }
}

type Measure<'a> = Box<dyn FnMut() -> io::Result<Sample> + 'a>;

/// One side of a comparison.
pub struct Contestant<'a> {
    name: String,
    role: Role,
    goals: Vec<Goal>,
    once: bool,
    measure: Measure<'a>,
}

impl<'a> Contestant<'a> {
    /// Makes a contestant; `measure` takes one sample of it.
    ///
    /// `ErrorKind::Unsupported` (a feature that this kernel lacks) and `TimedOut` take the
    /// contestant out of the comparison with their reason; any other error ends the run.
    pub fn new(
        name: impl Into<String>,
        role: Role,
        measure: impl FnMut() -> io::Result<Sample> + 'a,
    ) -> Self {
        Contestant {
            name: name.into(),
            role,
            goals: Vec::new(),
            once: false,
            measure: Box::new(measure),
        }
    }

    /// Adds a goal.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goals.push(goal);
        self
    }

    /// Its row, with no samples yet.
    fn row(&self) -> Row {
        Row {
            name: self.name.clone(),
            role: self.role,
            samples: Vec::new(),
            extras: Vec::new(),
            stats: None,
            findings: Vec::new(),
            unavailable: None,
            failed: None,
        }
    }

    /// Lets it take part only in the last round and in no warm-up: for contestants that take
    /// minutes, and are too far behind for more samples to change the table.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }
}

/// Contestants measured in turns, and how to show them.
pub struct Comparison<'a> {
    title: String,
    unit: Unit,
    contestants: Vec<Contestant<'a>>,
    baseline: Option<String>,
    is_headline: bool,
}

/// A comparison that has run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The title.
    pub title: String,
    /// The unit.
    pub unit: Unit,
    /// The contestant that the ratios refer to.
    pub baseline: Option<String>,
    /// Measured rounds.
    pub rounds: u32,
    /// The contestants in their order.
    pub rows: Vec<Row>,
}

impl<'a> Comparison<'a> {
    /// An empty comparison.
    pub fn new(title: impl Into<String>, unit: Unit) -> Self {
        Comparison {
            title: title.into(),
            unit,
            contestants: Vec::new(),
            baseline: None,
            is_headline: false,
        }
    }

    /// Marks a comparison whose figure stands for the bench: it is measured even if the time is over.
    #[must_use]
    pub fn headline(mut self, is_headline: bool) -> Self {
        self.is_headline = is_headline;
        self
    }

    pub(crate) fn is_headline(&self) -> bool {
        self.is_headline
    }

    /// Returns the title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Names the contestant that the ratios refer to; otherwise the fastest peer, else the first
    /// contestant.
    #[must_use]
    pub fn baseline(mut self, name: impl Into<String>) -> Self {
        self.baseline = Some(name.into());
        self
    }

    /// Adds a contestant; they run in the order in which they were added.
    #[must_use]
    pub fn with(mut self, contestant: Contestant<'a>) -> Self {
        self.contestants.push(contestant);
        self
    }

    /// Runs the warm-up round and then `rounds` measured ones.
    ///
    /// # Errors
    /// The first error of a contestant other than `Unsupported` and `TimedOut`.
    pub fn run(self, rounds: u32) -> io::Result<Outcome> {
        self.run_in(0..=rounds, &mut Turn::unhurried())
    }

    /// [`run`](Comparison::run), with fewer rounds if `turn` is over before. Round 0 is the warm-up.
    /// An interruption ends it with the complete rounds.
    ///
    /// # Errors
    /// As for [`run`](Comparison::run); `Interrupted` if not even one round is complete.
    pub(crate) fn run_in(
        mut self,
        rounds: RangeInclusive<u32>,
        turn: &mut Turn<'_>,
    ) -> io::Result<Outcome> {
        let mut rows: Vec<Row> = self.contestants.iter().map(Contestant::row).collect();
        let mut whole = 0;
        let last = *rounds.end();
        for round in rounds {
            let is_last = turn.begin(round, last);
            if let Err(error) = self.round(round, is_last, &mut rows, turn) {
                if !turn.is_interrupted() || whole == 0 {
                    return Err(error);
                }
                break;
            }
            whole = round;
            if is_last {
                break;
            }
        }
        for row in &mut rows {
            row.keep(whole as usize);
            // A contestant that dropped out half-way is not judged by its earlier rounds.
            row.stats = Stats::of(&row.samples).filter(|_| row.unavailable.is_none());
        }
        for (at, contestant) in self.contestants.iter().enumerate() {
            if contestant.role == Role::Ours {
                rows[at].findings = findings(&rows[at], &contestant.goals, &rows, self.unit);
            }
        }
        let baseline = self
            .baseline
            .or_else(|| best_peer(&rows).map(|(row, _)| row.name.clone()))
            .or_else(|| rows.first().map(|row| row.name.clone()));
        Ok(Outcome { title: self.title, unit: self.unit, baseline, rounds: whole, rows })
    }

    fn round(
        &mut self,
        round: u32,
        is_last: bool,
        rows: &mut [Row],
        turn: &mut Turn<'_>,
    ) -> io::Result<()> {
        let number = self.contestants.len();
        for (at, (contestant, row)) in self.contestants.iter_mut().zip(rows).enumerate() {
            if row.unavailable.is_some() || (contestant.once && !is_last) {
                continue;
            }
            turn.check()?;
            let measured = (contestant.measure)();
            turn.measured(at + 1, number);
            match measured {
                // Round 0 faults the memory in, fills the caches and raises the processor's clock.
                Ok(sample) if round > 0 => row.add(sample),
                Ok(_) => {}
                Err(error) if turn.is_interrupted() => return Err(error),
                Err(error) if takes_out(&error) => row.unavailable = Some(error.to_string()),
                Err(error) => {
                    let why = format!("{}: {}: {error}", self.title, contestant.name);
                    return Err(io::Error::new(error.kind(), why));
                }
            }
        }
        Ok(())
    }
}

fn takes_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::TimedOut)
}

impl Row {
    /// Drops the samples of a round that was not finished.
    fn keep(&mut self, rounds: usize) {
        self.samples.truncate(rounds);
        self.extras.iter_mut().for_each(|(_, values)| values.truncate(rounds));
    }

    fn add(&mut self, sample: Sample) {
        self.samples.push(sample.value);
        if sample.failed.is_some() {
            self.failed = sample.failed;
        }
        for (name, value) in sample.extras {
            match self.extras.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(value),
                None => self.extras.push((name.to_string(), vec![value])),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn contestants_take_turns_and_the_warm_up_is_dropped() {
        let turns = RefCell::new(String::new());
        let take = |name: char, value: f64| {
            let turns = &turns;
            let mut round = 0.0;
            move || {
                turns.borrow_mut().push(name);
                round += 1.0;
                // The first turn is very slow, as first turns are.
                Ok(Sample::from(if round == 1.0 { 1e9 } else { value }).with("turn", round))
            }
        };
        let outcome = Comparison::new("t", Unit::Nanoseconds)
            .with(Contestant::new("a", Role::Ours, take('a', 3.0)).goal(Goal::TimesOf("b", 1.0)))
            .with(Contestant::new("b", Role::Peer, take('b', 2.0)))
            .with(Contestant::new("c", Role::Peer, take('c', 4.0)))
            .run(3)
            .unwrap();
        assert_eq!(*turns.borrow(), "abcabcabcabc");
        assert_eq!(outcome.rows[0].samples, [3.0, 3.0, 3.0]);
        assert_eq!(outcome.rows[0].extras, [("turn".to_string(), vec![2.0, 3.0, 4.0])]);
        assert_eq!(outcome.baseline.as_deref(), Some("b"));
        assert!(outcome.rows[0].loses());
        assert!(!outcome.rows[1].loses(), "a peer's row never loses");
    }

    #[test]
    fn who_takes_minutes_is_measured_once() {
        let turns = RefCell::new(String::new());
        let take = |name: char| {
            let turns = &turns;
            move || {
                turns.borrow_mut().push(name);
                Ok(Sample::from(1.0))
            }
        };
        let outcome = Comparison::new("t", Unit::Milliseconds)
            .with(Contestant::new("a", Role::Ours, take('a')))
            .with(Contestant::new("s", Role::Peer, take('s')).once())
            .run(2)
            .unwrap();
        assert_eq!(*turns.borrow(), "aaas");
        assert_eq!(outcome.rows[1].samples, [1.0]);
    }

    #[test]
    fn who_cannot_do_the_work_is_nobodys_best_and_one_of_ours_loses() {
        let cannot = || Ok(Sample::from(1.0).failed("killed twice"));
        let outcome = Comparison::new("t", Unit::Milliseconds)
            .with(Contestant::new("a", Role::Ours, || Ok(3.0.into())))
            .with(Contestant::new("b", Role::Ours, cannot))
            .with(Contestant::new("p", Role::Peer, cannot))
            .with(Contestant::new("q", Role::Peer, || Ok(4.0.into())))
            .run(2)
            .unwrap();
        assert_eq!(outcome.baseline.as_deref(), Some("q"));
        assert!(!outcome.rows[0].loses(), "{:?}", outcome.rows[0].findings);
        assert!(outcome.rows[1].loses() && !outcome.rows[1].loses_in_the_noise());
        assert_eq!(outcome.rows[2].failed.as_deref(), Some("killed twice"));
        assert!(!outcome.rows[2].loses());
    }

    #[test]
    fn what_the_kernel_lacks_takes_a_contestant_out_and_nothing_else() {
        let outcome = Comparison::new("t", Unit::Milliseconds)
            .with(Contestant::new("here", Role::Ours, || Ok(1.0.into())).goal(Goal::AtMost(2.0)))
            .with(Contestant::new("not here", Role::Peer, || {
                Err(io::Error::new(io::ErrorKind::Unsupported, "no such advice"))
            }))
            .run(2)
            .unwrap();
        assert_eq!(outcome.rows[1].unavailable.as_deref(), Some("no such advice"));
        assert_eq!(outcome.rows[1].stats, None);
        assert!(!outcome.rows[0].loses());
    }

    #[test]
    fn another_error_ends_the_run_and_says_where() {
        let error = Comparison::new("reads", Unit::Milliseconds)
            .with(Contestant::new("it", Role::Ours, || {
                Err(io::Error::new(io::ErrorKind::InvalidData, "wrong bytes"))
            }))
            .run(1)
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(error.to_string(), "reads: it: wrong bytes");
    }
}
