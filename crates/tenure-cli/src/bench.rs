//! `tenure bench`: the command line of the `tenure-bench` crate.

use std::io::{self, Write};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  tenure bench                           all of them; takes several minutes
  tenure bench volatile --quick          every row once or twice, in seconds: a smoke test
  tenure bench cache --filter zipf --threads 1,4 --rounds 9 --json cache.json

Every table has the contestants interleaved after a warm-up round; rows in which tenure loses are
marked. A slow result is no failure, wrong bytes are.";

/// Measure tenure against the alternatives on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The benchmarks to run [default: all].
    names: Vec<String>,
    /// Run everything small and few times over, in a few seconds in all.
    #[arg(long)]
    quick: bool,
    /// Also write every sample, the machine and the peers' versions to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measured rounds of each comparison [default: each benchmark's own].
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Thread counts, separated by commas [default: each benchmark's own].
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Only comparisons whose title contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// List the benchmarks and stop.
    #[arg(long)]
    list: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.list {
        let mut out = io::stdout().lock();
        for (name, what) in tenure_bench::list() {
            writeln!(out, "{name:<12}{what}")?;
        }
        return Ok(());
    }
    let known: Vec<&str> = tenure_bench::list().iter().map(|(name, _)| *name).collect();
    if let Some(name) = args.names.iter().find(|name| !known.contains(&name.as_str())) {
        crate::cli::wrong_usage(format!(
            "there is no benchmark \"{name}\"; there are: {}",
            known.join(", ")
        ));
    }
    let options = tenure_bench::Options {
        quick: args.quick,
        json: args.json.clone(),
        rounds: args.rounds,
        threads: args.threads.clone(),
        filter: args.filter.clone(),
    };
    Ok(tenure_bench::run(&args.names, &options)?)
}
