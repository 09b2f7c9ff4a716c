//! The differential driver for a few seconds, with seeds that are always the same, and one that is not. Longer runs:
//! `tenure-differ --seconds 3600`.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use tenure_testkit::build::{compiler, libraries_of, text};
use tenure_testkit::skip;

const LIBRARY: &str = "libtenure_preload.so";
fn differ(seed: u64, seconds: &str, more: &[&str]) {
    if let Err(reason) = compiler("CC", "cc") {
        skip!("{reason}");
    }
    let library = libraries_of("tenure-preload", &[LIBRARY]).join(LIBRARY);
    let output = Command::new(env!("CARGO_BIN_EXE_tenure-differ"))
        .args(["--seconds", seconds, "--keep-going", "--seed", &seed.to_string()])
        .args(more)
        .arg("--library")
        .arg(library)
        .output()
        .expect("the driver starts");
    println!("seed {seed}: {}", text(&output));
    assert!(output.status.success(), "from seed {seed} on: {}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    if let Some(reason) = said.lines().find_map(|line| line.strip_prefix("C++ skipped: ")) {
        skip::record("differ", reason);
    }
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right");
    now.as_secs() << 16
}

#[test]
fn programs_are_as_they_were_for_seeds_that_stay() {
    for seed in 1..=4 {
        differ(seed, "60", &["--once"]);
    }
}

#[test]
fn programs_are_as_they_were_for_fresh_seeds() {
    differ(fresh_seed(), "8", &[]);
}
