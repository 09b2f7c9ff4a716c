//! All comparisons of a run: printed as they end, written as JSON at the end.

use super::compare::{Comparison, Outcome};
use super::machine::{peer_versions, Machine};
use super::row::Role;
use super::table::{render, verdict};
use crate::Options;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};

/// Where a bench hands its comparisons in.
pub struct Report<'a> {
    options: &'a Options,
    out: &'a mut dyn Write,
    // Opened first: a name that cannot be written must not cost minutes of measuring.
    json: Option<File>,
    document: Document,
}

#[derive(Serialize)]
struct Document {
    tenure: &'static str,
    machine: Machine,
    peers: Vec<Peer>,
    quick: bool,
    benches: Vec<Bench>,
}

#[derive(PartialEq, Serialize)]
struct Peer {
    name: String,
    version: String,
}

#[derive(Serialize)]
struct Bench {
    name: String,
    comparisons: Vec<Outcome>,
    notes: Vec<String>,
}

impl<'a> Report<'a> {
    /// Starts a report with the machine's description.
    ///
    /// # Errors
    /// If the JSON file cannot be made or `out` cannot be written.
    pub fn new(options: &'a Options, out: &'a mut dyn Write) -> io::Result<Self> {
        let json = match &options.json {
            Some(path) => Some(File::create(path).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })?),
            None => None,
        };
        let machine = Machine::describe();
        writeln!(
            out,
            "{}, {} cores{}, Linux {}, {} MiB, huge pages: {}",
            machine.cpu,
            machine.cores,
            if machine.virtual_machine { " (virtual)" } else { "" },
            machine.kernel,
            machine.memory >> 20,
            machine.huge_pages,
        )?;
        if options.quick {
            writeln!(out, "smoke mode: everything runs, too small and too seldom to be believed")?;
        }
        if cfg!(debug_assertions) {
            writeln!(out, "built without optimisation: these numbers mean nothing")?;
        }
        let peers = peer_versions()
            .into_iter()
            .map(|(name, version)| Peer { name: name.into(), version: version.into() })
            .collect();
        let document = Document {
            tenure: env!("CARGO_PKG_VERSION"),
            machine,
            peers,
            quick: options.quick,
            benches: Vec::new(),
        };
        Ok(Report { options, out, json, document })
    }

    /// Starts a bench.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn begin(&mut self, name: &str, description: &str) -> io::Result<()> {
        self.document.benches.push(Bench {
            name: name.to_string(),
            comparisons: Vec::new(),
            notes: Vec::new(),
        });
        writeln!(self.out, "\n== {name}: {description}")
    }

    /// Runs a comparison and prints its table, unless the filter leaves it out. `rounds` is the
    /// bench's own number, which the options may replace.
    ///
    /// # Errors
    /// Those of [`Comparison::run`], or if `out` cannot be written.
    pub fn compare(&mut self, comparison: Comparison<'_>, rounds: u32) -> io::Result<()> {
        self.compare_times(comparison, self.options.rounds(rounds))
    }

    /// [`compare`](Report::compare) with a number of rounds that the options do not replace: for
    /// counts, which more rounds make no better.
    ///
    /// # Errors
    /// As there.
    pub fn compare_times(&mut self, comparison: Comparison<'_>, rounds: u32) -> io::Result<()> {
        if let Some(outcome) = self.measure_times(comparison, rounds)? {
            let table = render(outcome);
            write!(self.out, "\n{table}")?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Runs a comparison and records it, but leaves it to the bench to [`print`](Report::print) it:
    /// for many small ones that are read together. `None` if the filter leaves it out.
    ///
    /// # Errors
    /// Those of [`Comparison::run`].
    pub fn measure(
        &mut self,
        comparison: Comparison<'_>,
        rounds: u32,
    ) -> io::Result<Option<&Outcome>> {
        self.measure_times(comparison, self.options.rounds(rounds))
    }

    fn measure_times(
        &mut self,
        comparison: Comparison<'_>,
        rounds: u32,
    ) -> io::Result<Option<&Outcome>> {
        if !self.options.wants(comparison.title()) {
            return Ok(None);
        }
        let outcome = comparison.run(rounds)?;
        let Some(bench) = self.document.benches.last_mut() else {
            return Ok(None);
        };
        bench.comparisons.push(outcome);
        Ok(bench.comparisons.last())
    }

    /// Prints a bench's own table of what it [`measure`](Report::measure)d.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn print(&mut self, table: &str) -> io::Result<()> {
        write!(self.out, "\n{table}")?;
        self.out.flush()
    }

    /// The medians of the named contestant in the current bench's comparisons whose title begins
    /// so: for what is said across rows, such as "flat".
    pub fn medians(&self, title: &str, contestant: &str) -> Vec<f64> {
        let outcomes = self.document.benches.last().map_or(&[][..], |bench| &bench.comparisons);
        outcomes
            .iter()
            .filter(|outcome| outcome.title.starts_with(title))
            .flat_map(|outcome| &outcome.rows)
            .filter(|row| row.name == contestant)
            .filter_map(|row| Some(row.stats?.median))
            .collect()
    }

    /// Records the version of a peer that was found on this machine.
    pub fn peer(&mut self, name: &str, version: &str) {
        let peer = Peer { name: name.into(), version: version.into() };
        if !self.document.peers.contains(&peer) {
            self.document.peers.push(peer);
        }
    }

    /// Prints and records a sentence about the current bench.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn note(&mut self, text: impl Into<String>) -> io::Result<()> {
        let text = text.into();
        writeln!(self.out, "\n{text}")?;
        if let Some(bench) = self.document.benches.last_mut() {
            bench.notes.push(text);
        }
        Ok(())
    }

    /// Lists our rows that lose or could not be measured, and writes the JSON.
    ///
    /// # Errors
    /// If either cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        let ours: Vec<_> = self
            .document
            .benches
            .iter()
            .flat_map(|bench| &bench.comparisons)
            .flat_map(|outcome| outcome.rows.iter().map(move |row| (outcome, row)))
            .filter(|(_, row)| row.role == Role::Ours)
            .collect();
        let (noise, losing): (Vec<_>, Vec<_>) = ours
            .iter()
            .filter(|(_, row)| row.loses())
            .partition(|(_, row)| row.loses_in_the_noise());
        let missing: Vec<_> = ours.iter().filter(|(_, row)| row.unavailable.is_some()).collect();
        writeln!(self.out, "\nLosing rows: {} of {}", losing.len(), ours.len())?;
        if !noise.is_empty() {
            writeln!(
                self.out,
                "  and {} more by no more than noise: behind in fewer than four rounds of five",
                noise.len()
            )?;
        }
        for (outcome, row) in losing.iter().chain(&missing) {
            writeln!(self.out, "  {}: {}: {}", outcome.title, row.name, verdict(row))?;
        }
        if let Some(file) = self.json.take() {
            let mut file = BufWriter::new(file);
            serde_json::to_writer_pretty(&mut file, &self.document)?;
            writeln!(file)?;
            file.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Contestant, Goal, Unit};

    #[test]
    fn json_holds_every_sample_and_the_machine() {
        let path = std::env::temp_dir().join(format!("tenure-bench-{}.json", std::process::id()));
        let options = Options { json: Some(path.clone()), ..Options::default() };
        let mut out = Vec::new();
        let mut report = Report::new(&options, &mut out).unwrap();
        report.begin("b", "about b").unwrap();
        let mut values = [9.0, 3.0, 1.0, 2.0].into_iter();
        report
            .compare(
                Comparison::new("one", Unit::Nanoseconds).with(
                    Contestant::new("x", Role::Ours, move || Ok(values.next().unwrap().into()))
                        .goal(Goal::AtMost(1.0)),
                ),
                3,
            )
            .unwrap();
        assert_eq!(report.medians("on", "x"), [2.0]);
        report.note("so it is").unwrap();
        report.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("Losing rows: 1 of 1"), "{text}");

        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let row = &json["benches"][0]["comparisons"][0]["rows"][0];
        assert_eq!(row["samples"], serde_json::json!([3.0, 1.0, 2.0]));
        assert_eq!(row["findings"][0]["loses_by"], 2.0);
        assert_eq!(json["benches"][0]["notes"][0], "so it is");
        assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn who_could_not_be_measured_is_listed_at_the_end() {
        let options = Options::default();
        let mut out = Vec::new();
        let mut report = Report::new(&options, &mut out).unwrap();
        report.begin("b", "about b").unwrap();
        let mut round = 0;
        let comparison = Comparison::new("waits", Unit::Nanoseconds).with(
            Contestant::new("x", Role::Ours, move || {
                round += 1;
                match round {
                    1 | 2 => Ok(9.0.into()),
                    _ => Err(io::Error::new(io::ErrorKind::TimedOut, "it never came")),
                }
            })
            .goal(Goal::AtMost(1.0)),
        );
        report.compare_times(comparison, 3).unwrap();
        report.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let end = text.split_once("Losing rows: 0 of 1").unwrap().1;
        assert!(end.contains("waits: x: not measured: it never came"), "{text}");
    }

    #[test]
    fn the_filter_leaves_a_comparison_unmeasured() {
        let options = Options { filter: Some("other".into()), ..Options::default() };
        let mut out = Vec::new();
        let mut report = Report::new(&options, &mut out).unwrap();
        report.begin("b", "about b").unwrap();
        let comparison = Comparison::new("this one", Unit::Nanoseconds).with(Contestant::new(
            "x",
            Role::Ours,
            || panic!("it ran"),
        ));
        report.compare(comparison, 1).unwrap();
        assert!(report.medians("", "x").is_empty());
    }

    #[test]
    fn a_json_path_that_cannot_be_made_fails_before_anything_is_measured() {
        let options = Options { json: Some("/nonexistent/x.json".into()), ..Options::default() };
        let mut out = Vec::new();
        let error = Report::new(&options, &mut out).err().unwrap();
        assert!(error.to_string().contains("/nonexistent/x.json"));
    }
}
