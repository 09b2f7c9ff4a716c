//! Workers that share volatile memory, of which one is killed every tenth of a second: a short run.

use std::process::Command;
use tenure_testkit::sweep;

#[test]
fn killed_workers_leave_no_wrong_byte() {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure-truth"))
        .args(["--workers", "4", "--reads", sweep("500000", "20000000")])
        .output()
        .expect("the truth machine starts");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    let last = text.lines().rfind(|line| line.contains("checked reads")).expect("a line");
    assert!(last.contains("wrong 0, told twice 0") && last.contains("hangs 0"), "{last}");
    // On a busy machine a check may come late, or a neighbour be too fast; the bytes are still
    // right.
    assert!(text.contains("0 pinned, 1 processes"), "{text}");
}
