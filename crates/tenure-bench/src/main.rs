//! `tenure bench` and `tenure report`: the benchmarks are a program of their own, which `tenure`
//! starts.

#![forbid(unsafe_code)]

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;
use tenure_bench::programs::starter;
use tenure_bench::{change, load, page};
use tenure_command::bench::{self, Arguments, Command, Limit, Run};
use tenure_command::call::failed_at;
use tenure_command::terminal;

/// The status that a shell reports for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// This program, by its path, so that processes have its name; by the link, if the file has been
/// replaced since.
fn this_program() -> PathBuf {
    std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| "/proc/self/exe".into())
}

/// The command `tenure`, whose `run` is measured: the one that started this program, or else the
/// one beside it.
fn launcher() -> Option<PathBuf> {
    let starter = std::env::var_os(tenure_launch::variable::STARTED_BY).map(PathBuf::from);
    let beside = || Some(this_program().parent()?.join("tenure"));
    starter.or_else(beside).filter(|path| path.is_file())
}

/// Parses the arguments, or ends the process with what is wrong.
fn parse() -> Arguments {
    let parsed = tenure_command::number::parse(&Arguments::command());
    let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| tenure_command::usage::exit(&error, "tenure bench"))
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next().as_deref().and_then(OsStr::to_str) {
        Some(load::COMMAND) => {
            let load = words.next().unwrap_or_default();
            return load::main(&load.to_string_lossy()).into();
        }
        Some(starter::COMMAND) => return starter::main(words).into(),
        _ => {}
    }
    let arguments = parse();
    let done = match &arguments.command {
        None => run(&arguments.run),
        Some(Command::Compare(args)) => compare(args),
        Some(Command::Report(args)) => report(args).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => INTERRUPTED.into(),
        // A reader that closes the pipe early is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error)
            if error.raw_os_error().is_some() && error.kind() == io::ErrorKind::StorageFull =>
        {
            eprintln!("tenure bench: standard output cannot be written: {error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tenure bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Run) -> io::Result<ExitCode> {
    if args.list {
        let mut out = io::stdout().lock();
        for (name, what) in tenure_bench::list() {
            writeln!(out, "{name:<16}{what}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let known: Vec<&str> = tenure_bench::list().iter().map(|(name, _)| *name).collect();
    if let Some(name) = args.names.iter().find(|name| !known.contains(&name.as_str())) {
        let why = format!("there is no benchmark \"{name}\"; there are: {}", known.join(", "));
        Arguments::command().error(ErrorKind::ValueValidation, why).exit()
    }
    if let Some(dir) = args.dir.as_ref().filter(|dir| !dir.is_dir()) {
        let why = format!("--dir: there is no directory {}", dir.display());
        Arguments::command().error(ErrorKind::ValueValidation, why).exit()
    }
    let options = tenure_bench::Options {
        quick: args.quick,
        json: args.json.clone(),
        html: args.html.clone(),
        within: within(args),
        progress: !args.quiet,
        width: terminal::width(),
        interrupted: Some(catch_signals()?),
        rounds: args.rounds,
        skip_warm_up: false,
        threads: args.threads.clone(),
        filter: args.filter.clone(),
        size: args.size,
        bench: Some(this_program()),
        launcher: launcher(),
        dir: args.dir.clone(),
        traces: args.traces.clone(),
        python: args.python.clone(),
    };
    tenure_bench::run(&args.names, &options).map(|()| ExitCode::SUCCESS)
}

fn within(args: &Run) -> Option<Duration> {
    match args.within {
        Some(Limit::None) => None,
        Some(Limit::Within(time)) => Some(time),
        None if args.quick => Some(Duration::from_secs(60)),
        None if !args.names.is_empty() => None,
        None => Some(Duration::from_secs(15 * 60)),
    }
}

/// A flag that the first signal sets; the second signal ends the process by default.
fn catch_signals() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // It runs first, so that it sees the flag of the signal before.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

fn compare(args: &bench::Compare) -> io::Result<ExitCode> {
    let changes = change::between(&args.before, &args.after, args.threshold / 100.0)?;
    let mut out = io::stdout().lock();
    match args.json {
        true => changes.write_json(&mut out)?,
        false => out.write_all(changes.text(args.all).as_bytes())?,
    }
    out.flush()?;
    Ok(match args.fail_on_loss && changes.losses() > 0 {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn report(args: &bench::Report) -> io::Result<()> {
    let text = page::of_files(&args.runs)?;
    match &args.html {
        Some(path) => std::fs::write(path, text).map_err(|error| failed_at(path, "open", error)),
        None => io::stdout().lock().write_all(text.as_bytes()),
    }
}
