//! A comparison as text.

use super::compare::Outcome;
use super::row::{count, Role, Row};
use super::stats::Stats;
use tenure_command::table::{self, Layout};
use tenure_command::wrap::wrap;

/// The outcome as a titled table, one line a contestant, losing rows marked. Where it is wider than
/// `width`, the verdicts stand below the rows.
pub(crate) fn render(outcome: &Outcome, width: Option<usize>) -> String {
    let extras = extra_names(outcome);
    let baseline = outcome.baseline.as_deref().unwrap_or("");
    let base = base_of(outcome, baseline);
    let mut head: Vec<String> =
        ["", "median", "min", "spread"].iter().map(|name| name.to_string()).collect();
    head.push(format!("x {baseline}"));
    head.push("of minima".to_string());
    head.extend(extras.iter().map(|name| name.to_string()));
    head.push(String::new());

    let mut rows = vec![head];
    for row in &outcome.rows {
        rows.push(cells(outcome, row, base, &extras));
    }
    let plural = if outcome.rounds == 1 { "" } else { "s" };
    let mut text = wrap(
        &format!("{} ({} round{plural})", outcome.title, outcome.rounds),
        0,
        width.unwrap_or(usize::MAX),
    );
    let layout = Layout { indent: 2, width, text_at_end: true, ..Layout::default() };
    let is_narrow = width.is_some_and(|width| table::natural_width(&rows, layout.indent) > width);
    if !is_narrow {
        return text + &table::render(&rows, layout);
    }
    let verdicts: Vec<_> = rows.iter_mut().map(|row| row.pop().unwrap_or_default()).collect();
    text.push_str(&table::render(&rows, Layout { text_at_end: false, ..layout }));
    for (row, verdict) in rows.iter().zip(&verdicts).filter(|(_, verdict)| !verdict.is_empty()) {
        let line = format!("{}: {verdict}", row[0]);
        text.push_str("  ");
        text.push_str(&wrap(&line, 2, width.unwrap_or(usize::MAX)));
    }
    text
}

/// The column of the processes that the kernel killed for lack of memory, in all rounds together.
pub(crate) const KILLED: &str = "killed";

fn cells(outcome: &Outcome, row: &Row, base: Option<Stats>, extras: &[&str]) -> Vec<String> {
    let mut cells = vec![row.name.clone()];
    match row.stats {
        Some(stats) => {
            cells.push(outcome.unit.show(stats.median));
            cells.push(outcome.unit.show(stats.min));
            cells.push(format!("{:.0} %", stats.spread * 100.0));
            cells.push(ratio(stats.median, base.map(|base| base.median)));
            cells.push(ratio(stats.min, base.map(|base| base.min)));
        }
        None => cells.extend(std::iter::repeat_n("-".to_string(), 5)),
    }
    for name in extras {
        let figures = row
            .extras
            .iter()
            .find(|(known, _)| known == name)
            .filter(|_| row.unavailable.is_none());
        let figure = figures.and_then(|(_, values)| match *name {
            // A median would hide the kills of less than half of the rounds.
            KILLED => Some(values.iter().sum()),
            _ => Stats::of(values).map(|stats| stats.median),
        });
        cells.push(figure.map_or("-".into(), count));
    }
    cells.push(match verdict(row) {
        said if row.stats.is_none() || row.samples.len() == outcome.rounds as usize => said,
        said if said.is_empty() => format!("({} sample)", row.samples.len()),
        said => format!("({} sample) {said}", row.samples.len()),
    });
    cells
}

/// The text at the end of a row: first its losses, then its achievements.
pub(crate) fn verdict(row: &Row) -> String {
    if let Some(reason) = &row.unavailable {
        return format!("not measured: {reason}");
    }
    let mut parts = Vec::new();
    if let Some(reason) = &row.failed {
        parts.push(format!("FAILED: {reason}"));
    }
    if row.role != Role::Ours {
        return parts.join("; ");
    }
    for finding in row.findings.iter().filter(|finding| finding.loses()) {
        let noise = match finding.behind_in {
            Some(share) if finding.in_the_noise() => {
                format!(" (noise? in {:.0} % of the rounds)", share * 100.0)
            }
            _ => String::new(),
        };
        parts.push(format!("LOSES: {}{noise}", finding.what));
    }
    for finding in row.findings.iter().filter(|finding| !finding.loses()) {
        parts.push(format!("ok: {}", finding.what));
    }
    parts.join("; ")
}

fn extra_names(outcome: &Outcome) -> Vec<&str> {
    let mut names = Vec::new();
    for (name, _) in outcome.rows.iter().flat_map(|row| &row.extras) {
        if !names.contains(&name.as_str()) {
            names.push(name.as_str());
        }
    }
    names
}

fn base_of(outcome: &Outcome, name: &str) -> Option<Stats> {
    outcome.rows.iter().find(|row| row.name == name)?.stats
}

fn ratio(value: f64, base: Option<f64>) -> String {
    match base {
        Some(base) if base > 0.0 => format!("{:.2}", value / base),
        _ => "-".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use crate::harness::{Comparison, Contestant, Goal, Role, Sample, Unit};
    use std::io;

    #[test]
    fn losing_rows_are_marked_and_others_are_not() {
        let outcome = Comparison::new("get", Unit::Nanoseconds)
            .with(
                Contestant::new("tenure", Role::Ours, || {
                    Ok(Sample::from(114.0).with("faults", 3.0))
                })
                .goal(Goal::SpeedOfBestPeer(0.8))
                .goal(Goal::AtMost(50.0)),
            )
            .with(Contestant::new("fast", Role::Peer, || Ok(100.0.into())))
            .with(Contestant::new("gone", Role::Peer, || {
                Err(io::Error::new(io::ErrorKind::Unsupported, "no such call"))
            }))
            .run(2)
            .unwrap();
        let text = super::render(&outcome, None);
        let line = |name: &str| {
            text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_string()
        };
        let ours = line("tenure");
        assert!(ours.contains("LOSES: 1.14x fast"), "{text}");
        assert!(ours.contains("LOSES: 114 ns (goal: at most 50.0 ns)"), "{text}");
        assert!(ours.contains("ok: 0.88x the speed of fast (goal: at least 0.8x)"), "{text}");
        assert!(ours.contains("1.14") && ours.contains("114 ns"), "{text}");
        assert!(!line("fast").contains("LOSES"), "{text}");
        assert!(line("gone").contains("not measured: no such call"), "{text}");
        assert!(text.lines().nth(1).unwrap().contains("x fast"), "{text}");
        let narrow = super::render(&outcome, Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains("\n  tenure: LOSES: 114 ns"), "{narrow}");
    }
}
