//! The messages: changes on standard output, troubles on standard error, each once.

use super::check::Need;
use super::lock_set::{Event, LockSet};
use super::watch::{Watch, LOOK_EVERY};
use crate::files::{counted, Found, Problem, Skipped};
use crate::name::shown;
use crate::size;
use rustix::io::Errno;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use tenure::lock::{receipt_of_everything, State, When};

/// A line of `--json`. Sizes are in bytes.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Locked { path: Cow<'a, str>, bytes: u64 },
    Changed { path: Cow<'a, str>, bytes_before: u64, bytes: u64 },
    Released { path: Cow<'a, str>, bytes: u64, why: &'a str },
    Trouble { path: Cow<'a, str>, why: &'a str },
    Ready(Ready),
    Unlocked { files: usize, bytes: u64 },
}

#[derive(Clone, Copy, Serialize)]
struct Ready {
    files: usize,
    /// Charged against `RLIMIT_MEMLOCK`.
    bytes: u64,
    resident_bytes: u64,
    not_locked_bytes: u64,
    holes_bytes: u64,
    on_fault: bool,
    skipped: Skipped,
}

/// Prints the messages.
pub struct Output {
    quiet: bool,
    verbose: bool,
    json: bool,
    problems: Vec<Problem>,
    skipped: Skipped,
    unwatched: bool,
}

impl Output {
    /// `quiet`: errors only. `verbose`: also files without a change.
    pub fn new(quiet: bool, verbose: bool, json: bool) -> Output {
        Output {
            quiet,
            verbose,
            json,
            problems: Vec::new(),
            skipped: Skipped::default(),
            unwatched: false,
        }
    }

    /// Prints a line for a person.
    fn say(&self, line: &str) {
        if !self.json {
            self.put(line);
        }
    }

    /// Prints a line for a program.
    fn object(&self, line: &Line<'_>) {
        if self.json {
            // All keys of its maps are strings, so this cannot fail.
            self.put(&serde_json::to_string(line).unwrap_or_default());
        }
    }

