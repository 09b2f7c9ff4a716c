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
#[derive(Debug, Default)]
pub struct List(Vec<Line>);

impl List {
    /// The list of this crate.
    ///
    /// # Panics
    /// If a line does not have the form that the file's beginning describes.
    pub fn own() -> List {
        List::parse(include_str!("../../refused.txt")).expect("refused.txt is as it says")
    }

    /// `PROFILES skips|out TEST: REASON`, one a line; `#` begins a remark.
    ///
    /// # Errors
    /// A line does not have this form.
    pub fn parse(text: &str) -> Result<List, String> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|line| parse(line).ok_or_else(|| line.to_owned()))
            .collect::<Result<_, _>>()
            .map(List)
    }

    /// The lines of a profile.
    pub fn of<'a>(&'a self, profile: &'a str) -> impl Iterator<Item = &'a Line> {
        let is_its = move |line: &&Line| line.profiles.iter().any(|name| name == profile);
        self.0.iter().filter(is_its)
    }

    /// Names of profiles that the list mentions.
    pub fn profiles(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|line| line.profiles.iter().map(String::as_str))
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
        let list = List::parse(text).unwrap();
        let lines: Vec<String> = list.of("a").map(Line::to_string).collect();
        assert_eq!(lines, ["a,b skips touch::one::two: no reason", "a out lock::*: another: one"]);
        assert_eq!(list.of("b").count(), 1);
        assert!(list.of("a").nth(1).unwrap().is_about("lock::any"));
        assert!(!list.of("a").next().unwrap().is_about("touch::one"));
        for wrong in ["a skips test", "a jumps test: why", "a skips test: "] {
            assert!(List::parse(wrong).is_err(), "{wrong}");
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
