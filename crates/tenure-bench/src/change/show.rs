//! Changes as text.

use super::rows::{Change, Changes, Verdict};
use crate::harness::Role;
use std::fmt::Write;

/// A table for each kind of change, and a summary at the end.
pub(super) fn text(changes: &Changes, all: bool) -> String {
    let mut text = String::new();
    for warning in &changes.warnings {
        let _ = writeln!(text, "Beware: {warning}");
    }
    let ours = |verdict| pick(changes, move |row| row.role == Role::Ours && row.verdict == verdict);
    let others = pick(changes, |row| {
        row.role != Role::Ours && matches!(row.verdict, Verdict::Better | Verdict::Worse)
    });
    table(&mut text, "Worse, rows of tenure", &ours(Verdict::Worse));
    table(&mut text, "Better, rows of tenure", &ours(Verdict::Better));
    table(&mut text, "Changed, rows of others", &others);
    if all {
        table(
            &mut text,
            "No change beyond the noise",
            &pick(changes, |row| row.verdict == Verdict::Same),
        );
    }
    for (title, verdict) in [
        ("Only in the first run", Verdict::OnlyBefore),
        ("Only in the second run", Verdict::OnlyAfter),
    ] {
        let rows = pick(changes, |row| row.verdict == verdict);
        if !rows.is_empty() {
            let _ = writeln!(text, "{title}:");
            rows.iter().for_each(|row| {
                let _ = writeln!(text, "  {}: {}", row.title, row.name);
            });
            text.push('\n');
        }
    }
    let number = |verdict| ours(verdict).len();
    let _ = writeln!(
        text,
        "Of {} rows of tenure in both runs: {} worse, {} better, {} the same within the noise \
         (99 % interval, by more than {} %)",
        number(Verdict::Worse) + number(Verdict::Better) + number(Verdict::Same),
        number(Verdict::Worse),
        number(Verdict::Better),
        number(Verdict::Same),
        (changes.threshold * 1e4).round() / 100.0
    );
    text
}

fn pick(changes: &Changes, is_it: impl Fn(&Change) -> bool) -> Vec<&Change> {
    changes.rows.iter().filter(|row| is_it(row)).collect()
}

fn table(text: &mut String, title: &str, rows: &[&Change]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(text, "{title}:");
    for row in rows {
        let _ = writeln!(text, "  {}: {}", row.title, row.name);
        let (Some(before), Some(after)) = (row.before, row.after) else { continue };
        let _ = write!(
            text,
            "    {} -> {}  x {}",
            row.unit.show(before.median),
            row.unit.show(after.median),
            times(row.ratio)
        );
        let _ = write!(text, " [{} to {}]", times(row.low), times(row.high));
        if let Some(others) = row.others {
            let _ = write!(text, ", others x {}", times(Some(others)));
        }
        let _ = writeln!(text, ", {} and {} rounds", before.rounds, after.rounds);
    }
    text.push('\n');
}

fn times(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.2}"))
}
