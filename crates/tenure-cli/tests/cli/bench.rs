//! `tenure bench` starts the program `tenure-bench`.

use crate::kit::{parts, text};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use tenure_testkit::build::{copy_program, libraries_of};

/// An installation of `tenure` in `DIR/bin`, without tenure-bench.
fn installed() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let tenure = dir.path().join("tenure");
    copy_program(env!("CARGO_BIN_EXE_tenure").as_ref(), &tenure).expect("it is copied");
    (dir, tenure)
}

fn bench(tenure: &Path, path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(tenure);
    command.arg("bench").args(arguments).env("PATH", path).stdin(Stdio::null());
    command
}

#[test]
fn without_tenure_bench_it_says_how_to_install_it() {
    let (dir, tenure) = installed();
    let done = bench(&tenure, dir.path(), &["--list"]).output().expect("it starts");
    let (code, out, errors) = parts(&done);
    assert_eq!((code, out.as_str()), (Some(127), ""));
    assert_eq!(errors.matches('\n').count(), 1, "{errors}");
    assert!(errors.contains("cargo install --path crates"), "{errors}");
}

#[test]
fn arguments_output_and_exit_code_are_those_of_tenure_bench() {
    let built = libraries_of("tenure-bench", &["tenure-bench"]);
    let (_dir, tenure) = installed();
    let run = |arguments: &[&str]| bench(&tenure, &built, arguments).output().expect("it starts");
    let (code, list, _) = parts(&run(&["--list"]));
    assert_eq!(code, Some(0));
    assert!(list.lines().any(|line| line.starts_with("lock-on-fault ")), "{list}");
    assert!(text(&run(&["--help"]).stdout).contains("Usage: tenure bench"));
    let (code, _, errors) = parts(&run(&["nosuch"]));
    assert_eq!(code, Some(2));
    assert!(errors.contains("nosuch") && errors.contains("cache"), "{errors}");

    let mut child =
        bench(&tenure, &built, &["--list"]).stdout(Stdio::piped()).spawn().expect("starts");
    let mut first = [0];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("a list is not empty");
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}
