//! Runs a plan in a child, without or with the library.

#![allow(unsafe_code, reason = "sets the child's personality, and ends its process group")]

use crate::options::Set;
use crate::plan::{self, Call};
use crate::program::{Kind, Programs};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A plan that ends takes less, even on a busy machine: alone it takes 5 s.
const PATIENCE: Duration = Duration::from_secs(120);

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The records.
    pub records: Vec<String>,
    /// How the process ended.
    pub end: String,
    /// The child's standard error: only the library writes there.
    pub said: String,
}

/// The places of the programs and of the library.
pub struct Place<'a> {
    /// The child's programs.
    pub programs: &'a Programs,
    /// The library to preload.
    pub library: &'a Path,
}

/// Runs `calls` with a set of options. Without a set it runs the plain program.
///
/// # Errors
/// Files that cannot be made, and a child that cannot be started.
pub fn run(place: &Place, kind: Kind, calls: &[Call], set: Option<&Set>) -> Result<Run, String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = |name: &str| place.programs.file(&format!("{name}.{number}"));
    let (plan, log, said) = (file("plan"), file("log"), file("said"));
    let result = run_with(place, kind, calls, set, [&plan, &log, &said]);
    for path in [&plan, &log, &said] {
        let _ = std::fs::remove_file(path);
    }
    result.map_err(|error| format!("a child: {error}"))
}

fn run_with(
    place: &Place,
    kind: Kind,
    calls: &[Call],
    set: Option<&Set>,
    [plan, log, said]: [&Path; 3],
) -> std::io::Result<Run> {
    std::fs::write(plan, plan::text(calls))?;
    let open = |path: &Path| OpenOptions::new().create_new(true).append(true).read(true).open(path);
    let (mut records, mut errors) = (open(log)?, open(said)?);
    let mut command = place.programs.command(kind);
    command.arg(plan).stdin(Stdio::null()).process_group(0);
    command.stdout(records.try_clone()?).stderr(errors.try_clone()?);
    if let Some(set) = set {
        command.env("LD_PRELOAD", place.library).envs(set.environment.iter().copied());
        command.env(tenure_launch::variable::QUIET, "1");
    }
    let fixed_addresses = || {
        // Fixed addresses, so that a seed repeats a failure. If the kernel refuses, only the
        // addresses differ.
        // SAFETY: the system call passes no memory, and it is async-signal-safe.
        unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
        Ok(())
    };
    // SAFETY: the closure makes one system call and neither allocates nor takes locks.
    let mut child = unsafe { command.pre_exec(fixed_addresses) }.spawn()?;
    let end = wait(&mut child);
    // The processes that it left running, its children included.
    // SAFETY: the signal goes to the group of which this child was made the leader.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let mut hung_at = String::new();
    let end = match end {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (_, signal) => format!("signal {}", signal.unwrap_or(0)),
        },
        Err(at) => {
            hung_at = at;
            "hang".to_owned()
        }
    };
    let text = read(&mut records)?;
    Ok(Run {
        records: text.lines().map(str::to_owned).collect(),
        end,
        said: read(&mut errors)? + &hung_at,
    })
}

fn read(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The places of a process's threads: the system call, its arguments, the stack and the
/// instruction.
fn places(process: u32) -> String {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return String::new();
    };
    let shown = tasks.flatten().map(|task| {
        let text = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        format!("{}: {}", text("comm").trim(), text("syscall").trim())
    });
    shown.collect::<Vec<_>>().join("; ")
}

/// Returns how it ended. If it hangs, `places` shows where.
fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let began = Instant::now();
    let mut pause = Duration::from_micros(300);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Ok(status);
        }
        if began.elapsed() > PATIENCE {
            let at = places(child.id());
            let _ = child.kill();
            let _ = child.wait();
            return Err(at);
        }
        std::thread::sleep(pause);
        pause = (pause * 5 / 4).min(Duration::from_millis(5));
    }
}
