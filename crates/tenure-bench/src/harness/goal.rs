//! What a row of ours should reach, and by how much it fell short.

use super::compare::{Role, Row, Unit};
use serde::Serialize;

/// A goal for one of our rows, judged on medians. Less is better in every unit.
#[derive(Clone, Debug, PartialEq)]
pub enum Goal {
    /// At most this much, in the comparison's unit.
    AtMost(f64),
    /// At most this many times what the named contestant takes.
    TimesOf(&'static str, f64),
    /// At least this many times faster than the named contestant.
    FasterThan(&'static str, f64),
    /// At least this share of the fastest peer's speed.
    SpeedOfBestPeer(f64),
}

/// A goal or a peer, and how our row stands to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The goal in words, or the peer that is ahead.
    pub what: String,
    /// What was measured, in the goal's own terms.
    pub measured: f64,
    /// By what factor the row loses; 1 or less: it does not.
    pub loses_by: f64,
}

impl Finding {
    /// Whether this makes the row a losing one.
    pub fn loses(&self) -> bool {
        self.loses_by > 1.0
    }
}

impl Goal {
    /// Judges `ours` among `rows`; `None` if the contestant it names did not run.
    pub fn judge(&self, ours: &Row, rows: &[Row], unit: Unit) -> Option<Finding> {
        let mine = ours.stats?.median;
        let of = |name: &str| {
            rows.iter().find(|row| row.name == name).and_then(|row| Some(row.stats?.median))
        };
        let (what, measured, loses_by) = match *self {
            Goal::AtMost(limit) => (format!("at most {}", unit.show(limit)), mine, mine / limit),
            Goal::TimesOf(name, limit) => {
                let times = mine / of(name)?;
                (format!("at most {limit}x {name}"), times, times / limit)
            }
            Goal::FasterThan(name, limit) => {
                let faster = of(name)? / mine;
                (format!("at least {limit}x faster than {name}"), faster, limit / faster)
            }
            Goal::SpeedOfBestPeer(limit) => {
                let speed = best_peer(rows)?.1 / mine;
                (format!("at least {limit}x the best peer's speed"), speed, limit / speed)
            }
        };
        Some(Finding { what, measured, loses_by })
    }
}

/// The fastest peer that ran: its name and median.
pub(crate) fn best_peer(rows: &[Row]) -> Option<(&str, f64)> {
    rows.iter()
        .filter(|row| row.role == Role::Peer)
        .filter_map(|row| Some((row.name.as_str(), row.stats?.median)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

/// All findings about one of our rows: its goals in their order, then the best peer if it is ahead.
pub(crate) fn findings(ours: &Row, goals: &[Goal], rows: &[Row], unit: Unit) -> Vec<Finding> {
    let mut found: Vec<_> = goals.iter().filter_map(|goal| goal.judge(ours, rows, unit)).collect();
    if let (Some((name, best)), Some(stats)) = (best_peer(rows), ours.stats) {
        if stats.median > best {
            let times = stats.median / best;
            found.push(Finding { what: format!("to {name}"), measured: times, loses_by: times });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Stats;

    fn row(name: &str, role: Role, median: f64) -> Row {
        Row {
            name: name.into(),
            role,
            samples: vec![median],
            extras: Vec::new(),
            stats: Stats::of(&[median]),
            findings: Vec::new(),
            unavailable: None,
        }
    }

    fn rows() -> Vec<Row> {
        vec![
            row("ours", Role::Ours, 12.0),
            row("slow peer", Role::Peer, 20.0),
            row("fast peer", Role::Peer, 10.0),
            row("limit", Role::Reference, 8.0),
        ]
    }

    fn judge(goal: Goal) -> Finding {
        let rows = rows();
        goal.judge(&rows[0], &rows, Unit::Nanoseconds).unwrap()
    }

    #[test]
    fn a_goal_that_is_reached_does_not_lose() {
        for goal in [
            Goal::AtMost(12.0),
            Goal::TimesOf("limit", 1.5),
            Goal::FasterThan("slow peer", 1.6),
            Goal::SpeedOfBestPeer(0.8),
        ] {
            let finding = judge(goal);
            assert!(!finding.loses(), "{finding:?}");
        }
    }

    #[test]
    fn a_goal_that_is_missed_says_by_what_factor() {
        for (goal, measured, by) in [
            (Goal::AtMost(10.0), 12.0, 1.2),
            (Goal::TimesOf("limit", 1.2), 1.5, 1.25),
            (Goal::FasterThan("slow peer", 5.0), 20.0 / 12.0, 3.0),
            (Goal::SpeedOfBestPeer(1.0), 10.0 / 12.0, 1.2),
        ] {
            let finding = judge(goal);
            assert!(finding.loses(), "{finding:?}");
            assert!((finding.measured - measured).abs() < 1e-9, "{finding:?}");
            assert!((finding.loses_by - by).abs() < 1e-9, "{finding:?}");
        }
    }

    #[test]
    fn a_faster_peer_makes_a_losing_row_even_where_the_goal_is_reached() {
        let rows = rows();
        let found = findings(&rows[0], &[Goal::SpeedOfBestPeer(0.8)], &rows, Unit::Nanoseconds);
        assert_eq!(found.len(), 2);
        assert!(!found[0].loses());
        assert!(found[1].loses() && found[1].what == "to fast peer");
        assert!((found[1].loses_by - 1.2).abs() < 1e-9);
    }

    #[test]
    fn a_reference_is_no_peer() {
        let mut rows = rows();
        rows.retain(|row| row.role != Role::Peer);
        assert!(findings(&rows[0], &[], &rows, Unit::Nanoseconds).is_empty());
        let goal = Goal::SpeedOfBestPeer(0.8);
        assert_eq!(goal.judge(&rows[0], &rows, Unit::Nanoseconds), None);
    }
}