    /// The command keeps the files in memory even if the output has no reader any more.
    fn put(&self, line: &str) {
        if !self.quiet {
            let mut out = io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }

    fn warn(&self, line: &str) {
        let _ = writeln!(io::stderr(), "tenure: {line}");
    }

    /// Reports names that the walk could not inspect, if they are new.
    pub fn problems(&mut self, found: &Found) {
        for problem in found.problems.iter().filter(|problem| !self.problems.contains(problem)) {
            self.warn(&format!("{}: {}", shown(&problem.path), problem.why));
        }
        self.problems.clone_from(&found.problems);
        self.skipped = found.skipped;
    }

    /// Returns whether the last walk could not inspect some name.
    pub fn has_problems(&self) -> bool {
        !self.problems.is_empty()
    }

    /// Without any watch all files are inspected from time to time.
    pub fn watching(&mut self, watch: io::Result<Watch>) -> Option<Watch> {
        let error = match watch {
            Ok(watch) => return Some(watch),
            Err(error) => error,
        };
        self.late(&format!(
            "the command cannot watch files ({error}); see fs.inotify.max_user_instances"
        ));
        None
    }

    /// A directory that cannot be watched is inspected from time to time.
    pub fn unwatched(&mut self, refused: Option<(PathBuf, Errno)>) {
        let Some((path, errno)) = refused else { return };
        let remedy = match errno {
            Errno::NOSPC => "; raise fs.inotify.max_user_watches",
            _ => "",
        };
        let path = shown(path);
        self.late(&format!("the command cannot watch {path} ({errno}){remedy}"));
    }

    /// Reported once: further ones make no difference.
    fn late(&mut self, why: &str) {
        if !std::mem::replace(&mut self.unwatched, true) {
            let within = LOOK_EVERY.as_secs();
            self.warn(&format!(
                "the command notices changes within {within} s, not at once: {why}"
            ));
        }
    }

    /// The first round.
    pub fn start(&self, events: &[Event]) {
        for event in events {
            match event {
                Event::Locked(..) if !self.verbose && !self.json => {}
                event => self.event(event),
            }
        }
    }

    /// A later round.
    pub fn changes(&self, events: &[Event]) {
        events.iter().for_each(|event| self.event(event));
    }

    /// Reports names that were found at the start and skipped.
    pub fn passed_over(&self, found: &Found) {
        for (path, reason) in found.passed_over.iter().filter(|_| self.verbose) {
            self.say(&format!("passed over {}: {}", shown(path), reason.what()));
        }
        let skipped = found.skipped.text();
        if !skipped.is_empty() {
            self.say(&format!("passed over: {skipped}"));
        }
    }

    fn event(&self, event: &Event) {
        self.object(&match event {
            Event::Locked(path, bytes) => {
                Line::Locked { path: path.to_string_lossy(), bytes: *bytes }
            }
            Event::Changed(path, before, after) => {
                Line::Changed { path: path.to_string_lossy(), bytes_before: *before, bytes: *after }
            }
            Event::Released(path, bytes, why) => {
                Line::Released { path: path.to_string_lossy(), bytes: *bytes, why }
            }
            Event::Trouble(path, why) => Line::Trouble { path: path.to_string_lossy(), why },
        });
        match event {
            Event::Locked(path, bytes) => {
                self.say(&format!("locked {} ({})", shown(path), size::show(*bytes)));
            }
            Event::Changed(_, before, after) if before == after && !self.verbose => {}
            Event::Changed(path, before, after) if before == after => {
                self.say(&format!("locked {} anew ({})", shown(path), size::show(*after)));
            }
            Event::Changed(path, before, after) => {
                let (before, after) = (size::show(*before), size::show(*after));
                self.say(&format!("locked {} anew ({after}, was {before})", shown(path)));
            }
            Event::Released(path, bytes, why) => {
                self.say(&format!("released {} ({}): {why}", shown(path), size::show(*bytes)));
            }
            Event::Trouble(path, why) => self.warn(&format!("{}: {why}", shown(path))),
        }
    }

    /// Reports the locked bytes according to the kernel, and that the command is ready.
    pub fn receipt(&self, set: &LockSet<'_>, need: &Need, when: When) -> anyhow::Result<()> {
        let truth = Truth::of(set)?;
        let files = counted(set.files().count(), "file");
        let charged = size::show(set.charged());
        if truth.unlocked > 0 {
            self.warn(&format!(
                "{} are mapped and not locked: {}",
                size::show(truth.unlocked),
                truth.why.unwrap_or("the kernel accepted the lock and did not keep it")
            ));
        }
        let resident = match truth.resident {
            all if all >= set.data() => "all of it resident".to_owned(),
            some => format!("{} of it resident", size::show(some)),
        };
        let how = match when {
            When::Now => "locked",
            When::OnFault => "locked on fault",
        };
        if need.holes > 0 {
            self.say(&format!("left {} of holes as they are", size::show(need.holes)));
        }
        if need.unknown > 0 && when == When::OnFault {
            self.warn(&format!(
                "{} of another user: the kernel does not show which of their pages are in the \
                 page cache, so nothing in them is locked yet",
                counted(need.unknown, "file")
            ));
        }
        self.say(&format!("ready: {files} {how}, {charged}, {resident}"));
        self.object(&Line::Ready(Ready {
            files: set.files().count(),
            bytes: set.charged(),
            resident_bytes: truth.resident.min(set.charged()),
            not_locked_bytes: truth.unlocked,
            holes_bytes: need.holes,
            on_fault: when == When::OnFault,
            skipped: self.skipped,
        }));
        Ok(())
    }

    /// The last line.
    pub fn unlocked(&self, files: usize, bytes: u64) {
        self.say(&format!("unlocked {}, {}", counted(files, "file"), size::show(bytes)));
        self.object(&Line::Unlocked { files, bytes });
    }
}

/// The sums of the mappings in smaps.
#[derive(Debug, Default)]
struct Truth {
    resident: u64,
    unlocked: u64,
    why: Option<&'static str>,
}

impl Truth {
    fn of(set: &LockSet<'_>) -> anyhow::Result<Truth> {
        let places: BTreeMap<usize, usize> =
            set.files().flat_map(|held| held.places()).map(|p| (p.start, p.end)).collect();
        let mut truth = Truth::default();
        for part in receipt_of_everything()?.parts {
            let ours = places.range(..=part.start).next_back();
            if ours.is_none_or(|(_, end)| *end <= part.start) {
                continue;
            }
            truth.resident += part.resident_bytes;
            match part.state {
                State::Unlocked => truth.unlocked += part.len as u64,
                State::Impossible(why) => {
                    truth.unlocked += part.len as u64;
                    truth.why = Some(why);
                }
                _ => {}
            }
        }
        Ok(truth)
    }
}
