//! `tenure doctor`: the features that this kernel allows, and the remedies where it does not.

pub mod trial;

use crate::failure::Found;
use crate::run::find_library;
use crate::size;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, Write};
use std::path::PathBuf;
use tenure::{Finding, Status};
use tenure_command::terminal::text_width;
use tenure_command::wrap::wrap;
use trial::{Ending, Outcome};

const NOTES: &str = "\
For each line the command tries a feature once and looks at its effect. WARN: the feature is \
missing, and tenure replaces it at the price that the line names. FAIL: the feature is missing, \
and nothing replaces it. The first line, trial, is a separate process that uses tenure as programs \
do: only there the doctor can see a seccomp filter that kills the process for a system call.

Exit code: 1 if a feature is missing and nothing replaces it; with --strict, also if tenure \
replaces one.";

/// Try the features of this kernel, and print a remedy for each that is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Fail (exit code 1) on warnings, too.
    #[arg(long)]
    strict: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    tenure: &'a str,
    kernel: String,
    uid: u32,
    purge_detection: String,
    /// Missing if `/proc` is not mounted.
    locks: Option<Locks>,
    findings: Vec<Line>,
    /// The library that `tenure run` preloads, or the reason why there is none.
    preload: Result<PathBuf, String>,
    passed: bool,
}

/// The memory that may be locked.
#[derive(Serialize)]
struct Locks {
    locked: u64,
    soft_limit: Option<u64>,
    hard_limit: Option<u64>,
    exempt: bool,
}

#[derive(Serialize)]
struct Line {
    name: &'static str,
    status: &'static str,
    errno: Option<i32>,
    error: Option<String>,
    what: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consequence: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let trial = trial::run();
    // A filter that killed the trial would also kill this process.
    let findings = match trial.may_probe() {
        true => tenure::capabilities().findings(),
        false => &[],
    };
    let detection = match trial.may_probe() {
        true => format!("{:?}", tenure::volatile::detection()).to_lowercase(),
        false => "nothing".into(),
    };
    let statuses = findings.iter().map(|finding| finding.status);
    let passed = passes(statuses.chain([status_of(&trial)]), args.strict);
    let uname = rustix::system::uname();
    let report = Report {
        tenure: env!("CARGO_PKG_VERSION"),
        kernel: format!(
            "{} {}",
            uname.release().to_string_lossy(),
            uname.machine().to_string_lossy()
        ),
        uid: rustix::process::geteuid().as_raw(),
        purge_detection: detection,
        locks: tenure::lock::account().ok().map(|account| Locks {
            locked: account.locked,
            soft_limit: account.soft,
            hard_limit: account.hard,
            exempt: account.is_exempt(),
        }),
        findings: [trial_line(trial)].into_iter().chain(findings.iter().map(line)).collect(),
        preload: find_library(),
        passed,
    };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        out.write_all(text(&report, text_width()).as_bytes())?;
    }
    out.flush()?;
    if passed {
        Ok(())
    } else {
        Err(Found.into())
    }
}

fn passes(statuses: impl Iterator<Item = Status>, strict: bool) -> bool {
    statuses.into_iter().all(|status| match status {
        Status::Works => true,
        Status::Degraded => !strict,
        // An unknown status of a later version of the core counts as serious.
        _ => false,
    })
}

fn status_of(trial: &Outcome) -> Status {
    match trial {
        Outcome::Done => Status::Works,
        Outcome::Failed(_) | Outcome::NotTried(_) => Status::Degraded,
        Outcome::Ended { .. } => Status::Missing,
    }
}

fn trial_line(trial: Outcome) -> Line {
    let status = word(status_of(&trial));
    let line = |what: Cow<'static, str>, error, consequence, remedy| Line {
        name: "trial",
        status,
        errno: None,
        error,
        what,
        consequence,
        remedy,
    };
    let doing = "uses tenure as programs do";
    match trial {
        Outcome::Done => {
            let what = format!("a separate process {doing}, in {} steps", trial::steps());
            line(what.into(), None, None, None)
        }
        Outcome::Failed(errors) => line(
            format!("a separate process {doing}").into(),
            Some(errors.join("; ")),
            Some("the calls of a program fail as these did"),
            Some("see the findings below for what the kernel refuses"),
        ),
        Outcome::Ended { step, how: Ending::Filter } => line(
            format!("a separate process {doing}").into(),
            Some(format!("a seccomp filter kills (SIGSYS) for a system call at this step: {step}")),
            Some("a program that uses tenure is killed here"),
            Some(
                "allow the system call that the kernel's log names (journalctl -k -g type=1326); \
                 in a systemd unit, in SystemCallFilter=, or have it refused instead \
                 (SystemCallErrorNumber=EPERM)",
            ),
        ),
        Outcome::Ended { step, how: Ending::Other(how) } => line(
            format!("a separate process {doing}").into(),
            Some(format!("{how}, at this step: {step}")),
            Some("a program that uses tenure may end here too"),
            Some("please report it, with the kernel's version"),
        ),
        Outcome::NotTried(why) => line(
            format!("a separate process {doing}").into(),
            Some(why),
            Some("the doctor cannot know whether a seccomp filter kills for a system call"),
            Some("let tenure start its own program file"),
        ),
    }
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Works => "works",
        Status::Degraded => "degraded",
        _ => "missing",
    }
}

