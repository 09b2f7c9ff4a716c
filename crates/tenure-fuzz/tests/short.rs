//! Each target for a moment, with a seed that is always the same, so that each run of the suite
//! tries the same inputs. New ones: `tenure-fuzz all --seconds 60 --seed N`. An input that failed
//! stays in the corpus.

tenure_testkit::two_for_each_processor!();

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use tenure_testkit::build::{libraries_of, text};
use tenure_testkit::{skip, sweep};

/// Where the other packages are built.
fn built() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        libraries_of("tenure-cli", &["tenure"]);
        libraries_of("tenure-preload", &["libtenure_preload.so"]);
        libraries_of("tenure-capi", &["libtenure.so"])
    })
}

fn try_target(name: &str, runs: u32) {
    let runs_programs = matches!(name, "launcher" | "abi");
    let runs = sweep(runs, if runs_programs { 8 } else { 20 } * runs).to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-fuzz"));
    command.args([name, "--seconds", "600", "--seed", "1", "--runs", &runs]);
    if runs_programs {
        command.arg("--built").arg(built());
    }
    let output = command.output().expect("it starts");
    println!("{}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    if let Some(reason) = said.lines().find_map(|line| line.strip_prefix("skipped: ")) {
        skip::record(&format!("fuzz::{name}"), reason);
    }
    assert!(output.status.success(), "{}", output.status);
}

#[test]
fn ranges() {
    try_target("ranges", 1000);
}

#[test]
fn the_interval_map() {
    try_target("map", 40);
}

#[test]
fn lists_of_mappings() {
    try_target("maps", 300);
}

#[test]
fn smaps() {
    try_target("smaps", 500);
}

#[test]
fn cgroups() {
    try_target("groups", 2000);
}

#[test]
fn limits_of_a_cgroup() {
    try_target("limits", 60);
}

#[test]
fn pressure() {
    try_target("pressure", 5000);
}

#[test]
fn numbers_of_a_process() {
    try_target("stat", 5000);
}

#[test]
fn the_page_map() {
    try_target("pagemap", 40);
}

#[test]
fn settings_of_the_launcher() {
    try_target("settings", 5000);
}

#[test]
fn figures_that_lie() {
    try_target("figures", 300);
}

#[test]
fn tenure_run_with_any_options_and_environment() {
    try_target("launcher", 6);
}

#[test]
fn c_calls_in_random_order() {
    try_target("abi", 3);
}
