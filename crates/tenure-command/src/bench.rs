//! The grammar of `tenure bench` and `tenure report`.
//!
//! `tenure` makes its manual pages and completions from it.

use crate::number::{size, within};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  tenure bench --html bench.html         all of them in 15 minutes, as a page
  tenure bench --quick                   all of them once or twice, in a minute
  tenure bench --within none             every round at full size: an hour or more
  tenure bench volatile --quick
  tenure bench lock-on-fault --size 2G --dir /data
  tenure bench unmap --size 16G --filter '4 KiB pages:'
  tenure bench lazy-free --filter ebizzy --threads 1,32
  tenure bench programs --filter numpy --python venv/bin/python
  tenure bench shared --filter killed --threads 1,2
  tenure bench hit-ratio --trace OLTP.lis.zst P6.lis.zst --json hits.json
  tenure bench cache --filter zipf --threads 1,4 --rounds 9 --json cache.json
  tenure bench compare before.json after.json --fail-on-loss

In every table the contestants run in turns after a warm-up round. A mark shows the rows in which \
tenure loses. A slow result is no failure; wrong bytes are one. Ctrl-C ends the run: the JSON and \
the page have all finished rounds. A second Ctrl-C ends it at once.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.";

/// Measure tenure against the alternatives on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "tenure-bench",
    bin_name = "tenure bench",
    version,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    color = crate::terminal::colours(),
    disable_help_subcommand = true
)]
pub struct Arguments {
    /// A command for runs that were kept.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The run.
    #[command(flatten)]
    pub run: Run,
}

/// Commands for runs that were kept.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the rows that changed beyond the noise between two runs that --json kept.
    Compare(Compare),
    /// Make one page of runs that --json kept (`tenure report` does the same).
    Report(Report),
}

/// A run.
#[derive(Debug, Args)]
pub struct Run {
    /// The benchmarks to run [default: all].
    pub names: Vec<String>,
    /// Run at small sizes and with few rounds, in a minute in all.
    #[arg(long)]
    pub quick: bool,
    /// End within this time (90s, 15m, 1h): smaller sizes, and as many rounds as fit. `none`: every
    /// round at full size [default: 1m with --quick, otherwise 15m for all benchmarks, none for named
    /// ones].
    #[arg(long, value_name = "TIME", value_parser = limit)]
    pub within: Option<Limit>,
    /// Also write a page with all tables and charts. It needs no network and has no scripts.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Also write every sample, the machine and the peers' versions to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measured rounds of each comparison [default: each benchmark's own].
    #[arg(long, value_name = "N", value_parser = within("a number of rounds", 1u32.., "9"))]
    pub rounds: Option<u32>,
    /// Thread counts, separated by commas [default: each benchmark's own].
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = within("a number of threads", 1usize.., "1,4"))]
    pub threads: Vec<usize>,
    /// Run only comparisons whose title contains this.
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Size of the memory for lock-on-fault [default: 5G], populate [default: 512M] and unmap [default:
    /// 1G and 4G].
    #[arg(long, value_name = "SIZE", value_parser = size(4096, "4K"))]
    pub size: Option<u64>,
    /// Directory for files on a disk [default: /var/tmp].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// A trace for hit-ratio, beside the loads that it generates: ARC's .lis, libCacheSim's .csv or
    /// oracleGeneral; each may be compressed (.zst). You may give the option several times.
    #[arg(long = "trace", value_name = "FILE", num_args = 1..)]
    pub traces: Vec<PathBuf>,
    /// The Python interpreter for `programs`. It may be that of a virtual environment with numpy, pandas,
    /// pyarrow and Pillow [default: TENURE_BENCH_PYTHON, or else python3].
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
    /// List the benchmarks and stop.
    #[arg(long)]
    pub list: bool,
}

const COMPARE_NOTES: &str = "\
A row has changed if the 99 % interval of the ratio of its times lies beyond --threshold, and \
still does when it is divided by the ratio of the other programs in the same table: a loss that \
they share is the machine's. The interval is that of the Mann-Whitney test (Hodges and Lehmann): \
it assumes no distribution of times. It needs 5 rounds on both sides. With 2 to 4 rounds all of \
one side must differ from all of the other by more than 25 %, with one round by more than 50 %.

