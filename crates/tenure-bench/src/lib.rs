//! The benchmarks behind `tenure bench`.
//!
//! Every bench compares: the contestants of a [`harness::Comparison`] take turns (A B C A B C …)
//! after a warm-up round that is thrown away, so that whatever the machine does meanwhile happens
//! to all of them, and the table shows the rows in which tenure loses as plainly as the others.
//! Times never fail a run; wrong bytes do.
//!
//! A round touches at most 512 MiB where the compared program allows it: on a virtual machine
//! memory that the guest has freed may have gone back to the host, and its next first touch is many
//! times slower.

#![deny(unsafe_code)]

mod backing;
pub mod cache;
pub mod harness;
pub mod hit_ratio;
pub mod lazy_free;
pub mod load;
pub mod lock_on_fault;
mod options;
pub mod populate;
pub mod programs;
pub mod unmap;
pub mod volatile;

pub use options::Options;

use harness::Report;
use std::io::{self, Write};

type Bench = fn(&Options, &mut Report<'_>) -> io::Result<()>;

const BENCHES: &[(&str, &str, Bench)] = &[
    (
        "cache",
        "get, insert and mixed use of tenure's cache against moka, quick_cache and foyer",
        cache::run,
    ),
    (
        "hit-ratio",
        "what tenure's cache finds, and what others do with as many bytes: generated loads and traces",
        hit_ratio::run,
    ),
    (
        "lazy-free",
        "ebizzy, malloc-large and competing bursts through every allocator, and what the launcher costs",
        lazy_free::run,
    ),
    (
        "lock-on-fault",
        "random reads of a large file that is to stay in memory: mlock, lock on fault, by hand and ours",
        lock_on_fault::run,
    ),
    (
        "populate",
        "making pages ready, for every backing, against every plain way; and on several threads",
        populate::run,
    ),
    (
        "programs",
        "real programs where installed: plain, under tenure, with other allocators, giving back at once",
        programs::run,
    ),
    (
        "unmap",
        "unmapping much memory: the caller's time, what other threads wait for meanwhile, and the total",
        unmap::run,
    ),
    (
        "volatile",
        "seed program, pin and mark costs, revival, offers and bookkeeping of volatile ranges",
        volatile::run,
    ),
];

const NAMES: &[(&str, &str)] = &{
    let mut names = [("", ""); BENCHES.len()];
    let mut at = 0;
    while at < BENCHES.len() {
        names[at] = (BENCHES[at].0, BENCHES[at].1);
        at += 1;
    }
    names
};

/// The benches that there are: name and description.
pub fn list() -> &'static [(&'static str, &'static str)] {
    NAMES
}

/// Runs the named benches (all of them when none is named) and prints their tables to standard
/// output.
///
/// # Errors
/// `InvalidInput` for an unknown name; `InvalidData` when a contestant served wrong bytes; else
/// what the output or a system call said. A slow result is no error.
pub fn run(names: &[String], options: &Options) -> io::Result<()> {
    run_to(names, options, &mut io::stdout())
}

/// [`run`], printing to `out`.
///
/// # Errors
/// As for [`run`].
pub fn run_to(names: &[String], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let chosen = choose(names)?;
    let mut report = Report::new(options, out)?;
    for (name, description, bench) in chosen {
        report.begin(name, description)?;
        bench(options, &mut report)?;
    }
    report.finish()
}

fn choose(names: &[String]) -> io::Result<Vec<(&'static str, &'static str, Bench)>> {
    if names.is_empty() {
        return Ok(BENCHES.to_vec());
    }
    names
        .iter()
        .map(|wanted| {
            BENCHES.iter().find(|(name, ..)| name == wanted).copied().ok_or_else(|| {
                let known: Vec<_> = BENCHES.iter().map(|(name, ..)| *name).collect();
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
        let error = choose(&["cash".to_string()]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        for (name, _) in list() {
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn no_name_means_all() {
        let all: Vec<_> = choose(&[]).unwrap().iter().map(|bench| bench.0).collect();
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
                "unmap",
                "volatile"
            ]
        );
    }
}
