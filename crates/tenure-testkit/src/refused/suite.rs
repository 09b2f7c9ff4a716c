//! Runs test programs under a profile, and collects the result of each test.

#![allow(unsafe_code, reason = "ends the process group of a test program")]

use super::expected::{Expected, List};
use super::Profile;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It skipped itself, with this reason.
    Skipped(String),
    /// It ended with the error that the kernel lacks a feature that it needs.
    Unsupported,
    /// It failed, with this output.
    Failed(String),
}

/// The results of all tests, by the program's and the test's name.
pub type Outcomes = BTreeMap<String, Outcome>;

/// A test program, and the parts of names of its tests that are run; none: all.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Parts of names.
    pub only: Vec<String>,
}

/// No test program takes longer.
const PATIENCE: Duration = Duration::from_secs(300);
const DIED: &str = "(the program)";

impl Program {
    /// Runs it under a profile, without the tests that are left out there. `launcher`:
    /// `tenure-under-filter`.
    pub fn run(
        &self,
        launcher: &Path,
        profile: &Profile,
        list: &List,
    ) -> std::io::Result<Outcomes> {
        let dir = std::env::temp_dir().join(format!("tenure-refused-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let (skips, printed) = (dir.join("skips"), dir.join("printed"));
        // Another user's process may add to the file, too.
        fs::write(&skips, "")?;
        let for_all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(&skips, for_all)?;
        let mut output = fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&printed)?;
        let mut command = Command::new(launcher);
        command.args(["--profile", profile.name]).arg(&self.path).args(&self.only);
        let here = |line: &&super::expected::Line| line.expected == Expected::LeftOut;
        for line in list.of(profile.name).filter(here) {
            let own = line.test.strip_prefix(&format!("{}::", self.name));
            if let Some(test) = own.map(|test| test.trim_end_matches('*')) {
                command.args(["--skip", test]);
            }
        }
        command
            .args(["--test-threads", "2"])
            .env("TENURE_TESTKIT_SKIPS", &skips)
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .process_group(0);
        let begun = Instant::now();
        let mut child = command.spawn()?;
        let status = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if begun.elapsed() > PATIENCE => break None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        // SAFETY: the group of the program that this process has started.
        unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
        let _ = child.wait();
        let mut bytes = Vec::new();
        output.rewind()?;
        output.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let skipped = fs::read_to_string(&skips).unwrap_or_default();
        fs::remove_dir_all(&dir)?;
        let mut outcomes = outcomes(&self.name, &text, &skipped);
        if !text.contains("test result: ") {
            let end = status.map_or("a hang".to_owned(), |status| status.to_string());
            let said = format!("ended with {end}:\n{}", tail(&text));
            outcomes.insert(format!("{}::{DIED}", self.name), Outcome::Failed(said));
        }
        Ok(outcomes)
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Parses the output of a test program, and the skips that it recorded.
pub fn outcomes(program: &str, printed: &str, skips: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in printed.lines() {
        let Some((test, result)) =
            line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
        else {
            continue;
        };
        let test = test.trim_end_matches(" - should panic");
        let name = format!("{program}::{test}");
        if result.ends_with("ok") {
            outcomes.insert(name, Outcome::Passed);
        } else if result.ends_with("FAILED") {
            let said = said_by(test, printed);
            let unsupported =
                ["EOPNOTSUPP", "Unsupported", "MADV_FREE"].iter().any(|word| said.contains(word));
            let outcome = if unsupported { Outcome::Unsupported } else { Outcome::Failed(said) };
            outcomes.insert(name, outcome);
        }
    }
    for line in skips.lines() {
        let Some((place, reason)) = line.split_once(": ") else { continue };
        // The place is a function inside the test; another test may have such a function, too.
        let test = outcomes
            .keys()
            .filter(|test| place.starts_with(test.as_str()))
            .max_by_key(|test| test.len());
        let name = test.cloned().unwrap_or_else(|| place.to_owned());
        outcomes.insert(name, Outcome::Skipped(reason.to_owned()));
    }
    outcomes
}

fn said_by(test: &str, printed: &str) -> String {
    let head = format!("---- {test} stdout ----");
    let Some((_, rest)) = printed.split_once(&head) else { return String::from("it said nothing") };
    let end = rest.find("\n---- ").or_else(|| rest.find("\nfailures:")).unwrap_or(rest.len());
    rest[..end].trim().to_owned()
}

/// The sums of one profile.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Tests that passed.
    pub passed: usize,
    /// Skipped, as in the run in which nothing is refused.
    pub skipped_anyhow: usize,
    /// Skipped, as the list expects.
    pub skipped: usize,
    /// Ended with an error that names the refusal.
    pub unsupported: usize,
    /// Left out.
    pub left_out: usize,
    /// Unexpected results.
    pub surprises: Vec<String>,
}

/// Compares the results with the list and with the run in which nothing is refused.
pub fn judge(profile: &Profile, outcomes: &Outcomes, plain: &Outcomes, list: &List) -> Verdict {
    let mut verdict = Verdict::default();
    let lines: Vec<_> = list.of(profile.name).collect();
    let mut used = vec![false; lines.len()];
    let skips_anyhow = |test: &str| matches!(plain.get(test), Some(Outcome::Skipped(_)));
    for (test, outcome) in outcomes {
        let line =
            lines.iter().position(|line| line.expected == Expected::Skips && line.is_about(test));
        match (outcome, line) {
            (Outcome::Skipped(_), _) if skips_anyhow(test) => verdict.skipped_anyhow += 1,
            (Outcome::Skipped(_), Some(line)) => {
                used[line] = true;
                verdict.skipped += 1;
            }
            (Outcome::Skipped(reason), None) => {
                verdict.surprises.push(format!("{test} is skipped: {reason}"));
            }
            (Outcome::Passed, _) => verdict.passed += 1,
            (Outcome::Unsupported, _) if profile.without_volatile => verdict.unsupported += 1,
            (Outcome::Unsupported, _) => {
                verdict.surprises.push(format!("{test} says that it is not supported here"));
            }
            (Outcome::Failed(said), _) => verdict.surprises.push(format!("{test} failed: {said}")),
        }
    }
    for (line, used) in lines.iter().zip(used) {
        match line.expected {
            Expected::Skips if used => {}
            Expected::Skips
                if plain.keys().any(|test| line.is_about(test) && skips_anyhow(test)) => {}
            // The line is about a program that did not run.
            Expected::Skips if !outcomes.keys().any(|test| line.is_about(test)) => {}
            Expected::Skips => verdict.surprises.push(format!("expected and not so: {line}")),
            Expected::LeftOut => {
                let left = plain.keys().filter(|test| line.is_about(test)).count();
                verdict.left_out += left;
                if left == 0 && plain.keys().any(|test| same_program(test, &line.test)) {
                    verdict.surprises.push(format!("there is no such test: {line}"));
                }
            }
        }
    }
    verdict
}

fn same_program(a: &str, b: &str) -> bool {
    a.split("::").next() == b.split("::").next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::profile;

    const PRINTED: &str = "running 4 tests\ntest a::one ... ok\ntest two ... FAILED\ntest three ... ok\ntest four ... FAILED\n\n\
        failures:\n\n---- two stdout ----\nit panicked: Unsupported\n\n---- four stdout ----\nit panicked\n\nfailures:\n    two\n    four\n\n\
        test result: FAILED. 2 passed; 2 failed";

    #[test]
    fn what_was_printed_is_read() {
        let outcomes = outcomes("lock", PRINTED, "lock::three::inner: no moon\n");
        assert_eq!(outcomes["lock::a::one"], Outcome::Passed);
        assert_eq!(outcomes["lock::two"], Outcome::Unsupported);
        assert_eq!(outcomes["lock::three"], Outcome::Skipped("no moon".into()));
        assert_eq!(outcomes["lock::four"], Outcome::Failed("it panicked".into()));
    }

    #[test]
    fn surprises_are_found() {
        let plain = outcomes("lock", &PRINTED.replace("FAILED", "ok"), "");
        let refused = outcomes("lock", PRINTED, "lock::three: no moon\n");
        let list = |text| List::parse(text, true).unwrap();
        let docker = list("docker skips lock::a::one: it does not\ndocker out lock::five: gone\n");
        let verdict = judge(profile("docker").unwrap(), &refused, &plain, &docker);
        assert_eq!((verdict.passed, verdict.skipped), (1, 0));
        let surprises = verdict.surprises.join("\n");
        for surprise in
            ["three is skipped", "four failed", "two says", "expected and not so", "no such test"]
        {
            assert!(surprises.contains(surprise), "{surprises}");
        }
        let gvisor = list("gvisor skips lock::three: no moon\ngvisor out lock::four: gone\n");
        let verdict = judge(profile("gvisor").unwrap(), &refused, &plain, &gvisor);
        assert_eq!((verdict.skipped, verdict.unsupported, verdict.left_out), (1, 1, 1));
        // A test that is left out does not run.
        assert_eq!(verdict.surprises.len(), 1);
    }
}
