//! `tenure run`: a program as it is, with tenure's library in front of it.

mod descriptors;
mod library;
mod pipe;
mod program;

use crate::name::shown;
use anyhow::Context;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tenure_launch::{self as launch, variable};

pub use library::find as find_library;

const HELP: &str = "\
Without an option it is --large --unmap. Each option has an environment variable, which does the same
without this command where the library is in LD_PRELOAD already; `off` switches one off. TENURE_DISABLE=1
switches everything off. Sizes are bytes, or K, M, G (powers of 1024).

What the program does is as it was: its output, its exit status, its memory's contents. Calls that leave a
lasting state on memory (mprotect, mlock, mbind, MADV_DONTDUMP and the like) take that memory out of the pool.

Not seen: raw system calls (Go's runtime), a malloc linked into the program itself, and what the C library
maps for its own use. Another allocator (jemalloc, mimalloc, tcmalloc) serves all of malloc itself, for it has
calls of its own that take blocks back; --mmap serves its mmap. `--report` tells what was seen. A program cannot be run so that is linked statically,
gains rights when it starts (setuid, file capabilities), is built with gcc's address or leak sanitizer, or is
of another architecture or C library.

Not for programs that free by another free than they allocated with (a library loaded with RTLD_DEEPBIND, or
dlsym in dlopen(\"libc.so.6\")): they end in SIGSEGV. Once large memory was freed the process has threads of
tenure's: setns of a mount or user namespace fails with EINVAL, of a time namespace with EUSERS, and Python
3.12 and later warn at os.fork(). RLIMIT_DATA counts the sizes of the pool's runs.

Examples:
  tenure run -- ./server                             large blocks from the pool, large unmaps without stalls
  tenure run --large=pool:1M --report -- python3 train.py
  LD_PRELOAD=libjemalloc.so.2 tenure run --mmap -- ./server         the pool beneath another allocator
  tenure run --lock=on-fault -- ./latency-critical   mlockall in the program's own process
  tenure run --report=/tmp/tenure.txt -q -- make -j8  every process of a build appends its report

Exit codes: the program's; 125 tenure itself failed or refused, 126 the program cannot be executed,
127 there is no such program, 2 wrong usage.";

/// Run a program with large memory from the pool, large unmaps retired, memory locked or populated.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// malloc's requests from SIZE on (and calloc, realloc, new, ...) from the pool: reused warm, and the
    /// kernel's to take within a second of being freed [SIZE: 128K].
    #[arg(long, env = variable::LARGE, value_name = "pool[:SIZE]", num_args = 0..=1,
          require_equals = true, default_missing_value = "pool", value_parser = large)]
    large: Option<String>,
    /// Private anonymous mmap from SIZE on as well, as other allocators use it, until the program uses
    /// userfaultfd. Pages of such a mapping may be in memory before their first use (mincore, pagemap)
    /// [SIZE: 1M].
    #[arg(long, env = variable::MMAP, value_name = "pool[:SIZE]", num_args = 0..=1,
          require_equals = true, default_missing_value = "pool", value_parser = mmap)]
    mmap: Option<String>,
    /// With --mmap: whether what is unmapped may not be accessed (closed), as without the pool, or stays accessible
    /// until somebody else has it (open) [default: closed]. Closing and opening takes 7 us at 64K, 26 us at 1M,
    /// 600 us at 16M (100 us with huge pages); a munmap costs about as much as the kernel's.
    #[arg(long, env = variable::UNMAPPED, value_name = "closed|open", require_equals = true,
          value_parser = unmapped)]
    unmapped: Option<String>,
    /// munmap from SIZE on returns at once, and its memory follows without stalling other threads; what a
    /// MAP_FIXED mapping or a shrinking mremap replaces goes beforehand [SIZE: 32M].
    #[arg(long, env = variable::UNMAP, value_name = "retire[:SIZE]", num_args = 0..=1,
          require_equals = true, default_missing_value = "retire", value_parser = unmap)]
    unmap: Option<String>,
    /// MAP_POPULATE from 32M on by several threads [THREADS: as many as are useful].
    #[arg(long, env = variable::POPULATE, value_name = "THREADS", num_args = 0..=1,
          require_equals = true, default_missing_value = "auto", value_parser = populate)]
    populate: Option<String>,
    /// Lock the program's memory, as mlockall(2) would: each page once it is touched (on-fault), or all.
    /// Not with the pool, which is there to give memory back.
    #[arg(long, env = variable::LOCK, value_name = "on-fault|all", require_equals = true,
          value_parser = lock)]
    lock: Option<String>,
    /// Say at exit what was done and saved, on standard error or in FILE, which is emptied first (but not if
    /// TENURE_REPORT names it, as in a run within a run). Printed at return from main, exit, _exit and
    /// quick_exit; not after exec or a signal.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    report: Option<OsString>,
    /// Whether programs that the program starts are run so, too.
    #[arg(long, env = variable::CHILDREN, value_name = "inherit|no", require_equals = true,
          value_parser = children)]
    children: Option<String>,
    /// Do not say at the start what is engaged.
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
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

fn children(text: &str) -> Result<String, String> {
    checked(text, launch::children(text.as_bytes()))
}

/// A failure of the launcher's own, with the exit code that says so.
#[derive(Debug)]
pub struct CannotRun {
    /// 125: refused or failed; 126: not executable; 127: not found.
    pub code: u8,
    why: String,
}

impl CannotRun {
    fn refused(why: impl Into<String>) -> CannotRun {
        CannotRun { code: 125, why: why.into() }
    }
}

impl fmt::Display for CannotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for CannotRun {}

/// Runs the command; returns only if it cannot.
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
    Err(CannotRun { code, why: format!("{}: {error}", shown(name)) }.into())
}

/// The library before whatever LD_PRELOAD names already.
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

/// The environment variables that say what the library is to do.
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
        return Err(CannotRun::refused(
            "--lock keeps all memory, and the pool is there to give it back: choose one",
        ));
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
    if let Some(report) = &args.report {
        settings.push((variable::REPORT, report_file(report, "--report", true)?));
    } else if let Some(report) = std::env::var_os(variable::REPORT) {
        settings.push((variable::REPORT, report_file(&report, variable::REPORT, false)?));
    }
    if args.quiet {
        settings.push((variable::QUIET, "1".into()));
    }
    // exec keeps the process: this one is the program in a moment.
    settings.push((variable::LAUNCHED, std::process::id().to_string().into()));
    Ok(settings)
}

/// The report's file under a name that holds wherever the program goes; emptied, for a new run, or left as it
/// is where an outer run's report may be in it.
fn report_file(report: &OsStr, from: &str, emptied: bool) -> Result<OsString, CannotRun> {
    if report == "-" {
        return Ok(report.to_owned());
    }
    let wrong = |e: std::io::Error| CannotRun::refused(format!("{from}={}: {e}", shown(report)));
    let path = std::path::absolute(report).map_err(wrong)?;
    let mut options = std::fs::OpenOptions::new();
    options.create(true).write(true).truncate(emptied).open(&path).map_err(wrong)?;
    Ok(path.into())
}
