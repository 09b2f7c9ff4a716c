//! Changes between two runs, beyond the noise.

mod ranks;
mod rows;
mod show;

pub use rows::{Change, Changes, Side, Verdict};

use crate::harness::{Document, Outcome, Role, Row};
use ranks::{interval, Interval};
use std::io;
use std::path::Path;

/// Compares two files that `tenure bench --json` wrote. Changes up to `threshold` (0.05 is 5 %) do
/// not count.
///
/// # Errors
/// If one of the files cannot be read, or is of another kind. The error has the file's name.
pub fn between(before: &Path, after: &Path, threshold: f64) -> io::Result<Changes> {
    Ok(Changes::of(&Document::read(before)?, &Document::read(after)?, threshold))
}

impl Changes {
    /// Compares two runs.
    pub fn of(before: &Document, after: &Document, threshold: f64) -> Changes {
        let mut rows = Vec::new();
        for (bench, outcome) in outcomes(before) {
            let other =
                outcomes(after).find(|(name, o)| *name == bench && o.title == outcome.title);
            let other = other.map(|(_, outcome)| outcome);
            rows.extend(of_outcome(bench, outcome, other, threshold));
        }
        for (bench, outcome) in outcomes(after) {
            let known =
                outcomes(before).find(|(name, o)| *name == bench && o.title == outcome.title);
            let known = known.map(|(_, outcome)| outcome);
            let new = outcome.rows.iter().filter(|row| find(known, row).is_none());
            rows.extend(new.map(|row| single(bench, outcome, row, Verdict::OnlyAfter)));
        }
        // A row that neither run measured is dropped.
        rows.retain(|row| row.before.is_some() || row.after.is_some());
        Changes { threshold, warnings: warnings(before, after), rows }
    }

    /// The rows that changed, or `all`, and a summary.
    pub fn text(&self, all: bool) -> String {
        show::text(self, all)
    }
}

fn outcomes(document: &Document) -> impl Iterator<Item = (&str, &Outcome)> {
    let benches = document.benches.iter();
    benches.flat_map(|bench| bench.comparisons.iter().map(|outcome| (bench.name.as_str(), outcome)))
}

fn warnings(before: &Document, after: &Document) -> Vec<String> {
    let mut found = Vec::new();
    if before.machine != after.machine {
        found.push(
            "the two runs are from different machines, or from different settings of one".into(),
        );
    }
    if before.quick || after.quick {
        found.push("a run in smoke mode is too brief for its numbers to count".into());
    }
    for (name, document) in [("first", before), ("second", after)] {
        if let Some(why) = &document.ended_early {
            found.push(format!("the {name} run ended early: {why}"));
        }
    }
    found
}

/// The row of this name that was measured.
fn find<'o>(outcome: Option<&'o Outcome>, row: &Row) -> Option<&'o Row> {
    outcome?.rows.iter().find(|known| known.name == row.name)
}

fn side(row: &Row) -> Option<Side> {
    let stats = row.stats?;
    Some(Side { median: stats.median, min: stats.min, rounds: row.samples.len() })
}

fn single(bench: &str, outcome: &Outcome, row: &Row, verdict: Verdict) -> Change {
    let own = side(row);
    let is_after = verdict == Verdict::OnlyAfter;
    Change {
        bench: bench.to_owned(),
        title: outcome.title.clone(),
        name: row.name.clone(),
        role: row.role,
        unit: outcome.unit,
        before: own.filter(|_| !is_after),
        after: own.filter(|_| is_after),
        ratio: None,
        low: None,
        high: None,
        others: None,
        verdict,
    }
}

/// The rows of a comparison in the first run.
fn of_outcome(
    bench: &str,
    outcome: &Outcome,
    other: Option<&Outcome>,
    threshold: f64,
) -> Vec<Change> {
    let others = others(outcome, other);
    let changes = outcome.rows.iter().map(|row| {
        let mut change = single(bench, outcome, row, Verdict::OnlyBefore);
        let Some(twin) = find(other, row) else { return change };
        change.after = side(twin);
        let both = change.before.zip(change.after);
        let found = both.and_then(|_| interval(&row.samples, &twin.samples));
        match found {
            Some(found) => {
                // The other programs show the change of the machine. It is removed from tenure's
                // rows only: the others would be compared with themselves.
                let others = others.filter(|_| row.role == Role::Ours);
                change.verdict = judge(found, others, row, twin, threshold);
                (change.ratio, change.others) = (Some(found.ratio), others);
                (change.low, change.high) = (Some(found.low), Some(found.high));
            }
            None if change.before.is_none() => change.verdict = Verdict::OnlyAfter,
            None => {}
        }
        change
    });
    changes.collect()
}

/// The median ratio, after to before, of all rows that are not tenure's.
fn others(before: &Outcome, after: Option<&Outcome>) -> Option<f64> {
    let rows = before.rows.iter().filter(|row| row.role != Role::Ours && row.stats.is_some());
    let mut ratios: Vec<f64> = rows
        .filter_map(|row| {
            let twin = find(after, row).filter(|twin| twin.stats.is_some())?;
            interval(&row.samples, &twin.samples).map(|found| found.ratio)
        })
        .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied()
}

/// The least distance of the interval from one.
fn least_change(found: Interval, before: &Row, after: &Row, threshold: f64) -> f64 {
    match before.samples.len().min(after.samples.len()) {
        _ if found.is_sure => 1.0 + threshold,
        0 | 1 => 1.0 + threshold.max(0.5),
        _ => 1.0 + threshold.max(0.25),
    }
}

fn judge(
    found: Interval,
    others: Option<f64>,
    before: &Row,
    after: &Row,
    threshold: f64,
) -> Verdict {
    let least = least_change(found, before, after, threshold);
    let side = |by: f64| match (found.low / by, found.high / by) {
        (low, _) if low > least => Verdict::Worse,
        (_, high) if high < 1.0 / least => Verdict::Better,
        _ => Verdict::Same,
    };
    let (plain, beside) = (side(1.0), side(others.unwrap_or(1.0)));
    if plain == beside {
        plain
    } else {
        Verdict::Same
    }
}

#[cfg(test)]
mod tests;
