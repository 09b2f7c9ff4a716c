//! A test body in a process of its own: for seccomp filters, limits, deaths and counts that
//! concern the whole process.

#![allow(unsafe_code, reason = "gives rights away in a child, and ends it")]

use crate::skip;
use crate::Unavailable;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::Location;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

const BODY_VARIABLE: &str = "TENURE_TESTKIT_BODY";
/// Which of a test's calls of [`in_child`] and [`undisturbed`] has the body that a child is to run, and
/// where it stands (`2 at tests/freed.rs:142:5`; by hand `2` will do); of [`run_child`]: [`THE_FIRST`].
const CALL_VARIABLE: &str = "TENURE_TESTKIT_CALL";
const THE_FIRST: &str = "run";
/// Distinguishes a body that ran to its end from a harness that found no such test, which exits
/// with 0.
const BODY_DONE: i32 = 83;
const PATIENCE_SECONDS: i64 = 600;

/// How a child ended, and its output.
#[derive(Debug)]
pub struct ChildResult {
    /// Its exit status.
    pub status: ExitStatus,
    /// Standard output and standard error together.
    pub output: String,
}

impl ChildResult {
    /// Whether the body ran to its end.
    pub fn finished(&self) -> bool {
        self.status.code() == Some(BODY_DONE)
    }

    /// The signal that killed it.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }
}

/// The name of the enclosing test as the harness lists it, for [`in_child`] and [`run_child`].
#[macro_export]
macro_rules! this_test {
    () => {{
        fn here() {}
        $crate::child::test_name(::std::any::type_name_of_val(&here))
    }};
}

