//! All tests of the workspace by their full names, from the source as rustfmt formats it.
//!
//! Read line by line: modules, in files and inline, functions with `#[test]`, and macros that make
//! a test of each name in their call.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// `package::program::module::test`, with `lib` in place of the program for unit tests.
pub fn all(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for package in entries(&root.join("crates")) {
        let name = name(&package).replace('-', "_");
        let lib = package.join("src/lib.rs");
        // That one compiles files of the core's without their tests.
        if lib.exists() && name != "tenure_fuzz" {
            let place = package.join("src");
            File { names: vec![name.clone(), "lib".into()], place }.read(&lib, &mut found);
        }
        for entry in entries(&package.join("tests")) {
            let main = entry.join("main.rs");
            let is_program = entry.extension().is_some_and(|extension| extension == "rs");
            let (file, place) = match (main.exists(), is_program) {
                (true, _) => (main, entry.clone()),
                (_, true) => (entry.clone(), package.join("tests")),
                _ => continue,
            };
            let program = self::name(&entry).trim_end_matches(".rs").to_owned();
            File { names: vec![name.clone(), program], place }.read(&file, &mut found);
        }
    }
    found
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The name at the beginning, and the text after it.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    text.split_at(end)
}

/// The module that a line declares or begins, and whether its source follows inline.
fn module(line: &str) -> Option<(&str, bool)> {
    let line = line.trim_start();
    let after = match line.starts_with("pub") {
        true => &line[line.find("mod ")?..],
        false => line,
    };
    let (name, rest) = word(after.strip_prefix("mod ")?);
    match rest {
        ";" => Some((name, false)),
        " {" => Some((name, true)),
        _ => None,
    }
}

/// A module's file.
struct File {
    /// The package, the program, and the modules.
    names: Vec<String>,
    /// The directory of its modules.
    place: PathBuf,
}

impl File {
    fn read(mut self, file: &Path, found: &mut BTreeSet<String>) {
        let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let lines: Vec<&str> = text.lines().collect();
        let makers = makers(&lines);
        // The ends of the inline modules.
        let mut ends = Vec::new();
        let (mut path, mut is_test) = (None, false);
        let mut at = 0;
        while let Some(line) = lines.get(at) {
            at += 1;
            let bare = line.trim();
            if bare.starts_with("macro_rules! ") {
                at += block(&lines[at..], indent(line)).len();
            } else if bare == "}" && ends.last() == Some(&indent(line)) {
                ends.pop();
                self.names.pop();
                self.place.pop();
            } else if let Some(named) = bare.strip_prefix("#[path = \"") {
                path = named.strip_suffix("\"]").map(str::to_owned);
            } else if let Some((name, in_place)) = module(line) {
                self.module(file, name, in_place, path.take(), found);
                if in_place {
                    ends.push(indent(line));
                    self.names.push(name.to_owned());
                    self.place.push(name);
                }
            } else if bare == "#[test]" {
                is_test = true;
            } else if let (true, Some(rest)) = (is_test, bare.strip_prefix("fn ")) {
                self.add(word(rest).0, found);
                is_test = false;
            } else if let Some(rest) = makers.iter().find_map(|maker| bare.strip_prefix(maker)) {
                for name in made(rest, block(&lines[at..], indent(line)), indent(line)) {
                    self.add(name, found);
                }
            }
        }
    }

    fn add(&self, name: &str, found: &mut BTreeSet<String>) {
        found.insert(format!("{}::{name}", self.names.join("::")));
    }

    /// Reads the file of a module that is not inline.
    fn module(
        &self,
        file: &Path,
        name: &str,
        in_place: bool,
        path: Option<String>,
        found: &mut BTreeSet<String>,
    ) {
        if in_place {
            return;
        }
        let named = path.map(|path| file.parent().unwrap_or(file).join(path));
        let usual = [self.place.join(format!("{name}.rs")), self.place.join(name).join("mod.rs")];
        let Some(file) = named.into_iter().chain(usual).find(|file| file.exists()) else { return };
        let place = match self::name(&file) == "mod.rs" {
            true => file.parent().unwrap_or(&file).to_owned(),
            false => file.with_extension(""),
        };
        let names = self.names.iter().cloned().chain([name.to_owned()]).collect();
        File { names, place }.read(&file, found);
    }
}

/// The lines up to the end of the block with this indentation.
fn block<'a>(lines: &'a [&'a str], begun: usize) -> &'a [&'a str] {
    let ends = |line: &&str| indent(line) == begun && line.trim_start().starts_with(['}', ')']);
    let len = lines.iter().position(ends).unwrap_or(0);
    &lines[..len]
}

/// The macros of a file that make tests, by the beginnings of their calls.
fn makers(lines: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some(rest) = line.trim_start().strip_prefix("macro_rules! ") {
            let body = block(&lines[at + 1..], indent(line));
            if body.iter().any(|line| line.trim() == "#[test]") {
                found.push(format!("{}!", word(rest).0));
            }
        }
    }
    found
}

/// The names at the beginnings of the items of a macro's call.
fn made<'a>(first: &'a str, lines: &'a [&'a str], begun: usize) -> Vec<&'a str> {
    let first = first.trim_start_matches(['(', '{', ' ']);
    let lines = if first.ends_with(';') { &[] } else { lines };
    let inner = lines.iter().filter(|line| indent(line) == begun + 4).map(|line| line.trim());
    let names = std::iter::once(first).chain(inner).filter_map(|item| {
        let (name, rest) = word(item);
        (!name.is_empty() && (rest.is_empty() || rest.starts_with([',', ':']))).then_some(name)
    });
    names.collect()
}
