//! All comparisons of a run: printed as they end, written as JSON at the end.

use super::compare::{Comparison, Outcome};
use super::document::{Bench, Document, Histogram, Peer, TimeSeries};
use super::pace::{interrupted, Pace, Share};
use super::progress::Progress;
use super::row::Row;
use super::table::{render, verdict};
use crate::Options;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::time::Instant;
use tenure_command::call::failed_at;
use tenure_command::table::{self, Layout};
use tenure_command::wrap::wrap;

/// Collects the comparisons of a bench.
pub struct Report<'a> {
    options: &'a Options,
    out: &'a mut dyn Write,
    // Opened first: a name that cannot be written must not cost minutes of measuring.
    json: Option<File>,
    document: Document,
    pace: Pace,
    began: Instant,
    bench_began: Instant,
    left_out: u32,
}

/// Makes the file, if there is one to make; an error has its name.
pub(crate) fn create(path: Option<&Path>) -> io::Result<Option<File>> {
    let Some(path) = path else { return Ok(None) };
    File::create(path).map(Some).map_err(|error| failed_at(path, "open", error))
}

/// Replaces the file's contents.
fn replace(file: &mut File, text: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text)
}

impl<'a> Report<'a> {
    /// Starts a report with the machine's description.
    ///
    /// # Errors
    /// If a file cannot be made or `out` cannot be written.
    pub fn new(options: &'a Options, out: &'a mut dyn Write) -> io::Result<Self> {
        Report::of(options, out, Vec::new())
    }

    /// [`new`](Report::new), for benches whose shares are known.
    pub(crate) fn of(
        options: &'a Options,
        out: &'a mut dyn Write,
        shares: Vec<Share>,
    ) -> io::Result<Self> {
        let json = create(options.json.as_deref())?;
        let document = Document::new(options);
        let machine = &document.machine;
        let width = options.width.unwrap_or(usize::MAX);
        let setting = format!(
            "{}, {} cores{}, Linux {}, {} MiB, huge pages: {}",
            machine.cpu,
            machine.cores,
            if machine.virtual_machine { " (virtual)" } else { "" },
            machine.kernel,
            machine.memory >> 20,
            machine.huge_pages,
        );
        write!(out, "{}", wrap(&setting, 0, width))?;
        if options.quick {
            writeln!(out, "smoke mode: all benchmarks run, but their numbers do not count")?;
        }
        if cfg!(debug_assertions) {
            writeln!(out, "built without optimisation: these numbers mean nothing")?;
        }
        let progress = if options.progress { Progress::new() } else { Progress::hidden() };
        let pace = Pace::new(shares, options.within, options.interrupted.clone(), progress);
        let now = Instant::now();
        Ok(Report { options, out, json, document, pace, began: now, bench_began: now, left_out: 0 })
    }

