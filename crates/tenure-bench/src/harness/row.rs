//! One contestant's results, their unit, and the findings about them.

use super::stats::Stats;
use serde::{Deserialize, Deserializer, Serialize};

/// The unit of a comparison. Less is better in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Nanoseconds.
    Nanoseconds,
    /// Milliseconds.
    Milliseconds,
    /// Bytes.
    Bytes,
    /// Mebibytes.
    Mebibytes,
    /// System calls.
    Calls,
    /// Parts in a hundred, of which less is better: misses.
    Percent,
}

impl Unit {
    /// Its sign.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Milliseconds => "ms",
            Unit::Bytes => "B",
            Unit::Mebibytes => "MiB",
            Unit::Calls => "calls",
            Unit::Percent => "%",
        }
    }

    /// The value with its unit, to three or four places.
    pub fn show(self, value: f64) -> String {
        let name = self.name();
        let places = match value.abs() {
            v if v >= 100.0 || self == Unit::Calls => 0,
            v if v >= 10.0 => 1,
            _ => 2,
        };
        format!("{value:.places$} {name}")
    }
}

/// A number in a column of its own.
pub(crate) fn count(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

/// The role of a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// tenure; its rows can lose.
    Ours,
    /// A program or method with the same purpose that is not tenure's.
    Peer,
    /// A limit or a landmark, which tenure need not beat.
    Reference,
}

/// One contestant's results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The contestant.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Every measured value, in the order of the rounds, the warm-up left out.
    pub samples: Vec<f64>,
    /// The samples of the columns beside the value, by name.
    pub extras: Vec<(String, Vec<f64>)>,
    /// Their summary; nothing if it could not run.
    pub stats: Option<Stats>,
    /// Goals and peers, for tenure's rows.
    pub findings: Vec<Finding>,
    /// The reason why it could not run.
    pub unavailable: Option<String>,
    /// The work that it could not do, in the last round with such a failure.
    pub failed: Option<String>,
}

impl Row {
    /// Returns whether this is a losing row: tenure's, and behind a goal or the best peer, or its
    /// work is incomplete.
    pub fn loses(&self) -> bool {
        self.findings.iter().any(Finding::loses)
            || (self.role == Role::Ours && self.failed.is_some())
    }

    /// Whether it is a losing row by no more than noise.
    pub fn loses_in_the_noise(&self) -> bool {
        self.loses()
            && self.failed.is_none()
            && self.findings.iter().all(|found| !found.loses() || found.in_the_noise())
    }
}

/// JSON has no infinity: a factor against zero is written as `null`.
fn boundless<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// A goal or a peer, and the position of tenure's row against it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The position in words, with the goal.
    pub what: String,
    /// The measured value, in the goal's own terms.
    #[serde(deserialize_with = "boundless")]
    pub measured: f64,
    /// The factor by which the row loses; 1 or less: it does not lose.
    #[serde(deserialize_with = "boundless")]
    pub loses_by: f64,
    /// The share of the rounds in which it was behind, if it is measured against another row.
    /// Rounds are interleaved, so a real difference appears in nearly all of them.
    pub behind_in: Option<f64>,
}

impl Finding {
    /// Returns whether this makes the row a losing one.
    pub fn loses(&self) -> bool {
        self.loses_by > 1.0
    }

    /// Returns whether it makes the row a losing one although the rounds do not agree: it was
    /// behind in fewer than four of five. Of two equal rows one is always behind.
    pub fn in_the_noise(&self) -> bool {
        self.loses() && self.behind_in.is_some_and(|share| share < 0.8)
    }
}
