//! The differential driver for about twenty seconds: half of it with seeds that are always the same, half
//! with fresh ones.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use tenure_testkit::build::{compiler, libraries_of, text};
use tenure_testkit::skip;

const LIBRARY: &str = "libtenure_preload.so";

fn differ(seed: u64) {
    if let Err(reason) = compiler("CC", "cc") {
        skip!("{reason}");
    }
    let library = libraries_of("tenure-preload", &[LIBRARY]).join(LIBRARY);
    let output = Command::new(env!("CARGO_BIN_EXE_tenure-differ"))
        .args(["--seconds", "8", "--keep-going", "--seed", &seed.to_string(), "--library"])
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

#[test]
fn programs_are_as_they_were_for_seeds_that_stay() {
    differ(1);
}

#[test]
fn programs_are_as_they_were_for_fresh_seeds() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right");
    differ(now.as_secs() << 16);
}
