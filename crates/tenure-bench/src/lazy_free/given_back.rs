//! Resident memory after a program has freed everything.

use super::contestant::{
    Programs, Setup, GLIBC, JEMALLOC, JEMALLOC_EAGER, MIMALLOC, MIMALLOC_EAGER, TCMALLOC,
};
use crate::harness::{
    Comparison, Contestant, Goal, Report, Role, Sample, TimeSeries, TimeSeriesRow, Unit,
};
use crate::load::{Answer, Kept, Large, Load};
use crate::Options;
use std::collections::HashMap;
use std::io;

/// The memory of a process beside the buffers.
const OWN_MIB: f64 = 8.0;
/// The times after everything was freed at which the memory is read. The table has two of these.
const LOOKS_MS: [u64; 7] = [0, 250, 500, AT_FIRST_MS, 2000, 5000, 10_000];
const AT_FIRST_MS: u64 = 1000;
const LATER: &str = "kept after 10 s";

/// The table: of a process that has replaced and then freed buffers of 5 to 25 MiB.
pub(super) fn table(
    options: &Options,
    programs: &Programs<'_>,
    report: &mut Report<'_>,
) -> io::Result<()> {
    // Smoke mode cannot wait for memory to be returned.
    let look_after_ms = if options.quick { vec![1000] } else { LOOKS_MS.to_vec() };
    let load = Load::Large(Large {
        replacements: 60,
        min_bytes: options.size(5 << 20, 1 << 20),
        max_bytes: options.size(25 << 20, 5 << 20),
        look_after_ms,
    });
    let title = "memory given back: MiB that the kernel may not take 1 s after all was freed";
    if !options.wants(title) {
        return Ok(());
    }
    // They work one after another and wait side by side.
    let answers: HashMap<String, io::Result<Answer>> = std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        for setup in setups() {
            let load = &load;
            let name = setup.name.clone();
            let run = scope.spawn(move || programs.run(&setup, load));
            // Long enough for the slowest to have done its work.
            std::thread::sleep(std::time::Duration::from_millis(if options.quick {
                50
            } else {
                1500
            }));
            waiting.push((name, run));
        }
        waiting
            .into_iter()
            .map(|(name, run)| {
                let answer = run.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
                (name, answer)
            })
            .collect()
    });
    let mut comparison = Comparison::new(title, Unit::Mebibytes);
    for setup in setups() {
        let answer = &answers[&setup.name];
        let mut contestant =
            Contestant::new(setup.name.clone(), setup.role, move || match answer {
                Ok(answer) => sample(answer),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            });
        // Memory that another allocator keeps counts as in use for the pool below it.
        if setup == Setup::large() {
            contestant = contestant.goal(Goal::AtMost(OWN_MIB));
            if !options.quick {
                contestant = contestant.goal(Goal::BesideAtMost("resident after 10 s", OWN_MIB));
            }
        }
        comparison = comparison.with(contestant.once());
    }
    let course = |setup: Setup| {
        let kept = &answers.get(&setup.name)?.as_ref().ok()?.kept;
        let point = |kept: &Kept| (kept.after_ms as f64 / 1e3, mib(kept.held_bytes()));
        let points = kept.iter().map(point).collect();
        Some(TimeSeriesRow { name: setup.name, role: setup.role, points })
    };
    report.time_series(TimeSeries {
        title: "memory that the kernel may not take, after all was freed".into(),
        over: "s".into(),
        unit: "MiB".into(),
        rows: setups().into_iter().filter_map(course).collect(),
    });
    report.compare_times(comparison, 1)
}

fn setups() -> Vec<Setup> {
    let mut all = vec![Setup::large()];
    // Landmarks: some give memory back before any delay, and pay for it above.
    for allocator in [GLIBC, JEMALLOC, MIMALLOC, TCMALLOC, JEMALLOC_EAGER, MIMALLOC_EAGER] {
        all.push(Setup::plain(allocator, Role::Reference));
    }
    all.extend([JEMALLOC, MIMALLOC, TCMALLOC].map(Setup::beneath));
    all
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn sample(answer: &Answer) -> io::Result<Sample> {
    let Some(first) = answer.kept.iter().find(|kept| kept.after_ms == AT_FIRST_MS) else {
        return Err(io::Error::other("the load did not measure its memory"));
    };
    let mut sample = Sample::from(mib(first.held_bytes()))
        .with("resident after 1 s", mib(first.anonymous_bytes));
    if let Some(last) = answer.kept.last().filter(|last| last.after_ms > AT_FIRST_MS) {
        sample = sample
            .with(LATER, mib(last.held_bytes()))
            .with("resident after 10 s", mib(last.anonymous_bytes));
    }
    Ok(sample)
}