/// The harness's name of the test in which the function at this path was defined: the path without
/// the crate, and without closures.
pub fn test_name(here: &'static str) -> &'static str {
    let path = here.split_once("::").map_or(here, |(_crate, path)| path);
    let path = path.split_once("::{{closure}}").map_or(path, |(test, _)| test);
    path.strip_suffix("::here").unwrap_or(path)
}

/// For the whole process: by the name of the test, whose threads count together.
static CALLS: Mutex<BTreeMap<String, Calls>> = Mutex::new(BTreeMap::new());
/// For the whole process: this is a child, and runs a body.
static IN_BODY: AtomicBool = AtomicBool::new(false);

/// What a test has called so far.
#[derive(Default)]
struct Calls {
    /// The number of its calls of [`in_child`] and [`undisturbed`].
    turns: u32,
    /// The environments of its calls of [`run_child`], and where it calls.
    places: Vec<(String, &'static Location<'static>)>,
}

/// Runs `act` on what a test has called so far.
///
/// # Panics
/// In a body: its child would run the same body.
fn calls_of<R>(test: &str, act: impl FnOnce(&mut Calls) -> R) -> R {
    assert!(!IN_BODY.load(Ordering::Relaxed), "the body of {test} asks for a child");
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    act(calls.entry(test.into()).or_default())
}

/// In a child for this test: the call whose body it is to run.
fn wanted_call(test: &str) -> Option<String> {
    let is_for_it = std::env::var(BODY_VARIABLE).as_deref() == Ok(test);
    is_for_it.then(|| std::env::var(CALL_VARIABLE).unwrap_or_else(|_| "1".into()))
}

/// Refuses what a test would hold twice: its child runs the test up to the body, and would wait for
/// its own parent.
///
/// # Panics
/// In a child that has not reached its body.
pub(crate) fn assert_in_body(what: &str) {
    let thread = std::thread::current();
    let is_child = thread.name().is_some_and(|test| wanted_call(test).is_some());
    assert!(
        !is_child || IN_BODY.load(Ordering::Relaxed),
        "{what} is taken before the child's body"
    );
}

/// Counts a turn of a test. In a child it runs the body if the child is this turn's, and returns
/// `None` if it is another's. Otherwise it returns the turn, for [`execute_body`].
///
/// # Panics
/// If the child counts otherwise than its parent: its turn of this number stands elsewhere.
#[track_caller]
fn begin_turn(test: &str, body: impl FnOnce()) -> Option<String> {
    let number = calls_of(test, |calls| {
        calls.turns += 1;
        calls.turns.to_string()
    });
    let turn = format!("{number} at {}", Location::caller());
    let Some(wanted) = wanted_call(test) else { return Some(turn) };
    if wanted == turn || wanted == number {
        run_body(test, body);
    }
    let is_its_number = wanted.split(' ').next() == Some(&number);
    assert!(
        !is_its_number,
        "turn {turn} is, in the parent, {wanted}: the same calls in each process"
    );
    None
}

/// Runs `body` in a process of its own and panics, with its output, unless it finishes.
///
/// `test` is the calling test as the harness lists it: [`this_test!`](crate::this_test). The child
/// runs the test up to this call, and does not return from it. The test may call this in a loop:
/// each child runs the body of its own turn. A test's calls follow one another. What a body that
/// finished has printed is printed here, too (`--nocapture` shows it).
///
/// # Panics
/// If the body panics, dies, or takes longer than ten minutes; or if the test makes other calls in a child.
#[track_caller]
pub fn in_child(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    let Some(turn) = begin_turn(test, body) else { return };
    let result = execute_body(test, &turn, env);
    assert!(
        result.finished(),
        "the child of {test} ended with {}; it printed:\n{}",
        result.status,
        result.output
    );
    if let Some((_, said)) = result.output.split_once(&begin(test)) {
        print!("{said}");
    }
}

/// Like [`in_child`], but returns how the child ended: for bodies that should die. The child runs
/// the body of the test's first call, whichever it is for. So in a loop the body learns by `env` which
/// turn it is.
///
/// # Panics
/// If the body never started, because no test has that name, if it takes longer than ten minutes, or
/// if a later call with the same `env` may have another body: it stands elsewhere, or refers to
/// something, as to its turn.
#[track_caller]
pub fn run_child<F: FnOnce()>(test: &str, env: &[(&str, &str)], body: F) -> ChildResult {
    let here = (format!("{env:?}"), Location::caller());
    let may_differ = calls_of(test, |calls| {
        let before = calls.places.iter().find(|place| place.0 == here.0);
        let may_differ = before.is_some_and(|before| size_of::<F>() > 0 || before.1 != here.1);
        calls.places.push(here);
        may_differ
    });
    assert!(
        !may_differ,
        "the child runs the body of the first call: tell it by `env` what differs"
    );
    if wanted_call(test).as_deref() == Some(THE_FIRST) {
        run_body(test, body);
    }
    execute_body(test, THE_FIRST, env)
}

fn begin(test: &str) -> String {
    format!("tenure-testkit: body of {test} begins\n")
}

fn run_body(test: &str, body: impl FnOnce()) -> ! {
    IN_BODY.store(true, Ordering::Relaxed);
    die_with_parent();
    // Written straight to the descriptor, so that it is there however the body dies.
    let _ = io::stdout().write_all(begin(test).as_bytes()).and_then(|()| io::stdout().flush());
    body();
    let _ = io::stdout().flush();
    // Not `std::process::exit`: it unmaps the main thread's signal stack. That thread may still be
    // leaving the handler by which glibc changes every thread's user (one in a thousand children of
    // `as_nobody` died of SIGSEGV there).
    // SAFETY: ends the process, whose output is flushed.
    unsafe { libc::_exit(BODY_DONE) }
}

fn execute_body(test: &str, call: &str, env: &[(&str, &str)]) -> ChildResult {
    let env = [env, &[(BODY_VARIABLE, test), (CALL_VARIABLE, call)]].concat();
    let result = run_harness(&[test, "--exact", "--nocapture", "--include-ignored"], &env)
        .unwrap_or_else(|e| panic!("no child for {test}: {e}"));
    assert!(
        result.output.contains(&begin(test)),
        "the child of {test} did not get to its body ({}): is that the test's full name? {}",
        result.status,
        result.output
    );
    result
}

/// Like [`in_child`], for a body that holds only while memory is not short: tenure may rightly
/// react to other programs of the machine. `pressure` counts the reports of pressure. A body that
/// fails runs again if there was a report.
///
/// # Panics
/// If the body fails without pressure, and in the cases of [`in_child`].
#[track_caller]
pub fn undisturbed(test: &str, pressure: fn() -> u64, body: impl Fn()) {
    undisturbed_with(test, &[], pressure, body);
}

/// [`undisturbed`] with environment variables.
///
/// # Panics
/// As [`undisturbed`].
#[track_caller]
pub fn undisturbed_with(test: &str, env: &[(&str, &str)], pressure: fn() -> u64, body: impl Fn()) {
    const SAID: &str = "tenure-testkit: memory was short, times: ";
    const RUNS: u32 = 10;
    let body = || {
        let (usual, before) = (std::panic::take_hook(), pressure());
        std::panic::set_hook(Box::new(move |panic| {
            usual(panic);
            // The last report is counted a moment later.
            std::thread::sleep(std::time::Duration::from_millis(100));
            eprintln!("{SAID}{}", pressure() - before);
        }));
        body();
    };
    let Some(turn) = begin_turn(test, body) else { return };
    for _ in 0..RUNS {
        let result = execute_body(test, &turn, env);
        if result.finished() {
            return;
        }
        let was_short = |line: &str| line.strip_prefix(SAID).is_some_and(|count| count != "0");
        let (status, output) = (result.status, result.output);
        assert!(
            output.lines().any(was_short),
            "the child of {test} ended with {status}:\n{output}"
        );
    }
    // The crate's name, as `skip!` has it: of the program, without what cargo adds to it.
    let program = own_program().unwrap_or_default();
    let name = program.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.rsplit_once('-').map_or(name, |(name, _)| name);
    let reason = format!("memory was short on this machine in each of {RUNS} runs");
    skip::record(&format!("{name}::{test}"), &reason);
}

/// How often the kernel has taken pages from anybody because the machine's free memory was short: a
/// `pressure` for [`undisturbed`]. What it takes because a cgroup is at its limit does not count. 0
/// where the kernel does not tell.
pub fn takings_from_the_machine() -> u64 {
    let counts = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count_of = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        let is_one = name == "pgsteal_kswapd" || name.starts_with("allocstall");
        is_one.then(|| count.parse::<u64>().ok())?
    };
    counts.lines().filter_map(count_of).sum()
}

