//! The display while the demo runs: a moving line on a terminal, otherwise a line every second.
//!
//! All of it goes to standard error; standard output is for the result.

use super::outcome::{Outcome, Sample, Way};
use crate::size;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use tenure_command::terminal;
use tenure_command::wrap::wrap;

/// The display.
pub struct Live {
    terminal: bool,
    bar: ProgressBar,
    name: String,
    limit: u64,
    next_line: f64,
}

impl Live {
    /// `limit` is shown beside the memory in use.
    pub fn new(limit: u64) -> Live {
        let terminal = io::stderr().is_terminal() && terminal::draws();
        Live { terminal, bar: ProgressBar::hidden(), name: String::new(), limit, next_line: 0.0 }
    }

    /// The limit is another one from now on.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// A line of its own.
    pub fn say(&self, line: &str) {
        self.say_beside("", line);
    }

    /// A line with a title. A terminal breaks it only between words.
    fn say_beside(&self, title: &str, line: &str) {
        let width = if self.terminal { terminal::text_width() } else { usize::MAX };
        // If standard error is closed, no output is needed.
        let _ = write!(io::stderr(), "{title}{}", wrap(line, title.chars().count(), width));
    }

    /// Values are being made for the first time.
    pub fn begin_preparing(&mut self, bytes: u64) {
        self.name = "preparing".into();
        self.start_bar(bytes);
        self.next_line = 0.0;
    }

    /// `done` bytes of them are there, after so many seconds.
    pub fn preparing(&mut self, done: u64, seconds: f64) {
        self.bar.set_position(done);
        let line = format!("{} of values made, checksums taken", size::mib(done));
        self.show(seconds, line);
    }

    /// A way starts.
    pub fn begin(&mut self, way: &Way, seconds: f64) {
        self.name = way.name.into();
        self.start_bar((seconds * 1000.0) as u64);
        self.next_line = 1.0;
    }

    /// Shows the progress of a way.
    pub fn running(&mut self, samples: &[Sample]) {
        let Some(last) = samples.last() else { return };
        self.bar.set_position((last.at * 1000.0) as u64);
        let first = samples.iter().find(|sample| last.at - sample.at <= 1.0).unwrap_or(last);
        let requests = last.counts.requests - first.counts.requests;
        let hits = last.counts.hits - first.counts.hits;
        let rate = size::count(Outcome::recent_rate(samples) as u64);
        let hits = 100 * hits / requests.max(1);
        let (worker, neighbour) = (last.worker >> 20, last.neighbour >> 20);
        let limit = size::mib(self.limit);
        // On a terminal all of it must fit into 80 columns.
        let line = if self.terminal {
            format!(
                "{rate:>6} req/s  hits {hits:>2} %  worker {worker:>3} + neighbour {neighbour:>3} \
                 of {limit}"
            )
        } else {
            format!(
                "{rate:>7} requests/s  hits {hits:>3} %  worker {worker:>4} MiB  neighbour \
                 {neighbour:>4} MiB  together {:>4} of {limit}",
                last.used >> 20
            )
        };
        self.show(last.at, line);
    }

    /// Ends the present step; `line` describes its result.
    pub fn end(&mut self, line: &str) {
        self.bar.finish_and_clear();
        self.say_beside(&format!("{:<15} ", self.name), line);
    }

    fn show(&mut self, at: f64, line: String) {
        if self.terminal {
            self.bar.set_message(line);
        } else if at >= self.next_line {
            self.next_line = at.floor() + 1.0;
            let _ = writeln!(io::stderr(), "{:<15} {at:>3.0} s  {line}", self.name);
        }
    }

    fn start_bar(&mut self, length: u64) {
        if !self.terminal {
            return;
        }
        let style = ProgressStyle::with_template("{prefix:<15} {msg} {wide_bar}")
            .expect("the template is constant and tested");
        self.bar = ProgressBar::new(length).with_style(style).with_prefix(self.name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{outcome::tests::made_up, store::Kind};
    use super::*;

    #[test]
    fn the_bar_takes_everything_it_is_shown() {
        let outcome = made_up("tenure", Kind::Tenure, 3.0, None);
        for terminal in [false, true] {
            let mut live = Live { terminal, ..Live::new(256 << 20) };
            live.begin_preparing(100);
            live.preparing(50, 0.5);
            live.end("done");
            live.begin(&outcome.way, 3.0);
            for upto in 0..=outcome.samples.len() {
                live.running(&outcome.samples[..upto]);
            }
            assert_eq!(live.bar.length(), terminal.then_some(3000));
            live.end("survived");
        }
    }
}
