//! Checks the documents: README's lines are those of the example, and linked files and named source
//! files exist.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// README, ARCHITECTURE, SPECIFICATION and all of docs with the guide.
fn documents() -> Vec<PathBuf> {
    let names = ["README.md", "ARCHITECTURE.md", "SPECIFICATION.md"];
    let mut found: Vec<_> = names.map(|name| root().join(name)).into();
    for folder in ["docs", "docs/guide"] {
        found.extend(fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(found.len() > 5, "{found:?}");
    found
}

/// The lines of the first block in that language.
fn block(text: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}");
    let lines = text.lines().skip_while(|line| *line != start).skip(1);
    lines.take_while(|line| *line != "```").map(|line| line.trim().to_owned()).collect()
}

#[test]
fn the_first_lines_are_those_of_the_example() {
    for (document, language, example) in [
        ("README.md", "rust", "crates/tenure/examples/ten_lines.rs"),
        ("docs/guide/c.md", "c", "crates/tenure-capi/examples/eight_lines.c"),
    ] {
        let shown: Vec<_> = block(&read(document), language);
        assert!(shown.len() >= 8, "{document} shows {shown:?}");
        let example = read(example);
        let mut lines = example.lines().map(str::trim);
        for line in shown.iter().filter(|line| !line.is_empty()) {
            assert!(lines.any(|one| one == line), "{document}: not in the example: {line}");
        }
    }
}

#[test]
fn what_is_linked_exists() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let target = path.parent().unwrap().join(file);
            assert!(target.exists(), "{} links to {link}", path.display());
        }
    }
}

#[test]
fn source_files_that_are_named_exist() {
    let places = ["tenure/src", "tenure-preload/src", "tenure", "tenure-differ", "tenure-testkit"];
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let is_file = name.ends_with(".rs") && !name.contains([' ', '*']);
            let found = || {
                root().join(name).exists()
                    || places.iter().any(|at| root().join("crates").join(at).join(name).exists())
            };
            assert!(!is_file || found(), "{} names {name}", path.display());
        }
    }
}

/// `cargo test` refuses to run at all if it is given a test program that does not exist.
#[test]
fn test_programs_that_are_named_exist() {
    let of = |folder: &str| fs::read_dir(root().join(folder)).unwrap().map(|at| at.unwrap().path());
    let scripts = [of(".ci"), of("packaging")].into_iter().flatten().filter(|path| path.is_file());
    let mut named = 0;
    for path in documents().into_iter().chain(scripts) {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        for rest in text.split("--test ").skip(1) {
            let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
            let name = rest.split(|c| !is_name(c)).next().unwrap();
            let of_crate = |at: PathBuf| {
                let tests = at.join("tests");
                tests.join(format!("{name}.rs")).exists()
                    || tests.join(name).join("main.rs").exists()
            };
            assert!(of("crates").any(of_crate), "{}: there is no test {name}", path.display());
            named += 1;
        }
    }
    assert!(named > 10, "{named} test programs are named");
}

/// The walks of docs/walks.md: the rows of each, a file and its functions.
fn walks() -> Vec<Vec<(String, Vec<String>)>> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let file = cells.next()?.strip_suffix('`')?.to_owned();
        let functions = cells.next()?.split(", ").map(|name| name.trim_matches('`').to_owned());
        Some((file, functions.collect()))
    };
    let text = read("docs/walks.md");
    text.split("\n## ").skip(1).map(|walk| walk.lines().filter_map(row).collect()).collect()
}

#[test]
fn each_walk_names_a_file_once_and_functions_that_it_has() {
    let walks = walks();
    assert_eq!(walks.len(), 3);
    for walk in walks {
        assert!(walk.len() > 10, "{walk:?}");
        for (at, (file, functions)) in walk.iter().enumerate() {
            assert!(walk[..at].iter().all(|(before, _)| before != file), "{file} comes twice");
            let places =
                ["tenure", "tenure-preload"].map(|name| format!("crates/{name}/src/{file}"));
            let place = places.iter().find(|place| root().join(place).exists());
            let source = read(place.unwrap_or_else(|| panic!("there is no {file}")));
            for name in functions {
                let has = [format!("fn {name}("), format!("fn {name}<")];
                assert!(has.iter().any(|start| source.contains(start)), "{file} has no {name}");
            }
        }
    }
}

#[test]
fn the_front_page_and_the_glossary_stay_short() {
    assert!(read("README.md").lines().count() < 120);
    let words = read("docs/glossary.md").lines().filter(|line| line.starts_with("- **")).count();
    assert!((10..=15).contains(&words), "{words} words");
}
