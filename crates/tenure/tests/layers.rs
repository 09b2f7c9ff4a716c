//! The layers of ARCHITECTURE.md, checked on the source: which module uses which other, and in
//! which direction. Paths are resolved as the compiler does it (`use` trees, `super::`, inline
//! paths, names passed on by `pub use`).

#[path = "layers_kit/circles.rs"]
mod circles;
#[path = "layers_kit/lexer.rs"]
mod lexer;
#[path = "layers_kit/modules.rs"]
mod modules;

use modules::{Crate, Edge};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The core's layers, lowest first. A module uses its own layer's modules and those below.
const LAYERS: &[&[&str]] = &[
    &["text"],
    &["error"],
    &["range"],
    &["sync"],
    &["os"],
    &["runtime"],
    &["mapping"],
    &["tracking"],
    PROMISES,
    &["stats", "launcher"],
    &["metrics", "events"],
    &[""],
];

const PROMISES: &[&str] = &[
    "volatile",
    "cache",
    "lock",
    "populate",
    "page_cache",
    "pool",
    "pressure",
    "retire",
    "shared",
];

/// The promises that use another one, with the purpose. All other pairs are refused.
const AMONG_PROMISES: &[(&str, &str, &str)] = &[
    ("lock", "populate", "a gradual lock is a lock on fault and a populate behind it"),
    ("retire", "lock", "what is locked through tenure is forgotten before its range is unmapped"),
];

/// Uses of a layer above: module, the used module, reason.
const UPWARDS: &[(&str, &str, &str)] = &[
    ("range", "os", "the kernel says how large a page is"),
    ("sync", "os::futex", "the one place where models put other primitives in"),
    ("sync", "runtime::lock", "the one place where models put other primitives in"),
    ("sync", "runtime::rank", "the one place where models put other primitives in"),
];

/// The system calls that only `os` makes.
const SYSTEM_CALLS: &str =
    "syscall mmap munmap madvise mremap mlock mlock2 munlock mlockall munlockall ioctl \
     msync futex process_vm_readv process_vm_writev mincore fallocate";

/// The directory of the crates, relative to this one.
fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn core() -> Crate {
    Crate::read(&crates().join("tenure/src/lib.rs"))
}

fn top(name: &[String]) -> &str {
    name.first().map_or("", String::as_str)
}

fn layer(name: &[String]) -> usize {
    let holds = |layer: &&[&str]| layer.contains(&top(name));
    LAYERS.iter().position(holds).unwrap_or_else(|| panic!("{name:?} is in no layer of LAYERS"))
}

fn is_refused(edge: &Edge) -> bool {
    let (from, to) = (top(&edge.from), top(&edge.to));
    match (layer(&edge.from), layer(&edge.to)) {
        (below, above) if below < above => {
            !UPWARDS.iter().any(|(module, used, _)| from == *module && edge.to.join("::") == *used)
        }
        (one, other) => {
            one == other
                && from != to
                && !AMONG_PROMISES.iter().any(|(user, used, _)| (from, to) == (*user, *used))
        }
    }
}

/// One line for each edge: `file:line: from uses to (path)`.
fn list<'a>(edges: impl IntoIterator<Item = &'a Edge>) -> String {
    let line = |edge: &Edge| {
        let (from, to) = (edge.from.join("::"), edge.to.join("::"));
        format!("{}:{}: {from} uses {to} ({})\n", shown(&edge.file), edge.line, edge.text)
    };
    edges.into_iter().map(line).collect()
}

fn shown(file: &Path) -> String {
    let root = crates();
    let inside = file.strip_prefix(&root).unwrap_or(file);
    format!("crates/{}", inside.display())
}

/// The circles of a crate: the core's inside one directory each (between them layers have an
/// order), other crates' in any place. A crate's root is left out, because it only declares
/// modules.
fn circles_of(edges: &[Edge], core: bool) -> Vec<BTreeSet<String>> {
    let counts = |edge: &&Edge| {
        !edge.reexport
            && !edge.from.is_empty()
            && !edge.to.is_empty()
            && (!core || top(&edge.from) == top(&edge.to))
    };
    let named = |edge: &Edge| (edge.from.join("::"), edge.to.join("::"));
    circles::circles(edges.iter().filter(counts).map(named))
}

