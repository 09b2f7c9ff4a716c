//! One contestant's results, what they are counted in, and what was found about them.

use super::stats::Stats;
use serde::{Deserialize, Deserializer, Serialize};

/// What a comparison counts. Less is better in all of them.
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

/// What a contestant is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// tenure; its rows can lose.
    Ours,
    /// Another way to the same end, which is not tenure's.
    Peer,
    /// A limit or a landmark: nothing that we would have to beat.
    Reference,
}

/// One contestant's results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The contestant.
    pub name: String,
    /// What it is to us.
    pub role: Role,
    /// Every measured value, in the order of the rounds, the warm-up left out.
    pub samples: Vec<f64>,
    /// Every value counted beside, by name, likewise.
    pub extras: Vec<(String, Vec<f64>)>,
    /// Their summary; nothing if it could not run.
    pub stats: Option<Stats>,
    /// Goals and peers, for our rows.
    pub findings: Vec<Finding>,
    /// Why it could not run.
    pub unavailable: Option<String>,
    /// What of its work it could not do, in the last round in which that was so.
    pub failed: Option<String>,
}

impl Row {
    /// Whether this is a losing row: ours, and behind a goal or the best peer, or not up to the work.
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

/// A goal or a peer, and how our row stands to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The goal in words, or the peer that is ahead.
    pub what: String,
    /// What was measured, in the goal's own terms.
    #[serde(deserialize_with = "boundless")]
    pub measured: f64,
    /// By what factor the row loses; 1 or less: it does not.
    #[serde(deserialize_with = "boundless")]
    pub loses_by: f64,
    /// In what share of the rounds it was behind, where it is measured against another row: rounds
    /// are interleaved, so a difference that is no noise shows in nearly all of them.
    pub behind_in: Option<f64>,
}

impl Finding {
    /// Whether this makes the row a losing one.
    pub fn loses(&self) -> bool {
        self.loses_by > 1.0
    }

    /// Whether it makes the row a losing one although the rounds do not agree on it: fewer than four
    /// in five say so. Of two that are equal one is always behind.
    pub fn in_the_noise(&self) -> bool {
        self.loses() && self.behind_in.is_some_and(|share| share < 0.8)
    }
}
