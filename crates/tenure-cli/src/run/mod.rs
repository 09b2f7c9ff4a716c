//! `tenure run`: runs an unchanged program with tenure's library preloaded.

mod descriptors;
mod library;
mod pipe;
mod program;

use crate::failure::CannotRun;
use crate::name::shown;
use anyhow::Context;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tenure_command::call::failed;
use tenure_launch::{self as launch, variable};

pub use library::find as find_library;

const HELP: &str = "\
Without --large, --mmap, --unmap, --populate and --lock the command sets --large and --unmap; with \
one of them it sets only those that you name. Each option has an environment variable \
with the same effect, for programs that have the library in LD_PRELOAD; `off` switches an option \
off. TENURE_DISABLE=1 switches everything off. Sizes are bytes, or K, M, G, T (powers of 1024), or \
KB, MB, GB, TB (powers of 1000).

The program's output, exit status and contents of memory stay the same. Calls that leave a lasting \
state on memory (mprotect, mlock, mbind, MADV_DONTDUMP and the like) take that memory out of the \
pool.

tenure does not see raw system calls (Go's runtime), a malloc that is linked into the program \
itself, or mappings of the C library for its own use. Another allocator (jemalloc, mimalloc, \
tcmalloc) has calls of its own that free blocks, so it still serves all of malloc; --mmap serves \
its mmap. --report prints how much tenure has served.

tenure refuses a program that is linked statically, gains rights when it starts (setuid, file \
capabilities), is built with gcc's address, leak or thread sanitizer, or is of another \
architecture or C library. It cannot refuse a child: one that is built with such a sanitizer \
ends at its start. Start it with LD_PRELOAD= (empty), or use --children=no.

Do not run a program that frees memory with the free of another allocator (a library loaded with \
RTLD_DEEPBIND, or dlsym in dlopen(\"libc.so.6\")): it ends in SIGSEGV. Once the program has freed \
large memory, the process has threads of tenure: Python 3.12 and later warn at os.fork(), and a \
raw system call that only a process with one thread may make fails (setns of a user namespace \
with EINVAL). \
RLIMIT_DATA counts the sizes of the pool's runs.

Examples:
  tenure run -- ./server
  tenure run --large=1M --report -- python3 train.py
  tenure run --lock=on-fault -- ./latency-critical
      mlockall in the program's own process
  tenure run --report=/tmp/tenure.txt -q -- make -j8
      every process of a build appends its report
  LD_PRELOAD=libjemalloc.so.2 tenure run --mmap -- ./server
      the pool beneath another allocator

Exit codes: the program's; 125 tenure itself failed or refused, 126 the program cannot be \
executed, 127 there is no such program, 2 wrong usage.";

/// Run a program unchanged, with large blocks from the pool and large unmaps without stalls.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Serve malloc from SIZE on (and calloc, realloc, new, ...) from the pool: a freed block is reused without
    /// page faults, and the kernel may take it within a second [SIZE: 128K].
    #[arg(long, env = variable::LARGE, value_name = "SIZE", num_args = 0..=1,
          require_equals = true, default_missing_value = "pool", value_parser = large)]
    large: Option<String>,
    /// Serve private anonymous mmap from SIZE on from the pool, too, as other allocators use it, until the
    /// program uses userfaultfd. Pages of such a mapping may be in memory before their first use (mincore,
    /// pagemap) [SIZE: 1M].
    #[arg(long, env = variable::MMAP, value_name = "SIZE", num_args = 0..=1,
          require_equals = true, default_missing_value = "pool", value_parser = mmap)]
    mmap: Option<String>,
    /// With --mmap: an access to unmapped memory raises SIGSEGV, as without the pool (closed), or the memory stays
    /// accessible until another owner has it (open) [default: closed]. Closing and opening takes 7 us at 64K, 26 us at 1M,
    /// 600 us at 16M (100 us with huge pages); a munmap costs about as much as the kernel's.
    #[arg(long, env = variable::UNMAPPED, value_name = "closed|open", require_equals = true,
          value_parser = unmapped)]
    unmapped: Option<String>,
    /// Retire munmap from SIZE on: it returns at once, and the worker frees the memory without stalling other
    /// threads. This holds also for memory that a MAP_FIXED mapping or a shrinking mremap replaces [SIZE: 32M].
    #[arg(long, env = variable::UNMAP, value_name = "SIZE", num_args = 0..=1,
          require_equals = true, default_missing_value = "retire", value_parser = unmap)]
    unmap: Option<String>,
    /// Populate by several threads when the program maps 32M or more with MAP_POPULATE [THREADS: as many as
    /// are useful].
    #[arg(long, env = variable::POPULATE, value_name = "THREADS", num_args = 0..=1,
          require_equals = true, default_missing_value = "auto", value_parser = populate)]
    populate: Option<String>,
    /// Lock the program's memory, as mlockall(2) does: each page from its first touch on (on-fault), or all. It
    /// excludes the pool, which gives memory back.
    #[arg(long, env = variable::LOCK, value_name = "on-fault|all", require_equals = true,
          value_parser = lock)]
    lock: Option<String>,
    /// Print a report at exit, on standard error or in FILE. The command first empties FILE (but not if
    /// TENURE_REPORT names it, as in a run within a run). The report comes at return from main, exit, _exit and
    /// quick_exit, not after exec or a signal. It includes the forked children that ended before the program.
    /// Children that end later, and other programs, print their own report if tenure has served them.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    report: Option<OsString>,
    /// Print a report at each signal, to the place of --report, and at exit only with --report. A handler of the
    /// program's own replaces it. HUP, USR1, USR2, WINCH, RTMIN or RTMIN+N, or its number.
    #[arg(long, env = variable::REPORT_SIGNAL, value_name = "SIGNAL", require_equals = true,
          value_parser = report_signal)]
    report_signal: Option<String>,
    /// Run the programs that the program starts with tenure (inherit), or without it (no).
    #[arg(long, env = variable::CHILDREN, value_name = "inherit|no", require_equals = true,
          value_parser = children)]
    children: Option<String>,
    /// Do not print the active options at the start.
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true,
          value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

