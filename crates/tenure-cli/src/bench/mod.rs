//! `tenure bench` and `tenure report`: start the program `tenure-bench`, which has the benchmarks
//! and the caches that they compare.

use crate::failure::CannotRun;
use clap::{Command as Grammar, CommandFactory};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use tenure_command::call::failed_at;

const PROGRAM: &str = "tenure-bench";

/// Measure tenure against the alternatives on this machine (needs the program tenure-bench).
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The arguments of tenure-bench: names of benchmarks, --list, --quick, --help.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Make one page from the JSON files of benchmark runs (needs the program tenure-bench).
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct ReportArgs {
    /// The arguments of tenure-bench report: files, --html FILE, --help.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// The grammar of `tenure` with that of tenure-bench in it: for manual pages and completions.
/// Arguments that are parsed here are passed on unchanged, because another version of tenure-bench
/// may have more.
pub fn documented(tenure: Grammar) -> Grammar {
    let bench = tenure_command::bench::Arguments::command()
        .name("bench")
        .bin_name("tenure bench")
        .version(None);
    let report = bench.find_subcommand("report").cloned().unwrap_or_else(|| Grammar::new("report"));
    tenure.mut_subcommand("bench", |_| bench).mut_subcommand("report", |_| report)
}

/// The program beside this one, or else the first in PATH.
fn program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.with_file_name(PROGRAM);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    std::iter::once(beside)
        .chain(others.map(|directory| directory.join(PROGRAM)))
        .find(|program| program.is_file())
}

/// Replaces this process by the program; returns only if that fails.
pub fn run(args: &Args) -> anyhow::Result<()> {
    start(&args.arguments)
}

/// Replaces this process by the program for a page; returns only if that fails.
pub fn report(args: &ReportArgs) -> anyhow::Result<()> {
    let arguments: Vec<OsString> =
        std::iter::once("report".into()).chain(args.arguments.iter().cloned()).collect();
    start(&arguments)
}

fn start(arguments: &[OsString]) -> anyhow::Result<()> {
    let Some(program) = program() else {
        return Err(CannotRun {
            code: 127,
            why: format!(
                "there is no {PROGRAM} beside this program or in PATH; in a checkout, build it (cargo \
                 build --release -p tenure-bench) or install it (cargo install --path \
                 crates/tenure-bench)"
            ),
        }
        .into());
    };
    let mut command = Command::new(&program);
    command.args(arguments);
    if let Ok(own) = std::env::current_exe() {
        command.env(tenure_launch::variable::STARTED_BY, own);
    }
    let error = command.exec();
    Err(CannotRun { code: 126, why: failed_at(&program, "exec", error).to_string() }.into())
}
