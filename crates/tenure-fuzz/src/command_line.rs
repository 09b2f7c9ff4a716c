//! The command line.

use crate::engine::{self, Bounds};
use crate::targets::{Target, TARGETS};
use clap::Parser;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Tries a part of tenure with random input. A seed repeats a run; what fails is made small and shown, with the
/// command that repeats it.
#[derive(Debug, Parser)]
#[command(name = "tenure-fuzz", version)]
pub struct Options {
    /// What to try; `all`: one after the other; `list`: print the names.
    pub target: String,
    /// How long to try each target.
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,
    /// How many inputs to try at most.
    #[arg(long, default_value_t = u64::MAX)]
    pub runs: u64,
    /// Where to begin: a run with the same seed and corpus tries the same inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Try the bytes of this file, and nothing else.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Where `tenure` and its libraries are, for the targets that start them [default: where this program is].
    #[arg(long, value_name = "DIRECTORY")]
    pub built: Option<PathBuf>,
}

fn chosen(name: &str) -> Result<Vec<&'static Target>, String> {
    let all: Vec<&Target> = TARGETS.iter().collect();
    match all.iter().position(|target| target.name == name) {
        _ if name == "all" => Ok(all),
        Some(at) => Ok(vec![all[at]]),
        None => {
            let names: Vec<_> = all.iter().map(|target| target.name).collect();
            Err(format!("there is no target {name}: choose all, or one of {}", names.join(", ")))
        }
    }
}

/// Runs the options. Returns whether nothing failed.
///
/// # Errors
/// Wrong options, and files that a target needs and that are missing.
pub fn run(options: &Options) -> Result<bool, String> {
    if options.target == "list" {
        TARGETS.iter().for_each(|target| println!("{:<12} {}", target.name, target.what));
        return Ok(true);
    }
    let targets = chosen(&options.target)?;
    crate::targets::built_in(options.built.clone());
    if let Some(path) = &options.input {
        let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let results = targets.iter().map(|target| (target.name, engine::attempt(target, &bytes)));
        let failed: Vec<_> = results.filter_map(|(name, got)| Some((name, got.err()?))).collect();
        failed.iter().for_each(|(name, why)| println!("{name}: {why}"));
        return Ok(failed.is_empty());
    }
    let mut all_right = true;
    for target in targets {
        if let Err(reason) = (target.can_run)() {
            println!("skipped: {}: {reason}", target.name);
            continue;
        }
        all_right &= one(target, options);
    }
    Ok(all_right)
}

fn one(target: &Target, options: &Options) -> bool {
    let time = Duration::try_from_secs_f64(options.seconds).unwrap_or(Duration::MAX);
    let began = Instant::now();
    let report = engine::run(target, options.seed, Bounds { time, runs: options.runs });
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{}: {} executions in {seconds:.1} s, seed {}",
        target.name, report.runs, options.seed
    );
    let Some(failure) = report.failure else { return true };
    let name = format!("tenure-fuzz-{}-{}.input", target.name, options.seed);
    let kept = std::env::temp_dir().join(name);
    let kept = match std::fs::write(&kept, &failure.input) {
        Ok(()) => format!("tenure-fuzz {} --input {}", target.name, kept.display()),
        Err(error) => format!("it could not be kept: {error}"),
    };
    let run = failure.run.map_or("a sample as it is".into(), |run| format!("execution {run}"));
    println!("  FAILED: seed {}, {run}: {}", options.seed, failure.why);
    let len = failure.input.len();
    let shown = failure.input[..len.min(400)].escape_ascii();
    println!("  smallest input, {len} bytes: {shown}{}", if len > 400 { "..." } else { "" });
    println!("  {kept}");
    false
}
