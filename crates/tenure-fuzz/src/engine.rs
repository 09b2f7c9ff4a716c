//! Runs a target with input after input, and shrinks inputs that fail.

use crate::mutate::input;
use crate::targets::Target;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tenure_differ::rng::Rng;

/// The longest time for shrinking one failure.
const PATIENCE: Duration = Duration::from_secs(20);

/// When a run ends: whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How long it takes.
    pub time: Duration,
    /// How many inputs it tries.
    pub runs: u64,
}

/// A failure.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The number of the input in the seed's sequence; `None`: an unchanged sample.
    pub run: Option<u64>,
    /// The input, after shrinking.
    pub input: Vec<u8>,
    /// Its effect.
    pub why: String,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// How many inputs were tried.
    pub runs: u64,
    /// The first one that failed.
    pub failure: Option<Failure>,
}

/// The directory of the samples.
pub fn corpus(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The samples of a target, in the order of their names; none if it has no directory.
pub fn samples(target: &Target) -> Vec<Vec<u8>> {
    let Ok(files) = std::fs::read_dir(corpus(target)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
}

/// Tries one input.
///
/// # Errors
/// The broken promise, or the panic's text.
pub fn attempt(target: &Target, input: &[u8]) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("a panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Returns the input at a place in a seed's sequence.
pub fn nth_input(target: &Target, samples: &[Vec<u8>], seed: u64, run: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ run);
    input(&mut rng, samples, target.tokens, target.longest)
}

/// Tries the unchanged samples, and then input after input until a bound or a failure.
pub fn run(target: &Target, seed: u64, bounds: Bounds) -> Report {
    let samples = samples(target);
    let mut report = Report { runs: 0, failure: None };
    let failed = |run, input: &[u8], why| Some(Failure { run, why, input: smaller(target, input) });
    for sample in &samples {
        report.runs += 1;
        if let Err(why) = attempt(target, sample) {
            report.failure = failed(None, sample, why);
            return report;
        }
    }
    let began = Instant::now();
    for run in 0..bounds.runs {
        // A look at the clock takes longer than some targets.
        if run % target.between_looks == 0 && began.elapsed() >= bounds.time {
            break;
        }
        let input = nth_input(target, &samples, seed, run);
        report.runs += 1;
        if let Err(why) = attempt(target, &input) {
            report.failure = failed(Some(run), &input, why);
            break;
        }
    }
    report
}

/// Removes parts that the failure does not need, in ever smaller pieces.
fn smaller(target: &Target, input: &[u8]) -> Vec<u8> {
    let began = Instant::now();
    let mut best = input.to_vec();
    let mut piece = best.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < best.len() && began.elapsed() < PATIENCE {
            let mut fewer = best.clone();
            fewer.drain(at..(at + piece).min(best.len()));
            match attempt(target, &fewer) {
                Err(_) => best = fewer,
                Ok(()) => at += piece,
            }
        }
        piece /= 2;
    }
    best
}
