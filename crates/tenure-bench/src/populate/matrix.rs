//! Many small comparisons as one table: a column for each backing, a line for each way.

use crate::harness::{Outcome, Role, Row};
use std::collections::BTreeMap;

/// Cells by state and way.
pub(super) struct Matrix {
    states: Vec<&'static str>,
    columns: Vec<&'static str>,
    lines: Vec<Line>,
    cells: BTreeMap<(&'static str, &'static str, String), String>,
    reasons: Vec<String>,
    rounds: u32,
}

/// A line: its state, where it stands among that state's lines, and its name.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    state: &'static str,
    place: Place,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Peer,
    Reference,
    Ours,
    Ratio,
}

const TO_BEST: &str = "tenure / best other";

impl Matrix {
    /// An empty table, with its states in this order.
    pub fn new(states: impl IntoIterator<Item = &'static str>) -> Matrix {
        Matrix {
            states: states.into_iter().collect(),
            columns: Vec::new(),
            lines: Vec::new(),
            cells: BTreeMap::new(),
            reasons: Vec::new(),
            rounds: 0,
        }
    }

    /// Adds the outcome for a backing and the state that its ways leave behind.
    pub fn add(&mut self, column: &'static str, state: &'static str, outcome: &Outcome) {
        self.rounds = outcome.rounds;
        if !self.columns.contains(&column) {
            self.columns.push(column);
        }
        for row in &outcome.rows {
            let place = match row.role {
                Role::Peer => Place::Peer,
                Role::Reference => Place::Reference,
                Role::Ours => Place::Ours,
            };
            let line = Line { state, place, name: row.name.clone() };
            let text = match (&row.stats, &row.unavailable) {
                (Some(stats), _) => format!("{} ({})", show(stats.median), show(stats.min)),
                (None, Some(why)) => {
                    let reason = format!("{column}: {why}");
                    if !self.reasons.contains(&reason) {
                        self.reasons.push(reason);
                    }
                    "-".into()
                }
                (None, None) => "-".into(),
            };
            self.set(column, line, text);
            if let Some(ratio) = to_best(row, &outcome.rows) {
                self.set(column, Line { state, place: Place::Ratio, name: TO_BEST.into() }, ratio);
            }
        }
    }

    fn set(&mut self, column: &'static str, line: Line, text: String) {
        self.cells.insert((column, line.state, line.name.clone()), text);
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }

    /// The title and the rows of the table; nothing if nothing was measured.
    pub fn rows(&self, head: &str) -> Option<(String, Vec<Vec<String>>)> {
        if self.columns.is_empty() {
            return None;
        }
        let plural = if self.rounds == 1 { "" } else { "s" };
        let title = format!("{head}: ms, median (minimum) of {} round{plural}", self.rounds);
        let columns = self.columns.iter().map(|column| column.to_string());
        let mut rows = vec![row("", columns)];
        for state in &self.states {
            let mut lines: Vec<_> = self.lines.iter().filter(|line| line.state == *state).collect();
            lines.sort_by_key(|line| line.place);
            if !lines.is_empty() {
                rows.push(vec![state.to_string()]);
            }
            for line in lines {
                let cell = |column: &&'static str| {
                    let cell = self.cells.get(&(*column, line.state, line.name.clone()));
                    cell.cloned().unwrap_or_default()
                };
                rows.push(row(&format!("  {}", line.name), self.columns.iter().map(cell)));
            }
        }
        Some((title, rows))
    }

    /// Why a contestant was not measured.
    pub fn reasons(&self) -> impl Iterator<Item = String> + '_ {
        self.reasons.iter().map(|reason| format!("  not measured: {reason}\n"))
    }
}

/// Cells, and an empty text at the end.
fn row(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).chain([String::new()]).collect()
}

/// The ratio of tenure's to the best peer, of medians and of minima, marked if the medians lose:
/// `!`, or `~` if the rounds do not agree.
fn to_best(ours: &Row, rows: &[Row]) -> Option<String> {
    if ours.role != Role::Ours {
        return None;
    }
    let mine = ours.stats?;
    let peers = || rows.iter().filter(|row| row.role == Role::Peer).filter_map(|row| row.stats);
    let median = peers().map(|stats| stats.median).min_by(f64::total_cmp)?;
    let min = peers().map(|stats| stats.min).min_by(f64::total_cmp)?;
    let mark = match (ours.loses(), ours.loses_in_the_noise()) {
        (true, false) => "!",
        (true, true) => "~",
        (false, _) => "",
    };
    Some(format!("{mark}{:.2} ({:.2})", mine.median / median, mine.min / min))
}

fn show(ms: f64) -> String {
    match ms {
        ms if ms >= 100.0 => format!("{ms:.0}"),
        ms if ms >= 10.0 => format!("{ms:.1}"),
        ms => format!("{ms:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Comparison, Contestant, Unit};
    use std::io;

    #[test]
    fn columns_and_lines_meet() {
        let outcome = |ours: f64, theirs: f64| {
            Comparison::new("t", Unit::Milliseconds)
                .with(Contestant::new("tenure", Role::Ours, move || Ok(ours.into())))
                .with(Contestant::new("Read", Role::Peer, move || Ok(theirs.into())))
                .with(Contestant::new("Write", Role::Peer, || {
                    Err(io::Error::new(io::ErrorKind::Unsupported, "no pool"))
                }))
                .run(2)
                .unwrap()
        };
        let mut matrix = Matrix::new(["ready"]);
        assert_eq!(matrix.rows("m"), None);
        matrix.add("anon", "ready", &outcome(1.0, 2.0));
        matrix.add("file", "ready", &outcome(150.0, 100.0));
        let (title, rows) = matrix.rows("m").unwrap();
        assert_eq!(title, "m: ms, median (minimum) of 2 rounds");
        let line = |name: &str| {
            let row = rows.iter().find(|row| row[0].trim_start().starts_with(name)).unwrap();
            row.join(" ").trim().to_owned()
        };
        assert_eq!(line("tenure / best"), "tenure / best other 0.50 (0.50) !1.50 (1.50)");
        assert_eq!(line("Read"), "Read 2.000 (2.000) 100 (100)");
        assert_eq!(line("Write"), "Write - -");
        let reasons: Vec<_> = matrix.reasons().collect();
        assert!(reasons.concat().contains("not measured: file: no pool"), "{reasons:?}");
    }
}
