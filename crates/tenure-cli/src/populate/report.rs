//! The summary and the table as text.

use super::outcome::{Ending, Outcome, Summary};
use crate::files::Found;
use crate::name::shown;
use crate::size;
use tenure_command::table;

/// A line for each file.
pub fn of_files(outcomes: &[Outcome]) -> String {
    let heading = ["FILE", "data", "before", "read", "resident", ""];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(outcomes.iter().map(|outcome| {
        let bytes = outcome.look.bytes();
        let known = |bytes: Option<u64>| bytes.map_or("unknown".into(), size::show);
        vec![
            shown(&outcome.path),
            size::show(bytes),
            known(outcome.look.resident),
            size::show(outcome.read),
            known(outcome.after),
            outcome.after.map_or(String::new(), |after| percent(after, bytes)),
        ]
    }));
    // A path that is broken could not be copied.
    table::render(&rows, table::Layout { rule: true, ..table::Layout::default() })
}

/// A line for each skipped name.
pub fn names_passed_over(found: &Found) -> String {
    let mut text = String::new();
    for (path, reason) in &found.passed_over {
        text += &format!("passed over {}: {}\n", shown(path), reason.what());
    }
    text
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "empty".into(),
        // Never 100 % while a part is missing.
        _ => format!("{} %", u128::from(part) * 100 / u128::from(whole)),
    }
}

/// A few lines for all of them.
pub fn text(summary: &Summary) -> String {
    let known = summary.bytes - summary.unknown_bytes;
    let mut text = String::new();
    let mut line = |name: &str, value: String, more: String| {
        text += format!("{name:<10}{value:>10}  {more}").trim_end();
        text.push('\n');
    };
    line("files", size::count(summary.files as u64), passed_over(summary));
    let holes = match summary.hole_bytes {
        0 => String::new(),
        holes => format!("{} of holes left as they are", size::show(holes)),
    };
    line("data", size::show(summary.bytes), holes);
    // Of files whose resident part the kernel does not show, nothing is said.
    let resident = |bytes| match known {
        0 if summary.unknown_bytes > 0 => ("unknown".into(), String::new()),
        0 => (size::show(bytes), String::new()),
        _ => (size::show(bytes), format!("{} resident", percent(bytes, known))),
    };
    let (before, share) = resident(summary.resident_before);
    line("before", before, share);
    if !summary.dry_run() {
        let rate = summary.read as f64 / summary.seconds.max(1e-9);
        let speed = format!("in {:.1} s, {}/s", summary.seconds, size::show(rate as u64));
        line("read", size::show(summary.read), if summary.read > 0 { speed } else { "".into() });
        let (after, share) = resident(summary.resident_after);
        line("after", after, share);
    }
    // Before a populate that may or may not find them.
    let unknown = if summary.dry_run() { summary.unknown_bytes } else { 0 };
    if summary.missing > unknown {
        line("missing", size::show(summary.missing - unknown), why_missing(summary).into());
    }
    if summary.unknown_files > 0 {
        let whose = "in files of another user: the kernel does not show the resident part";
        line("unknown", size::show(summary.unknown_bytes), whose.into());
    }
    text
}

fn passed_over(summary: &Summary) -> String {
    let mut parts = Vec::new();
    let skipped = summary.skipped.text();
    if !skipped.is_empty() {
        parts.push(format!("passed over: {skipped}"));
    }
    if !summary.problems().is_empty() {
        parts.push(crate::files::counted(summary.problems().len(), "problem"));
    }
    parts.join("; ")
}

fn why_missing(summary: &Summary) -> &'static str {
    match summary.ending {
        Ending::Interrupted => "interrupted",
        Ending::OutOfTime => "the deadline passed",
        Ending::Done if summary.dry_run() => "",
        Ending::Done if !summary.problems().is_empty() => "see the errors",
        Ending::Done => "pushed out of memory again; see `tenure lock`",
    }
}
