//! The progress: a bar on a terminal, otherwise a line every two seconds. All of it goes to
//! standard error.

use crate::size;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure_command::terminal;

const LINE_EVERY: Duration = Duration::from_secs(2);

/// The display of one piece of work.
pub struct Display<'a> {
    done: &'a AtomicU64,
    total: u64,
    what: &'static str,
    started: Instant,
    next_line: Instant,
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl<'a> Display<'a> {
    /// A display for `total` bytes; `done` holds how many are done.
    pub fn new(what: &'static str, total: u64, done: &'a AtomicU64, quiet: bool) -> Display<'a> {
        let started = Instant::now();
        let terminal = io::stderr().is_terminal() && terminal::draws() && !quiet && total > 0;
        let bar = terminal.then(|| {
            let style = ProgressStyle::with_template(
                "{prefix} {bytes:>10} of {total_bytes}  {bytes_per_sec}  {eta} left  {wide_bar}",
            )
            .expect("the template is constant and tested");
            ProgressBar::new(total).with_style(style).with_prefix(what)
        });
        Display { done, total, what, started, next_line: started + LINE_EVERY, bar, quiet }
    }

    /// Shows the progress.
    pub fn tick(&mut self) {
        let done = self.done.load(Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if !self.quiet && self.total > 0 && Instant::now() >= self.next_line {
            self.next_line += LINE_EVERY;
            // If standard error is closed, no output is needed.
            let _ = writeln!(io::stderr(), "{}", self.line(done, self.started.elapsed()));
        }
    }

    fn line(&self, done: u64, after: Duration) -> String {
        let percent = 100 * u128::from(done) / u128::from(self.total.max(1));
        let rate = done as f64 / after.as_secs_f64().max(1e-9);
        let left = self.total.saturating_sub(done) as f64 / rate.max(1.0);
        format!(
            "{} {} of {} ({percent} %), {}/s, {left:.0} s left",
            self.what,
            size::show(done),
            size::show(self.total),
            size::show(rate as u64),
        )
    }
}

impl Drop for Display<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_rate_and_rest() {
        let done = AtomicU64::new(25 << 20);
        let mut display = Display::new("reading", 100 << 20, &done, true);
        display.tick();
        let line = display.line(25 << 20, Duration::from_secs(5));
        assert_eq!(line, "reading 25 MiB of 100 MiB (25 %), 5 MiB/s, 15 s left");
        display.line(0, Duration::ZERO); // no division by 0
    }
}
