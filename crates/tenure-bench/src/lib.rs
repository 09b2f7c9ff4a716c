//! The benchmarks behind `tenure bench`.
//!
//! Every bench compares: the contestants of a [`harness::Comparison`] take turns (A B C A B C …)
//! after a discarded warm-up round, so that changes of the machine affect all of them. The table
//! shows the rows in which tenure loses as plainly as the others. Times never fail a run; wrong
//! bytes do.
//!
//! A round touches at most 512 MiB if the compared program allows it. On a virtual machine, memory
//! that the guest has freed may have gone back to the host, and its next first touch is many times
//! slower.

#![deny(unsafe_code)]

mod backing;
pub mod cache;
pub mod change;
pub mod harness;
pub mod hit_ratio;
pub mod lazy_free;
pub mod load;
pub mod lock_on_fault;
mod needs;
mod options;
pub mod page;
pub mod populate;
pub mod programs;
pub mod shared;
pub mod unmap;
pub mod volatile;

pub use options::Options;

use harness::{Report, Share};
use std::io::{self, Write};

/// A benchmark.
struct Bench {
    name: &'static str,
    description: &'static str,
    run: fn(&Options, &mut Report<'_>) -> io::Result<()>,
    /// Seconds of the fifteen minutes that all of them take, and the number of comparisons.
    share: Share,
}

const fn bench(
    name: &'static str,
    description: &'static str,
    run: fn(&Options, &mut Report<'_>) -> io::Result<()>,
    (weight, comparisons): (u32, u32),
) -> Bench {
    Bench { name, description, run, share: Share { weight, comparisons } }
}

const BENCHES: &[Bench] = &[
    bench(
        "cache",
        "get, insert and mixed use of tenure's cache against moka, quick_cache and foyer",
        cache::run,
        (150, 28),
    ),
    bench(
        "hit-ratio",
        "hit ratios of tenure's cache and of others with as many bytes: generated loads and traces",
        hit_ratio::run,
        (60, 35),
    ),
    bench(
        "lazy-free",
        "ebizzy, malloc-large and competing bursts with every allocator, and the launcher's cost",
        lazy_free::run,
        (220, 20),
    ),
    bench(
        "lock-on-fault",
        "random reads of a large file that must stay in memory: mlock, lock on fault by hand, and tenure",
        lock_on_fault::run,
        (110, 2),
    ),
    bench(
        "populate",
        "populating every kind of memory against every plain way, and with several threads",
        populate::run,
        (90, 60),
    ),
    bench(
        "programs",
        "installed programs: plain, under tenure, with other allocators, and with memory returned at once",
        programs::run,
        (110, 16),
    ),
    bench(
        "shared",
        "shared volatile memory and the cache of several processes, against private ones and servers",
        shared::run,
        (80, 36),
    ),
    bench(
        "unmap",
        "unmapping large mappings: the caller's time, other threads' waits, and the total time",
        unmap::run,
        (60, 8),
    ),
    bench(
        "volatile",
        "seed program; the cost to pin, mark, take back and offer volatile ranges, and their bookkeeping",
        volatile::run,
        (90, 40),
    ),
];

const NAMES: &[(&str, &str)] = &{
    let mut names = [("", ""); BENCHES.len()];
    let mut at = 0;
    while at < BENCHES.len() {
        names[at] = (BENCHES[at].name, BENCHES[at].description);
        at += 1;
    }
    names
};

/// All benches: name and description.
pub fn list() -> &'static [(&'static str, &'static str)] {
    NAMES
}

/// Runs the named benches (all of them when none is named) and prints their tables to standard
/// output.
///
/// # Errors
/// `InvalidInput` for an unknown name; `InvalidData` when a contestant served wrong bytes;
/// otherwise an error of the output or a system call. A slow result is no error.
pub fn run(names: &[String], options: &Options) -> io::Result<()> {
    run_to(names, options, &mut io::stdout())
}

/// [`run`], printing to `out`.
///
/// # Errors
/// As for [`run`].
pub fn run_to(names: &[String], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let chosen = choose(names)?;
    let shares = chosen.iter().map(|bench| bench.share).collect();
    // Opened first: a name that cannot be written must not cost minutes of measuring.
    let html = harness::create(options.html.as_deref())?;
    let mut report = Report::of(options, out, shares)?;
    let done = run_each(&chosen, options, &mut report);
    let done = match done {
        Err(_) if report.is_interrupted() => Err(harness::interrupted()),
        done => done,
    };
    if let Err(error) = &done {
        report.ends_early(&error.to_string());
    }
    let document = report.finish()?;
    if let Some(mut file) = html {
        file.write_all(page::render(&[&document]).as_bytes())?;
    }
    done
}

fn run_each(chosen: &[&Bench], options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let plans = needs::plan(chosen.iter().map(|bench| bench.name), options);
    report.print(&needs::text(&plans, options))?;
    for (bench, plan) in chosen.iter().zip(&plans) {
        report.begin(bench.name, bench.description)?;
        for change in &plan.changes {
            report.note(change.as_str())?;
        }
        if plan.fits {
            (bench.run)(&plan.options, report)?;
        }
        if report.is_interrupted() {
            return Err(harness::interrupted());
        }
    }
    match &options.filter {
        Some(filter) if report.is_empty() && plans.iter().any(|plan| plan.fits) => {
            let why = format!("no comparison's title contains \"{filter}\"");
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
        _ => Ok(()),
    }
}

fn choose(names: &[String]) -> io::Result<Vec<&'static Bench>> {
    if names.is_empty() {
        return Ok(BENCHES.iter().collect());
    }
    names
        .iter()
        .map(|wanted| {
            BENCHES.iter().find(|bench| bench.name == wanted).ok_or_else(|| {
                let known: Vec<_> = BENCHES.iter().map(|bench| bench.name).collect();
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("there is no bench \"{wanted}\"; there are: {}", known.join(", ")),
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = choose(&["cash".to_string()]).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        for (name, _) in list() {
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn no_name_means_all() {
        let all: Vec<_> = choose(&[]).unwrap().iter().map(|bench| bench.name).collect();
        let listed: Vec<_> = list().iter().map(|bench| bench.0).collect();
        assert_eq!(all, listed);
        assert_eq!(
            all,
            [
                "cache",
                "hit-ratio",
                "lazy-free",
                "lock-on-fault",
                "populate",
                "programs",
                "shared",
                "unmap",
                "volatile"
            ]
        );
    }
}
