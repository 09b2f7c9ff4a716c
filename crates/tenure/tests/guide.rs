//! Checks the guide: every page is listed and reached, links only to listed pages, and has programs
//! that are compiled.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The targets of a page's links: `file.md`, `file.md#part` or `#part`.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}

/// The pages of the table of contents, in order.
fn pages() -> Vec<PathBuf> {
    let docs = root().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    links(&summary).iter().map(|link| docs.join(link)).collect()
}

/// The guide's own pages: the first one, at mdBook's place, and those in its directory.
fn guide() -> Vec<PathBuf> {
    let folder = fs::read_dir(root().join("docs/guide")).unwrap();
    let mut found: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    found.push(root().join("docs/README.md"));
    found
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> HashSet<String> {
    let mut code = false;
    let mut found = HashSet::new();
    for line in text.lines() {
        code ^= line.starts_with("```");
        let heading = line.trim_start_matches('#').strip_prefix(' ');
        if let (false, true, Some(heading)) = (code, line.starts_with('#'), heading) {
            let kept =
                heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            found.insert(kept.collect::<String>().to_lowercase().replace(' ', "-"));
        }
    }
    found
}

#[test]
fn the_guide_has_at_most_twelve_pages_and_all_of_them_are_in_its_contents() {
    let listed: HashSet<_> = pages().into_iter().collect();
    let there = guide();
    assert!((10..=12).contains(&there.len()), "{} pages", there.len());
    for page in there {
        assert!(listed.contains(&page), "not in docs/SUMMARY.md: {}", page.display());
        let lines = read(&page).lines().count();
        assert!(lines <= 200, "{} has {lines} lines", page.display());
    }
}

#[test]
fn links_lead_to_pages_and_headings_of_the_guide() {
    let listed: HashSet<_> = pages().into_iter().collect();
    for page in &listed {
        let text = read(page);
        for link in links(&text) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => {
                    let path = page.parent().unwrap().join(file);
                    path.canonicalize()
                        .unwrap_or_else(|e| panic!("{}: {link}: {e}", page.display()))
                }
            };
            assert!(listed.contains(&target), "{}: {link} is no page of the guide", page.display());
            let known = heading.is_empty() || anchors(&read(&target)).contains(heading);
            assert!(known, "{}: {link}: no such heading", page.display());
        }
        for image in text.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(page.parent().unwrap().join(image).exists(), "{}: {image}", page.display());
        }
    }
}

#[test]
fn programs_of_the_guide_are_compiled_and_the_examples_that_it_names_exist() {
    let compiled = read(&root().join("crates/tenure-examples/src/lib.rs"));
    for page in guide() {
        let text = read(&page);
        let name = page.strip_prefix(root()).unwrap().to_str().unwrap();
        let included = compiled.contains(&format!("/{name}\")"));
        assert!(included || !text.contains("```rust"), "{name}: its programs are not compiled");
        // Text that is indented by four, or a block without a language, would be compiled as Rust.
        let mut open = false;
        for line in text.lines() {
            if line.starts_with("```") {
                open = !open;
                assert!(!open || line.len() > 3, "{name}: a block without a language");
            } else {
                assert!(open || !line.starts_with("    "), "{name}: indented: {line}");
            }
        }
        for example in text.split("--example ").skip(1) {
            let example = example.split(['`', ' ', '\n']).next().unwrap();
            let file = format!("crates/tenure-examples/examples/{example}.rs");
            assert!(root().join(&file).exists(), "{name} names {file}");
        }
    }
}
