//! All configurations of the truth machine, for some seconds, or for a minute in sum.

use std::process::Command;
use tenure_testkit::{skip, sweep};

#[test]
fn a_minute_of_truth() {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure-truth"))
        .args([
            "--seconds",
            sweep("6", "30"),
            "--jobs",
            "2",
            "--config",
            "all",
            "--keep-going",
            "--seed",
            "1",
        ])
        .output()
        .expect("the truth machine starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for line in text.lines() {
        if let Some((name, reason)) = line.split_once("skipped: ") {
            skip::record(&format!("a_minute_of_truth::{}", name.trim()), reason);
        }
    }
}
