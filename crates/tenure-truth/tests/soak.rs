//! The heavy configurations under every condition of the machine: a few turns. The whole run is a
//! separate command and takes an hour.

use std::process::Command;
use tenure_testkit::skip;

#[test]
fn everything_heavy_under_every_condition() {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure-truth"))
        .args(["--soak", "--seconds", "1", "--slice", "0.2", "--jobs", "2", "--seed", "1"])
        .output()
        .expect("the truth machine starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for line in text.lines() {
        if let Some(reason) = line.strip_prefix("- skipped: ") {
            skip::record("soak::everything_heavy_under_every_condition", reason);
        }
    }
}