fn checked<T>(text: &str, value: Result<T, launch::Wrong>) -> Result<String, String> {
    value.map(|_| text.to_owned()).map_err(|wrong| wrong.to_string())
}

fn large(text: &str) -> Result<String, String> {
    checked(text, launch::pool(text.as_bytes(), launch::LARGE_DEFAULT))
}

fn mmap(text: &str) -> Result<String, String> {
    checked(text, launch::pool(text.as_bytes(), launch::MMAP_DEFAULT))
}

fn unmapped(text: &str) -> Result<String, String> {
    checked(text, launch::unmapped(text.as_bytes()))
}

fn unmap(text: &str) -> Result<String, String> {
    checked(text, launch::retire(text.as_bytes()))
}

fn populate(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("expected a number of threads from 1 to 1024, auto or off".into());
    }
    checked(text, launch::threads(text.as_bytes()))
}

fn lock(text: &str) -> Result<String, String> {
    checked(text, launch::lock(text.as_bytes()))
}

fn report_signal(text: &str) -> Result<String, String> {
    checked(text, launch::report_signal(text.as_bytes()))
}

fn children(text: &str) -> Result<String, String> {
    checked(text, launch::children(text.as_bytes()))
}

/// Runs the command; returns only if that fails.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (name, arguments) = args.program.split_first().context("no program was named")?;
    let mut command = Command::new(name);
    command.args(arguments);
    let disabled = std::env::var_os(variable::DISABLE);
    if !disabled.is_some_and(|value| launch::is_on(value.as_bytes())) {
        let program = program::find(name)?;
        program::check(&program)?;
        let library = library::find().map_err(CannotRun::refused)?;
        command.env("LD_PRELOAD", in_front(&library)?);
        for (variable, value) in settings(args)? {
            command.env(variable, value);
        }
    }
    pipe::inherit(&mut command);
    descriptors::inherit(&mut command);
    let error = command.exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Err(CannotRun { code, why: format!("{}: {}", shown(name), failed("exec", error)) }.into())
}

/// Puts the library before the present contents of LD_PRELOAD.
fn in_front(library: &std::path::Path) -> Result<OsString, CannotRun> {
    if library.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(CannotRun::refused(format!(
            "the loader takes no library whose path has a space or a colon: {}; put it elsewhere and name \
             it in TENURE_PRELOAD",
            library.display()
        )));
    }
    let mut list = library.as_os_str().to_owned();
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let others = before.as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    for other in
        others.filter(|other| !other.is_empty() && *other != library.as_os_str().as_bytes())
    {
        list.push(":");
        list.push(OsStr::from_bytes(other));
    }
    Ok(list)
}

