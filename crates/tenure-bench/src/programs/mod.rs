//! Real programs, as they are installed: plain, under `tenure run`, with other allocators, and with
//! settings that give freed memory back at once.
//!
//! Each sample is a run of the program. Beside its time the table has the processor time, the page
//! faults and the peak of resident memory, of it and of the processes that it has waited for. A
//! program must have equal output in each run. Nothing is downloaded: a program that is not
//! installed is skipped, with its reason.

mod catalog;
mod measure;
pub(crate) mod place;
mod program;
mod servers;
pub mod starter;

use crate::harness::{Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::lazy_free::contestant::{self, Programs, Setup};
use crate::Options;
use catalog::{Entry, CATALOG};
use measure::Running;
use place::Place;
use program::Program;
use starter::{Usage, FAULTS, PEAK, PROCESSOR};
use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PLAIN: &str = "plain";

/// The largest multiple of the plain program's time for a row of tenure's, by the clock and of
/// processors.
const TIME: f64 = 1.02;

/// The largest multiple of its memory.
const MEMORY: f64 = 1.1;

/// No server takes so long to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if a program's output differs from that of the plain one; otherwise an error of
/// the report, a program or the system.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let python = options.python.clone();
    let python = python.or_else(|| std::env::var_os("TENURE_BENCH_PYTHON").map(PathBuf::from));
    for entry in CATALOG.iter().filter(|entry| options.wants(entry.title)) {
        let place = Place::new(python.clone())?;
        match (entry.ready)(&place, options.quick) {
            Ok(program) => compare(options, report, entry, &program, &place)?,
            Err(why) => report.note(format!("{}: skipped: {why}", entry.title))?,
        }
    }
    Ok(())
}

/// The ways to run a program.
fn setups() -> Vec<Setup> {
    let other = |allocator| Setup::plain(allocator, Role::Reference);
    vec![
        Setup { name: PLAIN.into(), ..other(contestant::GLIBC) },
        // The effect of `tenure run` without options.
        Setup::ours("tenure", contestant::GLIBC, &["--large=pool", "--unmap=retire"]),
        other(contestant::JEMALLOC),
        other(contestant::MIMALLOC),
        other(contestant::GLIBC_EAGER),
        other(contestant::JEMALLOC_EAGER),
        other(contestant::MIMALLOC_EAGER),
    ]
}

fn compare(
    options: &Options,
    report: &mut Report<'_>,
    entry: &Entry,
    program: &Program,
    place: &Place,
) -> io::Result<()> {
    let programs = &Programs::new(options);
    let expected = &RefCell::new(None);
    let mut comparison = Comparison::new(entry.title, Unit::Milliseconds).baseline(PLAIN);
    let short = [PLAIN, "tenure", contestant::GLIBC_EAGER.name];
    let is_wanted = |setup: &Setup| !options.is_short() || short.contains(&&setup.name[..]);
    for setup in setups().into_iter().filter(is_wanted) {
        let (name, role) = (setup.name.clone(), setup.role);
        let measure = move || sample(programs, &setup, program, place, expected);
        let mut contestant = Contestant::new(name, role, measure);
        if role == Role::Ours {
            contestant = contestant
                .goal(Goal::TimesOf(PLAIN, TIME))
                .goal(Goal::BesideTimesOf(PROCESSOR, PLAIN, TIME))
                .goal(Goal::BesideTimesOf(PEAK, PLAIN, MEMORY));
        }
        comparison = comparison.with(contestant);
    }
    report.compare(comparison, 7)
}

/// One run; its output must be that of the first one.
fn sample(
    programs: &Programs<'_>,
    setup: &Setup,
    program: &Program,
    place: &Place,
    expected: &RefCell<Option<Vec<u8>>>,
) -> io::Result<Sample> {
    let mut command = programs.started(setup, &program.words)?;
    command.current_dir(place.dir()).envs(program.environment.iter().map(|(k, v)| (k, v)));
    if let Some(user) = program.user {
        command.uid(user).gid(user);
    }
    let mut running = Running::start(&mut command, program.input.as_deref())
        .map_err(|error| not_for_all(error, &command))?;
    let served = serve(&mut running, &program.clients)?;
    let ended = running.finish()?;
    let usage = Usage::of(&ended.complaints)?;
    let mut expected = expected.borrow_mut();
    let first = expected.get_or_insert_with(|| ended.output.clone());
    if !program.varies && *first != ended.output {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it printed something else"));
    }
    Ok(usage.sample(served.map_or(usage.elapsed_ms, |time| time.as_secs_f64() * 1e3)))
}

/// A program of another user's cannot be started from a directory that is root's alone.
fn not_for_all(error: io::Error, command: &Command) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => contestant::unsupported(&format!(
            "its user may not execute {}: install it where all may",
            command.get_program().to_string_lossy()
        )),
        _ => error,
    }
}

/// Runs a server's clients: one that says when it is ready, those whose time counts, and one that
/// ends it. `None`: the program is no server, and its own time counts.
fn serve(running: &mut Running, clients: &[Vec<OsString>]) -> io::Result<Option<Duration>> {
    match clients {
        [] => Ok(None),
        [_] => Err(io::Error::other("a server needs a command that ends it")),
        [ready, load @ .., end] => {
            await_server(running, ready)?;
            let start = Instant::now();
            load.iter().try_for_each(|client| ask(client))?;
            let elapsed = start.elapsed();
            ask(end).map(|()| Some(elapsed))
        }
    }
}

/// Runs a client with as little output as possible.
fn ask(words: &[OsString]) -> io::Result<()> {
    let mut client = Command::new(&words[0]);
    client.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = client.status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{}: {status}", words[0].to_string_lossy()))),
    }
}

fn await_server(server: &mut Running, ready: &[OsString]) -> io::Result<()> {
    let start = Instant::now();
    while ask(ready).is_err() {
        server.is_alive()?;
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other("the server does not respond"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The columns beside the time, in their order.
pub const COLUMNS: [&str; 3] = [PROCESSOR, FAULTS, PEAK];
