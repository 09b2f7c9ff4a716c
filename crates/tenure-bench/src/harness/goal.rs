//! Goals of tenure's rows, and how far a row is from them.

use super::row::{count, Finding, Role, Row, Unit};
use super::stats::Stats;

/// A goal for one of tenure's rows, judged on medians. Less is better in every unit.
#[derive(Clone, Debug, PartialEq)]
pub enum Goal {
    /// At most this much, in the comparison's unit.
    AtMost(f64),
    /// At most this multiple of the named contestant's time.
    TimesOf(&'static str, f64),
    /// At least this many times faster than the named contestant.
    FasterThan(&'static str, f64),
    /// At least this share of the fastest peer's speed.
    SpeedOfBestPeer(f64),
    /// At most this multiple of the fastest peer's time.
    TimesOfBestPeer(f64),
    /// At most this much more than the best peer, in the comparison's unit.
    MoreThanBestPeer(f64),
    /// At most this much in the column of this name.
    BesideAtMost(&'static str, f64),
    /// At most this multiple of the named contestant's count in a column: the column, the
    /// contestant, the limit.
    BesideTimesOf(&'static str, &'static str, f64),
}

/// The share of the rounds in which `ours` took more than `limit` times as long as `other`; nothing
/// if one of them did not run in every round.
fn behind(ours: &Row, other: &Row, limit: f64) -> Option<f64> {
    share_behind(&ours.samples, &other.samples, limit)
}

fn share_behind(ours: &[f64], theirs: &[f64], limit: f64) -> Option<f64> {
    if ours.len() != theirs.len() || ours.is_empty() {
        return None;
    }
    let behind = ours.iter().zip(theirs).filter(|(mine, theirs)| **mine > limit * **theirs).count();
    Some(behind as f64 / ours.len() as f64)
}

/// The counts of a column in each round.
fn column_of<'a>(row: &'a Row, name: &str) -> Option<&'a [f64]> {
    row.extras.iter().find(|(known, _)| *known == name).map(|(_, values)| values.as_slice())
}

impl Goal {
    /// Judges `ours` among `rows`; `None` if the contestant it names did not run.
    pub fn judge(&self, ours: &Row, rows: &[Row], unit: Unit) -> Option<Finding> {
        let mine = ours.stats?.median;
        let of = |name: &str| {
            let row = rows.iter().find(|row| row.name == name)?;
            Some((row, row.stats?.median))
        };
        let (what, measured, loses_by, behind_in) = match *self {
            Goal::AtMost(limit) => {
                let (mine_is, most) = (unit.show(mine), unit.show(limit));
                (format!("{mine_is} (goal: at most {most})"), mine, mine / limit, None)
            }
            Goal::TimesOf(name, limit) => {
                let (row, theirs) = of(name)?;
                let ratio = mine / theirs;
                let what = format!("{} {name} (goal: at most {limit}x)", times(ratio, limit));
                (what, ratio, ratio / limit, behind(ours, row, limit))
            }
            Goal::FasterThan(name, limit) => {
                let (row, theirs) = of(name)?;
                let faster = theirs / mine;
                let what = format!("{} the speed of {name} (goal: {limit}x)", times(faster, limit));
                (what, faster, limit / faster, behind(ours, row, 1.0 / limit))
            }
            Goal::SpeedOfBestPeer(limit) => {
                let (row, theirs) = best_peer(rows)?;
                let speed = theirs / mine;
                let what = format!(
                    "{} the speed of {} (goal: at least {limit}x)",
                    times(speed, limit),
                    row.name
                );
                (what, speed, limit / speed, behind(ours, row, 1.0 / limit))
            }
            Goal::TimesOfBestPeer(limit) => {
                let (row, theirs) = best_peer(rows)?;
                let ratio = mine / theirs;
                let what = format!("{} {} (goal: at most {limit}x)", times(ratio, limit), row.name);
                (what, ratio, ratio / limit, behind(ours, row, limit))
            }
            Goal::MoreThanBestPeer(limit) => {
                let (row, theirs) = best_peer(rows)?;
                let (gap, most) = (unit.show((mine - theirs).abs()), unit.show(limit));
                let side = if mine > theirs { "behind" } else { "ahead of" };
                let what = format!("{gap} {side} {} (goal: at most {most} behind)", row.name);
                (what, mine - theirs, mine / (theirs + limit), None)
            }
            Goal::BesideAtMost(name, limit) => {
                let beside = Stats::of(column_of(ours, name)?)?.median;
                let what = format!("{name} {} (goal: at most {limit})", count(beside));
                (what, beside, beside / limit, None)
            }
            Goal::BesideTimesOf(column, name, limit) => {
                let theirs = column_of(rows.iter().find(|row| row.name == name)?, column)?;
                let mine = column_of(ours, column)?;
                let ratio = Stats::of(mine)?.median / Stats::of(theirs)?.median;
                let what =
                    format!("{column} {} {name} (goal: at most {limit}x)", times(ratio, limit));
                (what, ratio, ratio / limit, share_behind(mine, theirs, limit))
            }
        };
        Some(Finding { what, measured, loses_by, behind_in })
    }
}

/// A ratio, with enough places that a narrow loss does not look like a tie.
fn times(ratio: f64, limit: f64) -> String {
    match (ratio - limit).abs() < 0.005 {
        true => format!("{ratio:.4}x"),
        false => format!("{ratio:.2}x"),
    }
}

/// The fastest peer that ran and did all of the work, and its median.
pub(crate) fn best_peer(rows: &[Row]) -> Option<(&Row, f64)> {
    rows.iter()
        .filter(|row| row.role == Role::Peer && row.failed.is_none())
        .filter_map(|row| Some((row, row.stats?.median)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

/// All findings about one of tenure's rows: its goals in their order, then the best peer if it is
/// ahead, unless a goal sets how far ahead it may be.
pub(crate) fn findings(ours: &Row, goals: &[Goal], rows: &[Row], unit: Unit) -> Vec<Finding> {
    let mut found: Vec<_> = goals.iter().filter_map(|goal| goal.judge(ours, rows, unit)).collect();
    let allowed = |goal: &Goal| matches!(goal, Goal::MoreThanBestPeer(_));
    if goals.iter().any(allowed) {
        return found;
    }
    if let (Some((peer, best)), Some(stats)) = (best_peer(rows), ours.stats) {
        if stats.median > best {
            let ratio = stats.median / best;
            found.push(Finding {
                what: format!("{} {}", times(ratio, 1.0), peer.name),
                measured: ratio,
                loses_by: ratio,
                behind_in: behind(ours, peer, 1.0),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, role: Role, median: f64) -> Row {
        Row {
            name: name.into(),
            role,
            samples: vec![median],
            extras: vec![("setup ms".into(), vec![0.5])],
            stats: Stats::of(&[median]),
            findings: Vec::new(),
            unavailable: None,
            failed: None,
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
            Goal::TimesOfBestPeer(1.2),
            Goal::MoreThanBestPeer(2.0),
            Goal::BesideAtMost("setup ms", 0.5),
            Goal::BesideTimesOf("setup ms", "slow peer", 1.0),
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
            (Goal::TimesOfBestPeer(0.8), 1.2, 1.5),
            (Goal::MoreThanBestPeer(0.0), 2.0, 1.2),
            (Goal::BesideAtMost("setup ms", 0.25), 0.5, 2.0),
            (Goal::BesideTimesOf("setup ms", "fast peer", 0.8), 1.0, 1.25),
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
        assert!(found[1].loses() && found[1].what == "1.20x fast peer");
        assert!((found[1].loses_by - 1.2).abs() < 1e-9);
    }

    #[test]
    fn a_peer_that_is_ahead_by_no_more_than_allowed_makes_no_losing_row() {
        let rows = rows();
        for (allowed, loses) in [(1.0, true), (2.0, false)] {
            let goals = [Goal::MoreThanBestPeer(allowed)];
            let found = findings(&rows[0], &goals, &rows, Unit::Percent);
            assert_eq!((found.len(), found[0].loses()), (1, loses));
        }
    }

    #[test]
    fn a_loss_that_the_rounds_do_not_agree_on_is_noise() {
        let mut rows = rows();
        rows[0].samples = vec![10.0, 12.0, 12.0, 9.0, 12.0];
        rows[2].samples = vec![11.0, 10.0, 10.0, 10.0, 10.0];
        let found = findings(&rows[0], &[], &rows, Unit::Nanoseconds);
        assert_eq!(found[0].behind_in, Some(0.6));
        assert!(found[0].loses() && found[0].in_the_noise());
        rows[0].samples[3] = 12.0;
        let found = findings(&rows[0], &[], &rows, Unit::Nanoseconds);
        assert!(found[0].loses() && !found[0].in_the_noise());
        // One sample against many allows no conclusion about rounds.
        rows[2].samples.truncate(1);
        assert!(!findings(&rows[0], &[], &rows, Unit::Nanoseconds)[0].in_the_noise());
    }

    #[test]
    fn a_narrow_loss_does_not_look_like_a_tie() {
        assert_eq!([times(1.0012, 1.0), times(1.14, 1.0)], ["1.0012x", "1.14x"]);
        assert_eq!(judge(Goal::AtMost(10.0)).what, "12.0 ns (goal: at most 10.0 ns)");
        let what = judge(Goal::SpeedOfBestPeer(1.0)).what;
        assert_eq!(what, "0.83x the speed of fast peer (goal: at least 1x)");
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
