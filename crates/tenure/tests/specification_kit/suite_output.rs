//! The output of `cargo test --workspace`: the tests that ran, and those that were skipped.

use std::collections::{BTreeMap, BTreeSet};

pub struct SuiteOutput {
    /// Their [places](place).
    ran: BTreeSet<String>,
    skipped: BTreeMap<String, String>,
}

impl SuiteOutput {
    pub fn read(text: &str) -> SuiteOutput {
        let mut output = SuiteOutput { ran: BTreeSet::new(), skipped: BTreeMap::new() };
        let (mut program, mut in_skips) = (String::new(), false);
        for line in text.lines() {
            if let Some(running) = line.trim_start().strip_prefix("Running ") {
                program = program_of(running);
            } else if line.trim_start().starts_with("Doc-tests ") {
                program = "doc-tests".into();
            } else if let Some((test, result)) =
                line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            {
                if !result.starts_with("ignored") {
                    output.ran.insert(format!("{program}::{test}"));
                }
            }
            in_skips |= line.starts_with("skipped: ");
            if let (true, Some((test, reason))) =
                (in_skips, line.strip_prefix("- ").and_then(|skip| skip.split_once(": ")))
            {
                output.skipped.insert(test.to_owned(), reason.to_owned());
            }
        }
        output
    }

    pub fn ran(&self, test: &str) -> bool {
        self.ran.contains(place(test))
    }

    /// The reason. The suite names a unit test by its package, and other tests by their program.
    pub fn skipped(&self, test: &str) -> Option<&str> {
        let of_unit = test.replacen("::lib::", "::", 1);
        let reason = self.skipped.get(place(test)).or_else(|| self.skipped.get(&of_unit));
        reason.map(String::as_str)
    }
}

/// Without the package, which cargo's output does not contain.
pub fn place(test: &str) -> &str {
    test.split_once("::").map_or(test, |(_package, place)| place)
}

/// From `unittests src/lib.rs (target/debug/deps/tenure-0123456789abcdef)`.
fn program_of(running: &str) -> String {
    let file = running.rsplit('/').next().unwrap_or_default();
    let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
    match running.starts_with("unittests src/lib.rs ") {
        true => "lib".into(),
        false => name.to_owned(),
    }
}
