//! The promises of SPECIFICATION.md, and the tests that they name.

use crate::suite_output::place;
use std::collections::BTreeSet;

/// `- **V1.** A promise.`, and the lines that follow it.
pub struct Promise {
    /// A letter and a number.
    pub number: String,
    /// Full names: `package::program::module::test`, with `lib` in place of the program for unit
    /// tests.
    pub tests: Vec<String>,
    pub is_pending: bool,
}

/// A list item's number; `None`: it has none.
fn number(item: &str) -> Option<&str> {
    let (number, _) = item.strip_prefix("- **")?.split_once(".**")?;
    let digits = number.strip_prefix(|letter: char| letter.is_ascii_uppercase())?;
    digits.parse::<u32>().is_ok().then_some(number)
}

/// The texts in backticks that begin with a package of this workspace.
fn tests(item: &str) -> Vec<String> {
    let quoted = item.split('`').skip(1).step_by(2);
    let named = quoted.filter(|name| name.starts_with("tenure") && name.contains("::"));
    named.map(str::to_owned).collect()
}

/// The items of all lists, each with the lines that belong to it.
fn items(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        if line.starts_with("- ") {
            items.push(line.to_owned());
            is_inside = true;
        } else if let (true, Some(rest), Some(item)) =
            (is_inside, line.strip_prefix("  "), items.last_mut())
        {
            *item += " ";
            *item += rest;
        } else {
            is_inside = false;
        }
    }
    items
}

pub fn promises(text: &str) -> Vec<Promise> {
    let promise = |item: &String| {
        Some(Promise {
            number: number(item)?.to_owned(),
            tests: tests(item),
            is_pending: item.contains("[pending]"),
        })
    };
    items(text).iter().filter_map(promise).collect()
}

/// The mistakes in the text; `exist` are the tests that exist.
pub fn mistakes(text: &str, exist: &BTreeSet<String>) -> Vec<String> {
    let without = items(text).into_iter().filter(|item| number(item).is_none());
    let mut wrong: Vec<String> = without.map(|item| format!("no promise: {item}")).collect();
    let mut seen = BTreeSet::new();
    let mut before: Option<(char, u32, String)> = None;
    for promise in promises(text) {
        let name = &promise.number;
        let (letter, count) = (name.chars().next().unwrap_or(' '), name[1..].parse().unwrap_or(0));
        if !seen.insert(name.clone()) {
            wrong.push(format!("{name} comes twice"));
        } else if let Some((_, _, last)) =
            before.filter(|(other, last, _)| *other == letter && last + 1 != count)
        {
            wrong.push(format!("{name} comes after {last}"));
        }
        before = Some((letter, count, name.clone()));
        if promise.tests.is_empty() && !promise.is_pending {
            wrong.push(format!("{name} names no test, and is not [pending]"));
        }
        for test in promise.tests.iter().filter(|test| !exist.contains(*test)) {
            wrong.push(format!("{name}: there is no test {test}"));
        }
        for test in &promise.tests {
            let same = exist.iter().filter(|other| place(other) == place(test));
            if same.count() > 1 {
                wrong.push(format!("{name}: packages have the same {}", place(test)));
            }
        }
    }
    wrong
}