#[test]
fn no_module_of_the_core_uses_a_layer_above_its_own() {
    let edges = core().edges();
    assert!(edges.len() > 300, "only {} uses were found", edges.len());
    let refused: Vec<_> = edges.iter().filter(|edge| is_refused(edge)).collect();
    assert!(refused.is_empty(), "against the order of ARCHITECTURE.md:\n{}", list(refused));
    for (module, used, reason) in UPWARDS.iter().chain(AMONG_PROMISES) {
        let needed = |edge: &Edge| {
            top(&edge.from) == *module && (edge.to.join("::") == *used || top(&edge.to) == *used)
        };
        assert!(edges.iter().any(needed), "{module} does not use {used} any more ({reason})");
    }
}

#[test]
fn only_the_os_layer_makes_system_calls() {
    let core = core();
    let calls: Vec<_> = SYSTEM_CALLS.split_whitespace().collect();
    let mut found = String::new();
    for (module, file, line, path) in core.foreign() {
        if let ["libc", call] = path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            if top(module) != "os" && calls.contains(&call) {
                found += &format!("{}:{line}: libc::{call}\n", shown(file));
            }
        }
    }
    assert!(found.is_empty(), "system calls outside of os:\n{found}");
}

/// Uses of the standard library that wait for a thread that a forked child does not have, with the
/// reason why no child meets them.
const STD_LOCKS: &[(&str, &str)] = &[
    ("cache::segment", "a segment's number is one thread's, which makes it; the others only look"),
    ("lock::ledger", "a child makes a ledger of its own"),
    ("lock::within", "one call's, which a child does not go on with"),
    ("populate::job", "only the last thread sets the outcome, and the others only look"),
];

/// Each gets a number in the program's table for a moment: `brief` closes it only while it is that
/// file's, and a child of another thread's fork does not inherit it. The others run on the worker,
/// which has descriptors of its own, or return a descriptor.
/// descriptor.
#[test]
fn descriptors_are_opened_in_one_place() {
    let may = ["brief", "pressure", "pressure_told", "uffd", "pagemap", "sharers"];
    let mut found = String::new();
    for (module, file, line, path) in core().foreign() {
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        let opens = match path[..] {
            ["std", "fs", name, ..] => {
                ["File", "read", "read_to_string", "OpenOptions"].contains(&name)
            }
            ["rustix", "fs", name, ..] => name.starts_with("open"),
            _ => false,
        };
        let is_there = module.last().is_some_and(|name| may.contains(&name.as_str()));
        if opens && !is_there {
            found += &format!("{}:{line}: {}\n", shown(file), path.join("::"));
        }
    }
    assert!(found.is_empty(), "files opened elsewhere:\n{found}");
}

#[test]
fn no_lock_of_the_standard_library_is_held_over_a_fork() {
    let waits = ["Once", "OnceLock", "LazyLock", "Mutex", "RwLock", "Condvar", "Barrier"];
    let mut found = BTreeSet::new();
    for (module, file, line, path) in core().foreign() {
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        if let ["std", "sync", name, ..] = path[..] {
            if waits.contains(&name) {
                let module = module.join("::");
                let known = STD_LOCKS.iter().any(|(known, _)| *known == module);
                assert!(known, "{}:{line}: std::sync::{name}", shown(file));
                found.insert(module);
            }
        }
    }
    for (module, _) in STD_LOCKS {
        assert!(found.contains(*module), "{module} has no such lock any more");
    }
}

