//! `tenure bench`: the command line of the `tenure-bench` crate.

use crate::failure::WrongUsage;
use std::io::{self, Write};
use std::path::PathBuf;

/// The hidden command that is a load generator.
pub const LOAD: &str = tenure_bench::load::COMMAND;

const EXAMPLES: &str = "\
Examples:
  tenure bench                           all of them; takes an hour
  tenure bench volatile --quick          every row once or twice, in seconds: a smoke test
  tenure bench lock-on-fault --size 2G --dir /data
  tenure bench unmap --size 16G --filter '4 KiB pages:'
  tenure bench lazy-free --filter ebizzy --threads 1,32
  tenure bench programs --filter numpy --python venv/bin/python
  tenure bench hit-ratio --trace OLTP.lis.zst P6.lis.zst --json hits.json
  tenure bench cache --filter zipf --threads 1,4 --rounds 9 --json cache.json

Every table has the contestants interleaved after a warm-up round; rows in which tenure loses are \
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
    /// Size of what lock-on-fault [default: 5G], populate [default: 512M] and unmap [default: 1G and
    /// 4G] work on.
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    size: Option<u64>,
    /// Directory for files on a disk [default: /var/tmp].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// A trace for hit-ratio, beside the loads that it generates: ARC's .lis, libCacheSim's .csv or
    /// oracleGeneral, each perhaps compressed (.zst). May be given several times.
    #[arg(long = "trace", value_name = "FILE", num_args = 1..)]
    traces: Vec<PathBuf>,
    /// The Python interpreter of programs, which may be a virtual environment's with numpy, pandas,
    /// pyarrow and Pillow [default: TENURE_BENCH_PYTHON, or else python3].
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// List the benchmarks and stop.
    #[arg(long)]
    list: bool,
}

/// The arguments of the hidden command.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// What to do, as JSON.
    load: String,
}

/// Runs the hidden command.
pub fn load(args: &LoadArgs) -> ! {
    std::process::exit(tenure_bench::load::main(&args.load).into())
}

/// By its path, so that processes have its name; by the link, where the file has been replaced since.
fn this_program() -> PathBuf {
    std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| "/proc/self/exe".into())
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.list {
        let mut out = io::stdout().lock();
        for (name, what) in tenure_bench::list() {
            writeln!(out, "{name:<16}{what}")?;
        }
        return Ok(());
    }
    let known: Vec<&str> = tenure_bench::list().iter().map(|(name, _)| *name).collect();
    if let Some(name) = args.names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(WrongUsage(format!(
            "there is no benchmark \"{name}\"; there are: {}",
            known.join(", ")
        ))
        .into());
    }
    let options = tenure_bench::Options {
        quick: args.quick,
        json: args.json.clone(),
        rounds: args.rounds,
        threads: args.threads.clone(),
        filter: args.filter.clone(),
        size: args.size,
        load_generator: vec![this_program().into(), LOAD.into()],
        launcher: Some(this_program()),
        dir: args.dir.clone(),
        traces: args.traces.clone(),
        python: args.python.clone(),
    };
    Ok(tenure_bench::run(&args.names, &options)?)
}