/// Has the kernel kill this process when the thread that waits for it is gone.
fn die_with_parent() {
    let signal = Some(rustix::process::Signal::KILL);
    if let Err(e) = rustix::process::set_parent_process_death_signal(signal) {
        eprintln!("this child may outlive the test it belongs to: {e}");
    }
}

/// Runs this test program once more, one test after the other.
pub(crate) fn run_harness(arguments: &[&str], env: &[(&str, &str)]) -> io::Result<ChildResult> {
    // A memory file, unlike a pipe, needs no reader while the child runs, and no end of file from
    // processes that the child may leave behind. Both streams share its offset.
    let mut printed = File::from(memfd_create("child-output", MemfdFlags::CLOEXEC)?);
    let mut child = Command::new(own_program()?)
        .args(arguments)
        .arg("--test-threads=1")
        .envs(env.iter().copied())
        .env(skip::FILE_VARIABLE, skip::file())
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(printed.try_clone()?)
        .spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pidfd = pidfd_open(pid.expect("a child has a positive id"), PidfdFlags::empty())?;
    let timeout = Timespec { tv_sec: PATIENCE_SECONDS, tv_nsec: 0 };
    let ended = loop {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other? > 0,
        }
    };
    if !ended {
        child.kill()?;
    }
    let status = child.wait()?;
    printed.rewind()?;
    let mut bytes = Vec::new();
    printed.read_to_end(&mut bytes)?;
    let output = String::from_utf8_lossy(&bytes).into_owned();
    assert!(ended, "{arguments:?} took longer than {PATIENCE_SECONDS} s: {output}");
    Ok(ChildResult { status, output })
}

/// The program that this process runs. Without /proc, the path by which it was started.
fn own_program() -> io::Result<PathBuf> {
    let as_started = || std::env::args_os().next().map(PathBuf::from);
    std::env::current_exe()
        .or_else(|error| as_started().filter(|path| path.is_absolute()).ok_or(error))
}

/// Makes this process an ordinary user's (uid and gid 65534) if it is root's. For use in a child,
/// because it cannot be undone.
pub fn as_nobody() -> Result<(), Unavailable> {
    const NOBODY: libc::uid_t = 65534;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    crate::seccomp::may_call("setresuid")?;
    skip::open_early();
    let done = |what: &str, result: libc::c_int| match result {
        0 => Ok(()),
        _ => {
            let e = io::Error::last_os_error();
            Err(Unavailable::new(format!("cannot become an ordinary user: {what}: {e}")))
        }
    };
    // The C library's calls, not the raw ones, because they change every thread of the process.
    // SAFETY: an empty group list is never read.
    done("setgroups", unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: plain numbers.
    done("setresgid", unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) })?;
    // SAFETY: plain numbers.
    done("setresuid", unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) })?;
    // A change of uid makes a process undumpable, and then root owns its /proc/self/pagemap and
    // similar files. A process that an ordinary user starts owns them.
    // SAFETY: plain numbers.
    done("PR_SET_DUMPABLE", unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) })
}