#[test]
fn no_modules_import_one_another_in_a_circle() {
    let mut wrong = String::new();
    for (name, root) in roots() {
        let edges = Crate::read(&root).edges();
        for circle in circles_of(&edges, name == "tenure") {
            let inside = |edge: &&Edge| {
                !edge.reexport
                    && circle.contains(&edge.from.join("::"))
                    && circle.contains(&edge.to.join("::"))
            };
            wrong += &format!("{name}: a circle of {circle:?}:\n");
            wrong += &list(edges.iter().filter(inside));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// All source files below a directory.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a readable directory") {
        match entry.expect("an entry").path() {
            path if path.is_dir() => sources(&path, found),
            path if path.extension().is_some_and(|ending| ending == "rs") => found.push(path),
            _ => {}
        }
    }
}

/// The statics of a file, except those of tests, and whether a doc comment gives the reason: with
/// the words "For the whole process" or "Each thread's own".
fn statics(text: &str) -> Vec<(usize, String, bool)> {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let tests = lines.iter().position(|line| *line == "#[cfg(test)]").unwrap_or(lines.len());
    let is_static = |line: &str| {
        let line = line
            .rsplit_once(") ")
            .filter(|(is, _)| is.starts_with("pub("))
            .map_or(line, |(_, rest)| rest);
        let name = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("static ")?;
        let name = name.strip_prefix("ref ").unwrap_or(name).split(':').next()?;
        Some(name.to_owned())
    };
    let mut found = Vec::new();
    for (at, line) in lines[..tests].iter().enumerate() {
        let Some(name) = is_static(line) else { continue };
        let above = lines[..at].iter().rev();
        let mut doc = above.take_while(|line| line.starts_with("///") || line.starts_with("#["));
        let says = |line: &&str| {
            ["For the whole process", "Each thread's own"].iter().any(|why| line.contains(why))
        };
        found.push((at + 1, name, doc.any(says)));
    }
    found
}

#[test]
fn every_static_of_the_core_says_why_it_is_one() {
    let mut files = Vec::new();
    sources(&crates().join("tenure/src"), &mut files);
    // Only tests have them.
    files.retain(|file| !file.ends_with("no_allocation.rs") && !file.ends_with("table/tests.rs"));
    let (mut count, mut silent) = (0, String::new());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a file that was found");
        for (line, name, says) in statics(&text) {
            count += 1;
            if !says {
                silent += &format!("{}:{line}: {name}\n", shown(&file));
            }
        }
    }
    assert!(count > 50, "only {count} were found");
    assert!(silent.is_empty(), "no doc comment says why these are static:\n{silent}");
}

