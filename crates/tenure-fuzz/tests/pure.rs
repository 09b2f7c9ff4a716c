//! The targets that make no system call, in this process, so that Miri can run them:
//! `MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p tenure-fuzz --test pure`.

use std::time::Duration;
use tenure_fuzz::engine::{self, Bounds};
use tenure_fuzz::targets::TARGETS;

fn runs_of(name: &str, runs: u64) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("there is one");
    let runs = if cfg!(miri) { runs / 20 } else { runs };
    let report = engine::run(target, 2, Bounds { time: Duration::MAX, runs });
    println!("{name}: {} executions", report.runs);
    if let Some(failure) = report.failure {
        panic!("{}: {}", failure.why, failure.input.escape_ascii());
    }
}

#[test]
fn range_arithmetic() {
    runs_of("ranges", 1000);
}

#[test]
fn the_interval_map() {
    runs_of("map", 20);
}

#[test]
fn readers_of_smaps() {
    runs_of("smaps", 200);
}

#[test]
fn readers_of_pressure() {
    runs_of("pressure", 1000);
}

#[test]
fn readers_of_numbers_of_a_process() {
    runs_of("stat", 1000);
}

#[test]
fn readers_of_settings() {
    runs_of("settings", 1000);
}
