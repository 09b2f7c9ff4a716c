//! Rows of two runs, side by side.

use crate::harness::{Role, Unit};
use serde::{Serialize, Serializer};
use std::io::{self, Write};

/// All rows of two runs.
#[derive(Clone, Debug, Serialize)]
pub struct Changes {
    /// Changes up to this share do not count.
    pub threshold: f64,
    /// Reasons why the two are hard to compare: another machine, another mode.
    pub warnings: Vec<String>,
    /// The rows, in the order of the first run, those of the second alone at the end.
    pub rows: Vec<Change>,
}

/// One row in both runs, or in one of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The benchmark.
    pub bench: String,
    /// The title of the comparison.
    pub title: String,
    /// The contestant.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The unit. Less is better.
    pub unit: Unit,
    /// The first run; nothing if it was not measured there.
    pub before: Option<Side>,
    /// The second run, likewise.
    pub after: Option<Side>,
    /// The ratio of the time after to the time before.
    #[serde(serialize_with = "finite")]
    pub ratio: Option<f64>,
    /// The interval of that ratio.
    #[serde(serialize_with = "finite")]
    pub low: Option<f64>,
    /// Its other end.
    #[serde(serialize_with = "finite")]
    pub high: Option<f64>,
    /// The ratio of the other programs in the table, if there are any: the change of the machine.
    #[serde(serialize_with = "finite")]
    pub others: Option<f64>,
    /// The conclusion.
    pub verdict: Verdict,
}

/// A row in one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The median.
    pub median: f64,
    /// The best sample.
    pub min: f64,
    /// Measured rounds.
    pub rounds: usize,
}

/// The conclusion about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Less than before, beyond the noise.
    Better,
    /// More than before, beyond the noise.
    Worse,
    /// Nothing beyond the noise.
    Same,
    /// It was measured in the first run only.
    OnlyBefore,
    /// It was measured in the second run only.
    OnlyAfter,
}

/// JSON has no infinity.
fn finite<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    value.filter(|value| value.is_finite()).serialize(to)
}

impl Changes {
    /// The rows of tenure that became worse beyond the noise.
    pub fn losses(&self) -> usize {
        let worse = |row: &&Change| row.role == Role::Ours && row.verdict == Verdict::Worse;
        self.rows.iter().filter(worse).count()
    }

    /// Writes them as JSON.
    ///
    /// # Errors
    /// Errors of `to`.
    pub fn write_json(&self, to: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *to, self)?;
        writeln!(to)
    }
}