#[test]
fn a_static_without_its_reason_is_found() {
    let text = "/// A list.\nstatic A: u8 = 0;\n/// For the whole process: it is one.\n#[used]\npub(super) static B: u8 = 0;\n\
                thread_local! {\n    /// Each thread's own.\n    static C: u8 = 0;\n}\n#[cfg(test)]\nstatic D: u8 = 0;";
    let found = statics(text).into_iter().map(|(_, name, says)| (name, says));
    let expected =
        [("A", false), ("B", true), ("C", true)].map(|(name, says)| (name.to_owned(), says));
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn unsafe_code_is_refused_where_no_reason_is_given() {
    for (name, root) in roots() {
        let text = std::fs::read_to_string(&root).expect("a root that was found");
        let refuses = ["#![deny(unsafe_code)]", "#![forbid(unsafe_code)]"];
        let has = |line: &str| refuses.contains(&line);
        assert!(text.lines().any(has), "{name}: {} allows unsafe code", shown(&root));
    }
}

/// Draws them all, once the harness's own lines are gone:
/// `cargo test -p tenure --test layers -- --ignored --nocapture | sed -n '/^digraph/,/^}/p' | dot -Tsvg -Kfdp`.
#[test]
#[ignore = "prints the modules and the arrows between them"]
fn picture() {
    println!("digraph {{");
    for (name, root) in roots() {
        let arrow = |edge: &Edge| {
            let ends = [edge.from.join("::"), edge.to.join("::")];
            let [from, to] = ends.map(|end| if end.is_empty() { "root".into() } else { end });
            format!("  \"{name}: {from}\" -> \"{name}: {to}\";")
        };
        let edges = Crate::read(&root).edges();
        let arrows: BTreeSet<_> = edges.iter().filter(|edge| !edge.reexport).map(arrow).collect();
        arrows.iter().for_each(|arrow| println!("{arrow}"));
    }
    println!("}}");
}

/// All crates of the workspace: name and root file.
fn roots() -> Vec<(String, PathBuf)> {
    let mut roots = Vec::new();
    for entry in std::fs::read_dir(crates()).expect("crates lie side by side") {
        let directory = entry.expect("a readable directory").path();
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // These compile files of the core, which are checked there.
        let borrows = ["tenure-models", "tenure-fuzz"].contains(&name.as_str());
        let files = ["src/lib.rs", "src/main.rs"].map(|file| directory.join(file));
        let files = files.into_iter().filter(|file| file.exists() && !borrows);
        roots.extend(files.map(|file| (name.clone(), file)));
    }
    assert!(roots.iter().any(|(name, _)| name == "tenure"));
    roots
}

// The mistakes that the check must find.

/// A crate of two files, with the edges between them.
fn edges_of(below: &str, above: &str) -> BTreeSet<(String, String)> {
    let mut sample = Crate::default();
    sample.add("mod below; mod above; mod other; pub use other::Thing;", &[]);
    for (text, name) in [(below, "below"), (above, "above"), ("pub struct Thing;", "other")] {
        sample.add(text, &[name.to_owned()]);
    }
    let edges = sample.edges();
    let edges = edges.iter().filter(|edge| !edge.reexport);
    edges.map(|edge| (edge.from.join("::"), edge.to.join("::"))).collect()
}

#[test]
fn every_way_to_name_a_module_is_found() {
    let edge = |to: &str| BTreeSet::from([("below".to_owned(), to.to_owned())]);
    for text in [
        "use crate::above::f;",
        "use crate::{above::{self, g}};",
        "use super::above;",
        "use super::{\n    above::{f, g as h},\n};",
        "fn f() { crate::above::g(); }",
        "fn f() -> super::above::T { loop {} }",
        "mod inner { fn f() { super::super::above::g() } }",
        "macro_rules! m { () => { $crate::above::g() } }",
        "fn f<'a>(x: &'a str) { assert!('\\'' == '\"' || crate::above::g(), \"crate::other::x\"); }",
        "/* crate::other /* */ */ // crate::other::x\nuse crate::above::*;",
        "#[cfg(not(test))] use crate::above::f;",
        "const X: &str = r#\"\"crate::other::x\"#; fn f() { crate::above::g() }",
    ] {
        assert_eq!(edges_of(text, ""), edge("above"), "{text}");
    }
    // The function, not the module of this name that is imported beside it.
    let from_above = ("above".to_owned(), "other".to_owned());
    let both = BTreeSet::from([("below".to_owned(), "above".to_owned()), from_above]);
    let above = "use crate::other; pub fn other() { other::f() }";
    assert_eq!(edges_of("fn f() { crate::above::other() }", above), both);
    // A macro, by the path that it was given.
    let above = "macro_rules! m { () => {} } pub(crate) use m;";
    assert_eq!(edges_of("use crate::above::m; fn f() { m!() }", above), edge("above"));
    // Passed on by the root: the defining module counts.
    assert_eq!(edges_of("use crate::Thing;", ""), edge("other"));
    for text in [
        "#[cfg(test)] mod tests { use crate::above::f; }",
        "#[cfg(test)] use crate::above::{f, g};",
        "pub(in crate::above) fn f() {}",
        "//! [`f`](crate::above::f)",
        "fn above() { let above = 1; std::above::f(above); }",
    ] {
        assert_eq!(edges_of(text, ""), BTreeSet::new(), "{text}");
    }
}

#[test]
fn a_circle_is_found_and_a_chain_is_not() {
    let edges = [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5)];
    assert_eq!(circles::circles(edges.into_iter()), [BTreeSet::from([1, 2, 3])]);
    assert!(circles::circles([(1, 2), (1, 3), (2, 3)].into_iter()).is_empty());
}
