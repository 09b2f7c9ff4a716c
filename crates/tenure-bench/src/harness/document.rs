//! The results of a run: `--json` writes them, and a page or a comparison of runs reads them.

use super::compare::Outcome;
use super::machine::{peer_versions, Machine};
use super::row::{Role, Row};
use crate::Options;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tenure_command::call::failed_at;

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    /// The version of tenure.
    pub tenure: String,
    /// When it began, in seconds since 1970.
    #[serde(default)]
    pub began: Option<u64>,
    /// How long it took, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// The load average of the last minute when it began: other work makes times longer.
    #[serde(default)]
    pub load_average: Option<f64>,
    /// The reason why the run is incomplete: it was interrupted, or something failed.
    #[serde(default)]
    pub ended_early: Option<String>,
    /// The machine on which it ran.
    pub machine: Machine,
    /// The programs and libraries of the comparisons.
    pub peers: Vec<Peer>,
    /// Whether it was smoke mode.
    pub quick: bool,
    /// The benches, in order.
    pub benches: Vec<Bench>,
}

/// A program or library that tenure is measured against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The results of one bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bench {
    /// Its name.
    pub name: String,
    /// A description.
    #[serde(default)]
    pub description: String,
    /// How long it took, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// Its comparisons.
    pub comparisons: Vec<Outcome>,
    /// Histograms, if they were recorded.
    #[serde(default)]
    pub histograms: Vec<Histogram>,
    /// Time series, if they were recorded.
    #[serde(default)]
    pub time_series: Vec<TimeSeries>,
    /// Sentences.
    pub notes: Vec<String>,
}

/// Values and how often they came, for several contestants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// The title.
    pub title: String,
    /// The unit of a value.
    pub unit: String,
    /// The contestants.
    pub rows: Vec<HistogramRow>,
}

/// One contestant's values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistogramRow {
    /// The contestant.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Values in ascending order, each with its count.
    pub counts: Vec<(f64, u64)>,
}

/// Values over time, for several contestants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeSeries {
    /// The title.
    pub title: String,
    /// The name and unit of the time.
    pub over: String,
    /// The unit of a value.
    pub unit: String,
    /// The contestants.
    pub rows: Vec<TimeSeriesRow>,
}

/// One contestant's values over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeSeriesRow {
    /// The contestant.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Time and value, in the order of time.
    pub points: Vec<(f64, f64)>,
}

impl Document {
    /// An empty document, for a run that begins now.
    pub fn new(options: &Options) -> Document {
        let peers = peer_versions();
        let peers = peers
            .into_iter()
            .map(|(name, version)| Peer { name: name.into(), version: version.into() });
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Document {
            tenure: env!("CARGO_PKG_VERSION").into(),
            began: since.ok().map(|since| since.as_secs()),
            seconds: 0.0,
            load_average: load_average(),
            ended_early: None,
            machine: Machine::describe(),
            peers: peers.collect(),
            quick: options.quick,
            benches: Vec::new(),
        }
    }

    /// Reads one that `--json` wrote.
    ///
    /// # Errors
    /// With the file's name: the system's error, or `InvalidData` if it is another kind of file.
    pub fn read(path: &Path) -> io::Result<Document> {
        let named = |error| failed_at(path, "open", error);
        let file = File::open(path).map_err(named)?;
        serde_json::from_reader(BufReader::new(file)).map_err(|error| {
            let why = format!("not a run that `tenure bench --json` wrote: {error}");
            named(io::Error::new(io::ErrorKind::InvalidData, why))
        })
    }

    /// The rows of tenure, each with its comparison.
    pub fn ours(&self) -> impl Iterator<Item = (&Outcome, &Row)> {
        let outcomes = self.benches.iter().flat_map(|bench| &bench.comparisons);
        outcomes
            .flat_map(|outcome| outcome.rows.iter().map(move |row| (outcome, row)))
            .filter(|(_, row)| row.role == Role::Ours)
    }
}

fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_is_named_and_refused() {
        let path = std::env::temp_dir().join(format!("tenure-no-run-{}", std::process::id()));
        std::fs::write(&path, "{\"passed\": true}").unwrap();
        let error = Document::read(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().starts_with(&*path.to_string_lossy()), "{error}");
        let error = Document::read(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
