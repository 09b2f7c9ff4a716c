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

    /// The table; nothing if nothing was measured.
    pub fn render(&self, head: &str) -> Option<String> {
        if self.columns.is_empty() {
            return None;
        }
        let mut lines = Vec::new();
        for state in &self.states {
            let mut of_state: Vec<_> =
                self.lines.iter().filter(|line| line.state == *state).collect();
            of_state.sort_by_key(|line| line.place);
            lines.extend(of_state);
        }
        let cell = |column, line: &Line| {
            self.cells.get(&(column, line.state, line.name.clone())).map_or("", String::as_str)
        };
        let name_width = lines.iter().map(|line| line.name.len() + 2).max()?;
        let widths: Vec<usize> = self
            .columns
            .iter()
            .map(|&column| {
                let cells = lines.iter().map(|line| cell(column, line).len());
                cells.chain([column.len()]).max().unwrap_or(0)
            })
            .collect();
        let plural = if self.rounds == 1 { "" } else { "s" };
        let mut text = format!("{head}: ms, median (minimum) of {} round{plural}\n", self.rounds);
        let mut put = |name: &str, cells: Vec<&str>| {
            let mut line = format!("  {name:<name_width$}");
            for (cell, width) in cells.iter().zip(&widths) {
                line.push_str(&format!("  {cell:>width$}"));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        };
        put("", self.columns.clone());
        let mut state_before = "";
        for line in lines {
            if line.state != state_before {
                put(line.state, Vec::new());
                state_before = line.state;
            }
            let cells = self.columns.iter().map(|&column| cell(column, line)).collect();
            put(&format!("  {}", line.name), cells);
        }
        for reason in &self.reasons {
            text.push_str(&format!("  not measured: {reason}\n"));
        }
        Some(text)
    }
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
        assert_eq!(matrix.render("m"), None);
        matrix.add("anon", "ready", &outcome(1.0, 2.0));
        matrix.add("file", "ready", &outcome(150.0, 100.0));
        let text = matrix.render("m").unwrap();
        let line = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("tenure / best"), "tenure / best other 0.50 (0.50) !1.50 (1.50)");
        assert_eq!(line("Read"), "Read 2.000 (2.000) 100 (100)");
        assert_eq!(line("Write"), "Write - -");
        assert!(text.contains("not measured: file: no pool"), "{text}");
    }
}