/// Returns where the option's value comes from: the option itself, or else its variable.
pub fn source(option: &str, variable: &str) -> String {
    // The first word without a hyphen is the program, and `--` comes before it.
    let is_option = |word: &OsString| word.as_bytes().starts_with(b"-") && word != "--";
    let name = |word: OsString| {
        word.as_bytes().split(|byte| *byte == b'=').next() == Some(option.as_bytes())
    };
    match std::env::args_os().skip(2).take_while(is_option).any(name) {
        true => option.to_owned(),
        false => format!("{variable} in the environment"),
    }
}

/// The environment variables with the library's settings.
fn settings(args: &Args) -> Result<Vec<(&'static str, OsString)>, CannotRun> {
    let mechanisms = [
        (variable::LARGE, &args.large),
        (variable::MMAP, &args.mmap),
        (variable::UNMAP, &args.unmap),
        (variable::POPULATE, &args.populate),
        (variable::LOCK, &args.lock),
    ];
    let on = |value: &Option<String>| value.as_deref().is_some_and(|value| value != "off");
    if on(&args.lock) && (on(&args.large) || on(&args.mmap)) {
        let pool = match on(&args.large) {
            true => source("--large", variable::LARGE),
            false => source("--mmap", variable::MMAP),
        };
        let lock = source("--lock", variable::LOCK);
        return Err(CannotRun::refused(format!(
            "{lock} keeps all memory, and the pool of {pool} gives memory back: choose one; \
             --large=off, --mmap=off and --lock=off switch the other off"
        )));
    }
    if args.unmapped.is_some() && !on(&args.mmap) {
        let unmapped = source("--unmapped", variable::UNMAPPED);
        // --mmap=off may be said against a variable of an outer run, which has both.
        if args.mmap.is_none() || unmapped == "--unmapped" {
            return Err(CannotRun::refused(format!(
                "{unmapped} says what happens to memory of --mmap: give --mmap, too"
            )));
        }
    }
    let mut settings: Vec<(&'static str, OsString)> = Vec::new();
    for (variable, value) in mechanisms {
        settings.extend(value.as_ref().map(|value| (variable, value.into())));
    }
    if settings.is_empty() {
        settings.push((variable::LARGE, "pool".into()));
        settings.push((variable::UNMAP, "retire".into()));
    }
    settings.extend(args.unmapped.as_ref().map(|value| (variable::UNMAPPED, value.into())));
    settings.extend(args.children.as_ref().map(|value| (variable::CHILDREN, value.into())));
    settings.extend(args.report_signal.as_ref().map(|s| (variable::REPORT_SIGNAL, s.into())));
    if let Some(report) = &args.report {
        settings.push((variable::REPORT, report_file(report, "--report", true)?));
    } else if let Some(report) = std::env::var_os(variable::REPORT) {
        settings.push((variable::REPORT, report_file(&report, variable::REPORT, false)?));
    }
    if args.quiet {
        settings.push((variable::QUIET, "1".into()));
    }
    // exec keeps the process number: this process is about to become the program.
    settings.push((variable::LAUNCHED, std::process::id().to_string().into()));
    Ok(settings)
}

/// The report's file under a name that stays valid if the program changes its directory. It is
/// emptied for a new run, or left as it is if an outer run's report may be in it.
fn report_file(report: &OsStr, from: &str, emptied: bool) -> Result<OsString, CannotRun> {
    if report == "-" {
        return Ok(report.to_owned());
    }
    if report.is_empty() {
        return Err(CannotRun::refused(format!("{from}: name a file, or - for standard error")));
    }
    let wrong = |call: &'static str| {
        move |error| {
            CannotRun::refused(format!("{from}={}: {}", shown(report), failed(call, error)))
        }
    };
    let path = std::path::absolute(report).map_err(wrong("getcwd"))?;
    let mut options = std::fs::OpenOptions::new();
    options.create(true).write(true).truncate(emptied).open(&path).map_err(wrong("open"))?;
    Ok(path.into())
}