Examples:
  tenure bench cache --rounds 9 --json before.json
  tenure bench cache --rounds 9 --json after.json
  tenure bench compare before.json after.json

Exit codes: 0 compared, 1 failure, or with --fail-on-loss rows of tenure that lose beyond the \
noise, 2 wrong usage.";

/// Two runs.
#[derive(Debug, Args)]
#[command(after_help = COMPARE_NOTES)]
pub struct Compare {
    /// The run before.
    #[arg(value_name = "A")]
    pub before: PathBuf,
    /// The run after.
    #[arg(value_name = "B")]
    pub after: PathBuf,
    /// Changes up to this many percent do not count.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    pub threshold: f64,
    /// Exit with 1 if a row of tenure became worse beyond the noise.
    #[arg(long)]
    pub fail_on_loss: bool,
    /// Print JSON: every row with its medians, ratio, interval and verdict.
    #[arg(long)]
    pub json: bool,
    /// Also print the rows that did not change.
    #[arg(long)]
    pub all: bool,
}

const REPORT_NOTES: &str = "\
Examples:
  tenure bench cache --json cache.json
  tenure report cache.json --html cache.html
  tenure report monday.json tuesday.json > both.html

Exit codes: 0 success, 1 failure, 2 wrong usage.";

/// A page.
#[derive(Debug, Args)]
#[command(after_help = REPORT_NOTES)]
pub struct Report {
    /// The runs: files that `tenure bench --json` wrote.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Where to write the page [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// The time for a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// As long as it takes.
    None,
    /// So long.
    Within(Duration),
}

fn limit(text: &str) -> Result<Limit, &'static str> {
    const WHY: &str =
        "expected a number from 1 to 4294967295 with s, m or h, as in 90s, 15m or 1h; or none";
    if text == "none" {
        return Ok(Limit::None);
    }
    let seconds = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        _ => return Err(WHY),
    };
    let number: u32 = text[..text.len() - 1].parse().map_err(|_| WHY)?;
    match number {
        0 => Err(WHY),
        number => Ok(Limit::Within(Duration::from_secs(u64::from(number) * seconds))),
    }
}

fn percent(text: &str) -> Result<f64, &'static str> {
    let known = text.trim_end_matches('%').trim().parse().ok();
    known
        .filter(|percent| (0.0..1000.0).contains(percent))
        .ok_or("expected a number of percent from 0 to below 1000, as in 2.5")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn names_and_commands_are_told_apart() {
        let parse = |words: &[&str]| Arguments::try_parse_from([&["tenure-bench"], words].concat());
        let run = parse(&["cache", "unmap", "--quick"]).unwrap();
        assert!(run.command.is_none() && run.run.quick);
        assert_eq!(run.run.names, ["cache", "unmap"]);
        let compare = parse(&["compare", "a.json", "b.json", "--threshold", "2.5%"]).unwrap();
        assert!(matches!(compare.command, Some(Command::Compare(c)) if c.threshold == 2.5));
        let report = parse(&["report", "a.json", "--html", "a.html"]).unwrap();
        assert!(matches!(report.command, Some(Command::Report(r)) if r.runs.len() == 1));
        assert!(parse(&["report"]).is_err());
        // After a flag of a run every word is the name of a bench. No bench has this name, which
        // ends the run.
        let run = parse(&["--quick", "compare", "a", "b"]).unwrap();
        assert!(run.command.is_none() && run.run.names == ["compare", "a", "b"]);
    }

    #[test]
    fn times_have_units() {
        let within = |seconds| Ok(Limit::Within(Duration::from_secs(seconds)));
        assert_eq!(limit("90s"), within(90));
        assert_eq!(limit("15m"), within(900));
        assert_eq!(limit("1h"), within(3600));
        assert_eq!(limit("none"), Ok(Limit::None));
        for wrong in ["", "15", "0m", "m", "-1s", "1.5h", "15ä"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }
}
