//! The result for each file, and for all of them.

use crate::files::{Found, Look, Problem, Skipped};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// The end of the reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It was completed, with or without problems.
    Done,
    /// Ctrl-C or SIGTERM.
    Interrupted,
    /// `--deadline`.
    OutOfTime,
}

/// One file.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The name it was found under.
    pub path: PathBuf,
    /// Its state before.
    pub look: Look,
    /// Bytes that were missing, or may have been, and were made resident.
    pub read: u64,
    /// Resident bytes afterwards, if it is known.
    pub after: Option<u64>,
    /// The error.
    pub trouble: Option<String>,
    /// Whether it was gone before it could be inspected, and the user had not named it.
    pub gone: bool,
}

impl Outcome {
    /// Bytes that are not resident now: according to the kernel, or else those not read.
    pub fn missing(&self) -> u64 {
        match self.after {
            Some(after) => self.look.bytes().saturating_sub(after),
            None => self.look.missing_bytes().saturating_sub(self.read),
        }
    }
}

/// All of them.
#[derive(Debug, Serialize)]
pub struct Summary {
    dry_run: bool,
    pub(super) ending: Ending,
    pub(super) files: usize,
    pub(super) bytes: u64,
    pub(super) hole_bytes: u64,
    /// As far as it is known.
    pub(super) resident_before: u64,
    pub(super) read: u64,
    pub(super) resident_after: u64,
    pub(super) missing: u64,
    /// Files for which the kernel does not report the resident pages, and their bytes.
    pub(super) unknown_files: usize,
    pub(super) unknown_bytes: u64,
    pub(super) seconds: f64,
    pub(super) skipped: Skipped,
    problems: Vec<Problem>,
    list: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    path: String,
    bytes: u64,
    hole_bytes: u64,
    resident_before: Option<u64>,
    read: u64,
    resident_after: Option<u64>,
    missing: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Summary {
    /// Adds everything up.
    pub fn new(
        found: &Found,
        outcomes: &[Outcome],
        took: Duration,
        ending: Ending,
        dry_run: bool,
    ) -> Summary {
        let sum = |of: &dyn Fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
        let unknown = |o: &Outcome| o.after.or(o.look.resident).is_none() && o.look.bytes() > 0;
        let after = |o: &Outcome| o.after.unwrap_or(0);
        let mut problems = found.problems.clone();
        problems.extend(outcomes.iter().filter_map(|outcome| {
            let why = outcome.trouble.clone()?;
            Some(Problem { path: outcome.path.display().to_string(), why })
        }));
        Summary {
            dry_run,
            ending,
            files: outcomes.len(),
            bytes: sum(&|o| o.look.bytes()),
            hole_bytes: sum(&|o| o.look.holes),
            resident_before: sum(&|o| o.look.resident.unwrap_or(0)),
            read: sum(&|o| o.read),
            resident_after: sum(&after),
            missing: sum(&Outcome::missing),
            unknown_files: outcomes.iter().filter(|o| unknown(o)).count(),
            unknown_bytes: sum(&|o| if unknown(o) { o.look.bytes() } else { 0 }),
            seconds: took.as_secs_f64(),
            skipped: found.skipped,
            problems,
            list: outcomes.iter().map(line).collect(),
        }
    }

    /// The errors of finding, opening and reading.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns whether nothing was read on purpose.
    pub fn dry_run(&self) -> bool {
        self.dry_run
    }

    /// Returns whether the requested state is reached.
    pub fn complete(&self) -> bool {
        self.ending == Ending::Done
            && self.problems.is_empty()
            && (self.dry_run || self.missing == 0)
    }
}

fn line(outcome: &Outcome) -> Line {
    Line {
        path: outcome.path.display().to_string(),
        bytes: outcome.look.bytes(),
        hole_bytes: outcome.look.holes,
        resident_before: outcome.look.resident,
        read: outcome.read,
        resident_after: outcome.after,
        missing: outcome.missing(),
        problem: outcome.trouble.clone(),
    }
}
