//! The command lines in the documents: each command that they name exists, and takes the flags that
//! they give.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// README, the guide, and the other documents.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md")];
    for folder in ["docs", "docs/guide"] {
        found.extend(fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(found.len() > 15, "{found:?}");
    found
}

/// The command lines of a document: lines of code, and code inside sentences.
fn lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if code || line.starts_with("    ") {
            found.push(line.to_owned());
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

/// The words after `tenure` in a line of a shell, of a unit, or of a container's file. They end at
/// a comment or at another program's own arguments.
fn arguments(line: &str) -> Option<Vec<String>> {
    if line.trim_start().starts_with('#') {
        return None; // a comment
    }
    let plain = line.replace(['"', ',', '[', ']'], " ");
    let mut words = plain.split_whitespace().skip_while(|word| {
        let program = word.rsplit(['=', '/']).next();
        program != Some("tenure") || word.starts_with('$')
    });
    words.next()?;
    let end = |word: &str| matches!(word, "--" | "|" | "&&") || word.starts_with('#');
    Some(words.take_while(|word| !end(word)).map(str::to_owned).collect())
}

fn help(command: &[&str]) -> Option<String> {
    let mut tenure = Command::new(env!("CARGO_BIN_EXE_tenure"));
    let output = tenure.args(command).arg("--help").output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn commands_and_flags_of_the_documents_are_there() {
    let commands = help(&[]).unwrap();
    let is_command = |word: &str| {
        commands
            .lines()
            .any(|line| line.split_whitespace().next() == Some(word) && line.starts_with("  "))
    };
    let mut texts: HashMap<String, String> = HashMap::new();
    let mut checked = 0;
    for path in documents() {
        for line in lines(&fs::read_to_string(&path).unwrap()) {
            let Some(words) = arguments(&line) else { continue };
            // Not a command line: `tenure 0.1.0`, or a path that ends in the name.
            let Some(name) =
                words.first().filter(|word| word.bytes().all(|b| b.is_ascii_lowercase()))
            else {
                continue;
            };
            let place = format!("{}: {line}", path.display());
            assert!(is_command(name), "{place}");
            let help = texts.entry(name.clone()).or_insert_with(|| match &name[..] {
                "explain" => ["lock", "populate"].map(|of| help(&[name, of]).unwrap()).concat(),
                // Each benchmark has its own flags in a separate program, which may be missing
                // here.
                "bench" | "report" => String::new(),
                _ => help(&[name]).unwrap(),
            });
            for flag in words
                .iter()
                .filter(|word| word.starts_with('-') && name != "bench" && name != "report")
            {
                let flag = flag.split('=').next().unwrap().trim_end_matches('.');
                let mut known = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
                assert!(known.any(|word| word == flag), "{place}: no {flag}");
                checked += 1;
            }
        }
    }
    assert!(checked > 15, "only {checked} flags were found");
}