    /// Starts a bench.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn begin(&mut self, name: &str, description: &str) -> io::Result<()> {
        self.end_bench();
        self.save_json()?;
        let is_first = self.document.benches.is_empty();
        self.pace.begin(name, is_first);
        self.bench_began = Instant::now();
        self.document.benches.push(Bench {
            name: name.to_string(),
            description: description.to_string(),
            seconds: 0.0,
            comparisons: Vec::new(),
            histograms: Vec::new(),
            time_series: Vec::new(),
            notes: Vec::new(),
        });
        self.say(&format!("\n{}", self.wrapped(&format!("== {name}: {description}"))))
    }

    fn end_bench(&mut self) {
        if let Some(bench) = self.document.benches.last_mut() {
            bench.seconds = self.bench_began.elapsed().as_secs_f64();
        }
    }

    /// Text in lines that the terminal does not break. Lines that fit stay as they are.
    fn wrapped(&self, text: &str) -> String {
        let line = |line: &str| match line.chars().count() > self.width() {
            true => wrap(line, 0, self.width()),
            false => format!("{line}\n"),
        };
        text.lines().map(line).collect()
    }

    fn width(&self) -> usize {
        self.options.width.unwrap_or(usize::MAX)
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        let out = &mut self.out;
        self.pace.aside(|| {
            out.write_all(text.as_bytes())?;
            out.flush()
        })
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
    /// counts, which more rounds do not improve.
    ///
    /// # Errors
    /// As for [`compare`](Report::compare).
    pub fn compare_times(&mut self, comparison: Comparison<'_>, rounds: u32) -> io::Result<()> {
        let width = self.options.width;
        if let Some(outcome) = self.measure_times(comparison, rounds)? {
            let table = render(outcome, width);
            self.print(&table)?;
        }
        self.go_on()
    }

    /// Runs a comparison and records it, but the bench [`print`](Report::print)s it: for many small
    /// ones that are read together. `None` if the filter or the time leaves it out.
    ///
    /// # Errors
    /// Those of [`Comparison::run`].
    pub fn measure(
        &mut self,
        comparison: Comparison<'_>,
        rounds: u32,
    ) -> io::Result<Option<&Outcome>> {
        self.go_on()?;
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
        if self.pace.is_over() && !comparison.is_headline() {
            self.left_out += 1;
            return Ok(None);
        }
        let mut turn = self.pace.turn(comparison.title());
        let first = u32::from(self.options.skip_warm_up);
        let outcome = comparison.run_in(first..=rounds, &mut turn)?;
        self.pace.done();
        let Some(bench) = self.document.benches.last_mut() else {
            return Ok(None);
        };
        bench.comparisons.push(outcome);
        Ok(bench.comparisons.last())
    }

    /// # Errors
    /// `Interrupted`, if the user has requested an end.
    fn go_on(&self) -> io::Result<()> {
        match self.pace.is_interrupted() {
            true => Err(interrupted()),
            false => Ok(()),
        }
    }

    /// Returns the rounds of the comparison of this title, or else `otherwise`: for one that shares
    /// its measurements with another, for which time may have allowed fewer rounds.
    pub fn rounds_of(&self, title: &str, otherwise: u32) -> u32 {
        let outcomes = self.document.benches.last().map_or(&[][..], |bench| &bench.comparisons);
        let known = outcomes.iter().find(|outcome| outcome.title == title);
        known.map_or(otherwise, |outcome| outcome.rounds)
    }

    /// Prints a bench's own table of its [`measure`](Report::measure)d comparisons.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn print(&mut self, table: &str) -> io::Result<()> {
        let table = self.wrapped(table);
        self.say(&format!("\n{table}"))
    }

    /// [`print`](Report::print)s rows as a table that fits the terminal, below a title. Their last
    /// cells are text.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub(crate) fn print_rows(&mut self, title: &str, rows: &[Vec<String>]) -> io::Result<()> {
        let title = if title.is_empty() { String::new() } else { self.wrapped(title) };
        let layout =
            Layout { indent: 2, width: self.options.width, text_at_end: true, rule: false };
        self.print(&(title + &table::render(rows, layout)))
    }

    /// Returns the medians of the named contestant in the current bench's comparisons whose title
    /// begins with `title`: for statements across rows, such as "flat".
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

    /// Records a histogram.
    pub fn histogram(&mut self, histogram: Histogram) {
        if let Some(bench) = self.document.benches.last_mut() {
            bench.histograms.push(histogram);
        }
    }

    /// Records values over time.
    pub fn time_series(&mut self, series: TimeSeries) {
        if let Some(bench) = self.document.benches.last_mut() {
            bench.time_series.push(series);
        }
    }

    /// Prints and records a sentence about the current bench.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn note(&mut self, text: impl Into<String>) -> io::Result<()> {
        let text = text.into();
        self.say(&format!("\n{}", self.wrapped(&text)))?;
        if let Some(bench) = self.document.benches.last_mut() {
            bench.notes.push(text);
        }
        Ok(())
    }

    /// Returns whether the user has ended the run.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.pace.is_interrupted()
    }

    /// Returns whether no comparison of tenure's was measured, or left out for lack of time.
    pub(crate) fn is_empty(&self) -> bool {
        self.left_out == 0 && self.document.ours().next().is_none()
    }

    /// Records that the run ends early, with the reason.
    pub(crate) fn ends_early(&mut self, why: &str) {
        self.document.ended_early = Some(why.to_owned());
    }

    /// Lists the rows of tenure that lose or could not be measured, and writes the JSON. Returns
    /// all measurements.
    ///
    /// # Errors
    /// If either cannot be written.
    pub fn finish(mut self) -> io::Result<Document> {
        self.end_bench();
        let text = self.summary();
        self.say(&text)?;
        self.save_json()?;
        Ok(self.document)
    }

    fn summary(&self) -> String {
        let ours: Vec<_> = self.document.ours().collect();
        let (noise, losing): (Vec<_>, Vec<_>) = ours
            .iter()
            .filter(|(_, row)| row.loses())
            .partition(|(_, row)| row.loses_in_the_noise());
        let missing: Vec<_> = ours.iter().filter(|(_, row)| row.unavailable.is_some()).collect();
        let mut text = format!("\nLosing rows: {} of {}\n", losing.len(), ours.len());
        if !noise.is_empty() {
            text.push_str(&format!(
                "  and {} more within the noise: behind in fewer than four of five rounds\n",
                noise.len()
            ));
        }
        let line = |outcome: &Outcome, row: &Row| {
            let line = format!("{}: {}: {}", outcome.title, row.name, verdict(row));
            format!("  {}", wrap(&line, 2, self.width()))
        };
        text.extend(losing.iter().chain(&missing).map(|(outcome, row)| line(outcome, row)));
        if self.left_out > 0 {
            let number = self.left_out;
            text.push_str(&format!(
                "Not measured for lack of time: {number} comparisons (--within none measures all)\n"
            ));
        }
        if let Some(why) = &self.document.ended_early {
            text.push_str(&format!("Ended early: {why}; the rows above were measured.\n"));
        }
        text
    }

    fn save_json(&mut self) -> io::Result<()> {
        self.document.seconds = self.began.elapsed().as_secs_f64();
        if let Some(file) = &mut self.json {
            let mut text = serde_json::to_vec_pretty(&self.document)?;
            text.push(b'\n');
            replace(file, &text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Contestant, Goal, Role, Unit};

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
