//! Each system call that tenure makes fails, once and for good, with each error of its manual page:
//! a sample, and a larger one with `TENURE_TESTS=whole`. `cargo run --release -p tenure-failing`
//! makes all of them, which takes an hour.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tenure_testkit::build::{compiler, libraries_of, text};
use tenure_testkit::{skip, sweep};

const LAUNCHER: &str = "libtenure_preload.so";

fn sweep_of(subject: &str, sample: u64, more: &[&Path]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-failing"));
    let sample = sweep(sample, 4 * sample).to_string();
    command.args(["--subject", subject, "--seed", "1", "--sample", &sample]).args(more);
    let output = command.output().expect("it starts");
    println!("{}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    for line in said.lines() {
        if let Some(reason) = line.strip_prefix("skipped: ") {
            skip::record(&format!("failing_calls::{subject}"), reason);
        }
    }
    assert!(output.status.success(), "{}", output.status);
    assert!(said.contains(" injected failures"), "it says how many calls failed");
}

#[test]
fn ranges() {
    sweep_of("ranges", 10, &[]);
}

#[test]
fn buffers() {
    sweep_of("buffers", 10, &[]);
}

#[test]
fn caches() {
    sweep_of("caches", 10, &[]);
}

#[test]
fn locks() {
    sweep_of("locks", 10, &[]);
}

#[test]
fn populates() {
    sweep_of("populates", 10, &[]);
}

#[test]
fn pools() {
    sweep_of("pools", 10, &[]);
}

#[test]
fn retires() {
    sweep_of("retires", 10, &[]);
}

#[test]
fn shared_memory() {
    sweep_of("shared", 10, &[]);
}

#[test]
fn shared_caches() {
    sweep_of("shared-cache", 10, &[]);
}

fn libraries() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        libraries_of("tenure-capi", &["libtenure.so"]);
        libraries_of("tenure-preload", &[LAUNCHER])
    })
}

#[test]
fn programs_with_the_c_library() {
    if let Err(reason) = compiler("CC", "cc") {
        skip!("{reason}");
    }
    sweep_of("c", 14, &[Path::new("--c-library"), libraries()]);
}

#[test]
fn programs_under_the_launcher() {
    if let Err(reason) = compiler("CC", "cc") {
        skip!("{reason}");
    }
    sweep_of("launched", 4, &[Path::new("--library"), &libraries().join(LAUNCHER)]);
}

/// A sample; docs/checks.md has the command for all of them.
fn refusals_of(what: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-failing"));
    command.args(["--refuse", what, "--seed", "1", "--sample", "2"]);
    let output = command.output().expect("it starts");
    println!("{}", text(&output));
    assert!(output.status.success(), "{}", output.status);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(" runs with refusals"), "it says how many runs there were");
}

#[test]
fn capabilities_refused_for_good() {
    refusals_of("each");
}

#[test]
fn pairs_of_capabilities_refused_for_good() {
    refusals_of("pairs");
}
