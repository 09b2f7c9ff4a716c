//! The command line's grammar.

use crate::failure::WrongUsage;
use crate::{
    bench, completions, demo, doctor, explain, inspect, lock, man, metrics, populate, run, top,
};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsStr;
use tenure_command::{number, terminal, usage};

const EXAMPLES: &str = "\
Examples:
  tenure doctor                      the features that this kernel allows
  tenure demo                        a cache under real memory pressure
  tenure demo --limit 1G --dir /srv  the same, larger, on your own files
  tenure populate /srv/model.bin     read a file into the page cache
  tenure lock --follow /srv/www      lock files there until Ctrl-C
  tenure run -- ./server             large blocks from the pool
  tenure inspect 1234                the memory of a process, by mapping
  tenure explain lock 5G             whether you may lock 5 GiB
  tenure bench --list                the list of benchmarks
  tenure bench cache --quick         one of them, in a few seconds
  tenure bench --html bench.html     all of them in 15 minutes, as a page

Sizes are bytes, or K, M, G and T (powers of 1024), or KB, MB, GB and TB (powers of 1000).

Exit codes: 0 success, 1 failure, 2 wrong usage.";

/// Control how long memory pages stay: caches that the kernel can shrink, and large memory without stalls.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(color = terminal::colours())]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Try the features of this kernel, and print a remedy for each that is missing.
    Doctor(doctor::Args),
    /// Serve real files from several caches in turn, beside a neighbour whose need for memory rises and falls.
    Demo(demo::Args),
    /// Read the missing parts of files into the page cache, in parallel.
    Populate(populate::Args),
    /// Lock files in memory until interrupted, and follow them when they change.
    Lock(lock::Args),
    /// Run a program unchanged, with large blocks from the pool and large unmaps without stalls.
    Run(run::Args),
    /// Print whether a process may lock or populate SIZE bytes, and the remedy if not.
    Explain(explain::Args),
    /// Print the memory of a process by mapping, with tenure's figures.
    Inspect(inspect::Args),
    /// Show programs that use tenure while they run.
    Top(top::Args),
    /// Print figures of programs that use tenure as OpenMetrics text.
    Metrics(metrics::Args),
    /// Measure tenure against the alternatives on this machine (needs the program tenure-bench).
    Bench(bench::Args),
    /// Make one page from the JSON files of benchmark runs (needs the program tenure-bench).
    Report(bench::ReportArgs),
    /// Print the completions of this command for a shell.
    Completions(completions::Args),
    /// Write the manual pages of this command into a directory, for a package.
    #[command(name = man::NAME)]
    ManPages(man::Args),
    /// The process that the doctor watches.
    #[command(name = doctor::trial::NAME, hide = true)]
    DoctorTrial,
    /// The process that serves requests in the demo.
    #[command(name = demo::WORKER, hide = true)]
    Worker,
    /// The process beside it that needs memory.
    #[command(name = demo::NEIGHBOUR, hide = true)]
    Neighbour,
}

/// Parses the arguments and runs the command.
pub fn run() -> anyhow::Result<()> {
    forget_empty_variables();
    let command = run_alone().unwrap_or_else(|| parse().command);
    let done = carry_out(command);
    match done.as_ref().map_err(|error| error.downcast_ref()) {
        Err(Some(WrongUsage(message))) => wrong_usage(message),
        _ => done,
    }
}

/// Parses the arguments, or ends the process with what is wrong.
fn parse() -> Cli {
    let grammar = Cli::command();
    let parsed = number::parse(&grammar).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| usage::exit(&name_the_variable(error, &grammar), "tenure"))
}

/// A wrong value that comes from an environment variable: the message names the variable, and not
/// the option, which nobody has given.
fn name_the_variable(mut error: clap::Error, grammar: &clap::Command) -> clap::Error {
    let is_text =
        |variable: &&OsStr| std::env::var_os(variable).is_none_or(|v| v.to_str().is_some());
    let mut args = grammar.get_subcommands().flat_map(clap::Command::get_arguments);
    if error.kind() == ErrorKind::InvalidUtf8 {
        let variable = args.filter_map(clap::Arg::get_env).find(|variable| !is_text(variable));
        return match variable {
            Some(variable) => grammar.clone().error(
                ErrorKind::InvalidUtf8,
                format!("{} in the environment is no text (UTF-8)", variable.to_string_lossy()),
            ),
            None => error,
        };
    }
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    // As in `--large[=<SIZE>]` or `--delay <SECONDS>`.
    let option = shown.split(['=', '[', ' ']).next().unwrap_or_default();
    let arg = args.find(|arg| arg.get_env().is_some() && arg.get_long() == option.get(2..));
    let variable = arg.and_then(clap::Arg::get_env).and_then(OsStr::to_str);
    let source = variable.map(|variable| run::source(option, variable));
    if let Some(variable) = source.filter(|source| source != option) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    error
}

/// The command `run`, by its own grammar alone: to make that of all commands takes 0.2 ms, which every program would pay
/// that is run so. `None`: another command, or something is wrong, which the whole grammar says.
fn run_alone() -> Option<Command> {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.peek()? != "run" {
        return None;
    }
    let grammar = run::Args::augment_args(clap::Command::new("run"));
    let matches = grammar.try_get_matches_from(arguments).ok()?;
    run::Args::from_arg_matches(&matches).ok().map(Command::Run)
}

fn carry_out(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Doctor(args) => doctor::run(&args),
        Command::DoctorTrial => doctor::trial::work(),
        Command::Demo(args) => demo::run(&args),
        Command::Populate(args) => populate::run(&args),
        Command::Lock(args) => lock::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Report(args) => bench::report(&args),
        Command::Completions(args) => completions::run(&args, bench::documented(Cli::command())),
        Command::ManPages(args) => man::run(&args, bench::documented(Cli::command())),
        Command::Worker => demo::work(),
        Command::Neighbour => demo::neighbour(),
    }
}

/// An empty variable of tenure's counts as unset, as it does for the library.
#[allow(unsafe_code, reason = "changes the environment while there is one thread")]
fn forget_empty_variables() {
    for (name, value) in std::env::vars_os() {
        if value.is_empty() && name.as_encoded_bytes().starts_with(b"TENURE_") {
            // SAFETY: this is the program's first action: no other thread reads the environment.
            unsafe { std::env::remove_var(name) };
        }
    }
}

/// Ends the process the way clap does for wrong usage: the message, the usage, exit code 2.
fn wrong_usage(message: &str) -> ! {
    let mut grammar = Cli::command();
    grammar.build();
    let named = std::env::args_os().nth(1).and_then(|name| grammar.find_subcommand(name).cloned());
    named.unwrap_or(grammar).error(ErrorKind::ValueValidation, message).exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    /// A terminal's usual width: lines that were laid out must not be broken there.
    #[test]
    fn examples_fit_80_columns() {
        fn check(command: &clap::Command) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn hidden_commands_stay_out_of_the_help() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("tenure demo"), "{help}");
        assert!(!help.contains(demo::WORKER) && !help.contains(demo::NEIGHBOUR), "{help}");
    }
}
