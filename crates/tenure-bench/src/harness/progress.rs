//! The progress of a run, on standard error: a bar on a terminal that draws, otherwise a line from
//! time to time.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};
use tenure_command::terminal;

const LINE_EVERY: Duration = Duration::from_secs(30);
const STEPS: f64 = 1000.0;

/// The display. It is drawn only between two measurements: a drawing thread would be measured, too.
pub(crate) struct Progress {
    to: To,
    bench: String,
}

enum To {
    Nobody,
    Bar(ProgressBar),
    Lines { next: Instant },
}

impl Progress {
    /// One that shows nothing.
    pub fn hidden() -> Progress {
        Progress { to: To::Nobody, bench: String::new() }
    }

    /// A bar if standard error is a terminal, else lines.
    pub fn new() -> Progress {
        let to = match io::stderr().is_terminal() && terminal::draws() {
            true => To::Bar(ProgressBar::new(STEPS as u64).with_style(style())),
            false => To::Lines { next: Instant::now() + LINE_EVERY },
        };
        Progress { to, bench: String::new() }
    }

    pub fn begin(&mut self, bench: &str) {
        bench.clone_into(&mut self.bench);
        if let To::Bar(bar) = &self.to {
            bar.set_prefix(self.bench.clone());
        }
    }

    pub fn turn(&mut self, title: &str) {
        if let To::Bar(bar) = &self.to {
            bar.set_message(title.to_owned());
            bar.tick();
        }
    }

    /// Shows the share that is done, and the time left.
    pub fn show(&mut self, share: f64, left: Duration) {
        match &mut self.to {
            To::Nobody => {}
            To::Bar(bar) => {
                bar.set_prefix(format!("{} {}", left_text(share, left), self.bench));
                bar.set_position((share * STEPS) as u64);
                bar.tick();
            }
            To::Lines { next } if Instant::now() >= *next => {
                *next = Instant::now() + LINE_EVERY;
                let text = left_text(share, left);
                // If standard error is closed, no output is needed.
                let _ = writeln!(io::stderr(), "tenure bench: {text} ({})", self.bench);
            }
            To::Lines { .. } => {}
        }
    }

    /// Takes the bar away while `print` prints.
    pub fn aside<T>(&mut self, print: impl FnOnce() -> T) -> T {
        match &self.to {
            To::Bar(bar) => bar.suspend(print),
            _ => print(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let To::Bar(bar) = &self.to {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("[{bar:20}] {prefix}: {wide_msg}")
        .expect("the template is constant and tested")
        .progress_chars("=> ")
}

fn left_text(share: f64, left: Duration) -> String {
    // The first minute of a run is a poor base for an estimate.
    let left = match left.as_secs() {
        _ if share < 0.005 => "time left unknown".to_owned(),
        seconds @ 0..=90 => format!("{seconds} s left"),
        seconds => format!("{} min left", seconds.div_ceil(60)),
    };
    format!("{:.0} %, {left}", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_said_in_seconds_and_minutes() {
        let _ = style();
        assert_eq!(left_text(0.5, Duration::from_secs(90)), "50 %, 90 s left");
        assert_eq!(left_text(0.254, Duration::from_secs(630)), "25 %, 11 min left");
        assert_eq!(left_text(0.0, Duration::from_secs(9999)), "0 %, time left unknown");
    }
}
