//! The tests that are expected to be skipped under each profile, and those that are left out:
//! `refused.txt`.

use std::fmt;

/// The expectation of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The test is run, and skips itself with a reason.
    Skips,
    /// The test does not run: it makes the refused call itself, or checks for the refused feature.
    LeftOut,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The profiles.
    profiles: Vec<String>,
    /// The expected outcome.
    pub expected: Expected,
    /// The test program and the test, or a program and the first part of names with `*`.
    pub test: String,
    /// Why.
    pub reason: String,
}

/// The list.
#[derive(Debug)]
pub struct List {
    lines: Vec<Line>,
    /// Whether this user may open /dev/userfaultfd, which no list of system calls refuses. It is
    /// root's, and there since Linux 6.1.
    has_device: bool,
}

/// Ends the name of a profile whose line holds only without /dev/userfaultfd.
const NO_DEVICE: &str = ":no-device";

impl List {
    /// The list of this crate.
    ///
    /// # Panics
    /// If a line does not have the form that the file's beginning describes.
    pub fn own() -> List {
        let has_device = std::fs::File::open("/dev/userfaultfd").is_ok();
        List::parse(include_str!("../../refused.txt"), has_device)
            .expect("refused.txt is as it says")
    }

    /// `PROFILES skips|out TEST: REASON`, one a line; `#` begins a remark.
    ///
    /// # Errors
    /// A line does not have this form.
    pub fn parse(text: &str, has_device: bool) -> Result<List, String> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines = lines.map(|line| parse(line).ok_or_else(|| line.to_owned()));
        Ok(List { lines: lines.collect::<Result<_, _>>()?, has_device })
    }

    /// The lines of a profile.
    pub fn of<'a>(&'a self, profile: &'a str) -> impl Iterator<Item = &'a Line> {
        let is_its = move |name: &String| match name.strip_suffix(NO_DEVICE) {
            Some(name) => name == profile && !self.has_device,
            None => name == profile,
        };
        self.lines.iter().filter(move |line| line.profiles.iter().any(is_its))
    }

    /// Names of profiles that the list mentions.
    pub fn profiles(&self) -> impl Iterator<Item = &str> {
        let names = self.lines.iter().flat_map(|line| line.profiles.iter());
        names.map(|name| name.strip_suffix(NO_DEVICE).unwrap_or(name))
    }
}

fn parse(line: &str) -> Option<Line> {
    let (profiles, rest) = line.split_once(' ')?;
    let (expected, rest) = rest.trim().split_once(' ')?;
    let expected = match expected {
        "skips" => Expected::Skips,
        "out" => Expected::LeftOut,
        _ => return None,
    };
    // Names of tests have `::` in them.
    let (test, reason) = rest.trim().split_once(": ")?;
    let profiles = profiles.split(',').map(str::to_owned).collect();
    let reason = Some(reason.trim()).filter(|reason| !reason.is_empty())?;
    Some(Line { profiles, expected, test: test.trim().to_owned(), reason: reason.to_owned() })
}

impl Line {
    /// Returns whether the line is about this test.
    pub fn is_about(&self, test: &str) -> bool {
        match self.test.strip_suffix('*') {
            Some(beginning) => test.starts_with(beginning),
            None => self.test == test,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = match self.expected {
            Expected::Skips => "skips",
            Expected::LeftOut => "out",
        };
        write!(f, "{} {expected} {}: {}", self.profiles.join(","), self.test, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::profile;

    #[test]
    fn lines_are_read_and_others_refused() {
        let text =
            "# a remark\n\na,b skips touch::one::two: no reason\na out lock::*: another: one\n";
        let list = List::parse(text, true).unwrap();
        let lines: Vec<String> = list.of("a").map(Line::to_string).collect();
        assert_eq!(lines, ["a,b skips touch::one::two: no reason", "a out lock::*: another: one"]);
        assert_eq!(list.of("b").count(), 1);
        assert!(list.of("a").nth(1).unwrap().is_about("lock::any"));
        assert!(!list.of("a").next().unwrap().is_about("touch::one"));
        for wrong in ["a skips test", "a jumps test: why", "a skips test: "] {
            assert!(List::parse(wrong, true).is_err(), "{wrong}");
        }
    }

    #[test]
    fn some_lines_hold_only_without_the_device() {
        let text = "a:no-device,b skips touch::one: the system call";
        for (has_device, of_a) in [(true, 0), (false, 1)] {
            let list = List::parse(text, has_device).unwrap();
            assert_eq!((list.of("a").count(), list.of("b").count()), (of_a, 1));
            assert!(list.profiles().eq(["a", "b"]));
        }
    }

    #[test]
    fn the_own_list_names_profiles_that_there_are() {
        let list = List::own();
        for name in list.profiles() {
            assert!(profile(name).is_some(), "there is no profile {name}");
        }
    }
}