fn line(finding: &Finding) -> Line {
    let works = finding.status == Status::Works;
    Line {
        name: finding.name,
        status: word(finding.status),
        errno: finding.errno,
        error: finding.errno.map(|errno| io::Error::from_raw_os_error(errno).to_string()),
        what: finding.what.into(),
        consequence: (!works).then_some(finding.consequence),
        remedy: (!works).then_some(finding.remedy),
    }
}

/// The report as text, in lines of `width` columns.
fn text(report: &Report<'_>, width: usize) -> String {
    let mut text =
        format!("tenure {} on Linux {}, uid {}\n\n", report.tenure, report.kernel, report.uid);
    let name_width = report.findings.iter().map(|line| line.name.len()).max().unwrap_or(0);
    let indent = "PASS".len() + 2 + name_width + 2;
    for line in &report.findings {
        let verdict = match line.status {
            "works" => "PASS",
            "degraded" => "WARN",
            _ => "FAIL",
        };
        text += &format!("{verdict}  {:<name_width$}  ", line.name);
        let mut add = |part: &str| text += &wrap(part, indent, width);
        match line.status {
            "works" => add(&line.what),
            _ => {
                let error = line.error.as_deref().unwrap_or("no error and no effect");
                add(&format!("{}: {error}", line.what));
            }
        }
        let further = [("costs you", line.consequence), ("remedy", line.remedy)];
        for (name, sentence) in further.into_iter().filter_map(|(name, what)| Some((name, what?))) {
            text += &" ".repeat(indent);
            text += &wrap(&format!("{name}: {sentence}"), indent, width);
        }
    }
    let count = |status| report.findings.iter().filter(|line| line.status == status).count();
    let preload = match &report.preload {
        Ok(path) => format!("`tenure run` preloads {}", path.display()),
        Err(why) => format!("`tenure run` does not work: {why}"),
    };
    let sum = format!(
        "{} of {} work, {} replaced, {} missing; tenure finds purges by {}",
        count("works"),
        report.findings.len(),
        count("degraded"),
        count("missing"),
        report.purge_detection,
    );
    let locks = report
        .locks
        .as_ref()
        .map(|locks| format!("{}; see `tenure explain lock SIZE`", may_lock(locks)));
    text.push('\n');
    for sentence in [preload, sum].into_iter().chain(locks) {
        text += &wrap(&sentence, 0, width);
    }
    text
}

fn may_lock(locks: &Locks) -> String {
    let limit = |bytes: Option<u64>| bytes.map_or("unlimited".into(), size::show);
    let (soft, hard) = (limit(locks.soft_limit), limit(locks.hard_limit));
    if locks.exempt {
        "this process may lock memory without limit".into()
    } else {
        format!("this process may lock up to {soft} (hard limit {hard})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_fail_only_when_strict() {
        use Status::{Degraded, Missing, Works};
        assert!(passes([Works, Works].into_iter(), true));
        assert!(passes([Works, Degraded].into_iter(), false));
        assert!(!passes([Works, Degraded].into_iter(), true));
        assert!(!passes([Works, Missing].into_iter(), false));
    }

    #[test]
    fn what_does_not_work_has_its_errno_price_and_remedy() {
        let report = Report {
            tenure: "1",
            kernel: "6.1 x86_64".into(),
            uid: 1000,
            purge_detection: "words".into(),
            locks: Some(Locks {
                locked: 0,
                soft_limit: Some(8 << 20),
                hard_limit: None,
                exempt: false,
            }),
            findings: vec![
                Line {
                    name: "one",
                    status: "works",
                    errno: None,
                    error: None,
                    what: "a thing".into(),
                    consequence: None,
                    remedy: None,
                },
                Line {
                    name: "two",
                    status: "degraded",
                    errno: Some(1),
                    error: Some("Operation not permitted (os error 1)".into()),
                    what: "another".into(),
                    consequence: Some("slower"),
                    remedy: Some("allow it"),
                },
            ],
            preload: Err("it is nowhere".into()),
            passed: true,
        };
        let shown = text(&report, 60);
        let text = &shown;
        let lines =
            "PASS  one  a thing\nWARN  two  another: Operation not permitted (os error 1)\n\
                     \x20          costs you: slower\n\
                     \x20          remedy: allow it\n";
        assert!(text.contains(lines), "{text}");
        assert!(shown.lines().all(|line| line.len() <= 60), "{text}");
        assert!(text.contains("1 of 2 work, 1 replaced, 0 missing"), "{text}");
        assert!(text.contains("does not work: it is nowhere"), "{text}");
        assert!(text.contains("may lock up to 8 MiB (hard limit unlimited)"), "{text}");
    }
}
