//! A child process that uses tenure as programs do. A seccomp filter that kills for one of its
//! system calls then kills the child, and the doctor can name the step.
//!
//! A refused system call gives an error, which the findings name. A killing filter shows only when
//! the call is made, and ends the process: systemd units with `SystemCallFilter=` and without
//! `SystemCallErrorNumber=` have such filters.

#![allow(unsafe_code, reason = "tries system calls on memory of its own")]

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tenure::{Cache, Mapping, Volatile};

/// The command's hidden name.
pub const NAME: &str = "doctor-trial";

/// Longer than all steps together on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LEN: usize = 4 << 20;

type Done = Result<(), Box<dyn std::error::Error>>;

/// A step: its description, which is printed before it runs, and its function.
type Step = (&'static str, fn() -> Done);

/// The first step is the doctor's own next action.
const PROBE: &str = "trying each feature of the kernel";

const STEPS: &[Step] = &[
    (PROBE, probe),
    ("marking a range, offering it to the kernel, purging and unmarking it", range),
    ("waiting for the background worker to offer a range", worker),
    ("pinning a buffer that was purged, with its refill function", buffer),
    ("keeping values of 1 KiB to 4 MiB in a cache", cache),
    ("taking blocks from the pool and freeing them", pool),
    ("retiring a mapping and waiting for its teardown", retire),
    ("populating a range in two threads", populate),
    ("locking a range on fault and in full", lock),
    ("asking which parts of a file are in the page cache", page_cache),
    ("asking for statistics", statistics),
];

fn probe() -> Done {
    let _ = tenure::capabilities();
    let _ = tenure::volatile::detection();
    Ok(())
}

fn filled(len: usize) -> tenure::Result<Mapping> {
    let mut mapping = Mapping::anonymous(len)?;
    mapping.as_mut_slice().fill(7);
    Ok(mapping)
}

fn range() -> Done {
    use tenure::volatile::{mark, offer_now, purge_now, unmark, unmark_with_map};
    let mut mapping = filled(LEN)?;
    let (addr, len) = (mapping.as_mut_ptr(), mapping.len());
    // SAFETY: the mapping is this function's own; it stays as it is, and is not touched between a
    // mark and its unmark.
    unsafe {
        mark(addr, len)?;
        offer_now(addr, len)?;
        let _ = unmark(addr, len)?;
        mark(addr, len)?;
        purge_now(addr, len)?;
        let _ = unmark_with_map(addr, len, |_| {})?;
    }
    Ok(())
}

fn worker() -> Done {
    let mut settings = tenure::volatile::settings();
    settings.offer_after = Duration::from_millis(1);
    tenure::volatile::configure(settings);
    let buffer = Volatile::new(LEN)?;
    drop(buffer.pin()?);
    let until = Instant::now() + Duration::from_secs(10);
    while tenure::stats().total.offers == 0 {
        if Instant::now() > until {
            return Err("the worker offered nothing within 10 seconds".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn buffer() -> Done {
    let refill = tenure::volatile::Refill::pages(|_, bytes| {
        bytes.fill(7);
        Ok(())
    });
    let buffer = Volatile::builder(LEN).refill(refill).build()?;
    buffer.purge_now()?;
    drop(buffer.pin()?);
    Ok(())
}

fn cache() -> Done {
    let cache: Cache<u64> = Cache::builder().ceiling(64 << 20).build()?;
    for key in 0..64 {
        cache.insert(key, &vec![7; 1 << (10 + key % 13)])?;
    }
    for key in 0..64 {
        drop(cache.get(&key));
    }
    cache.clear();
    Ok(())
}

fn pool() -> Done {
    tenure::pool::prepare()?;
    let block = tenure::pool::alloc(LEN, 1, true).ok_or("there is no block of 4 MiB")?;
    // SAFETY: the block comes from the pool and is not used after the call that moves or frees it.
    unsafe {
        let moved = tenure::pool::realloc(block, 3 * LEN, 1, false);
        tenure::pool::free(moved.unwrap_or(block));
    }
    Ok(())
}

fn retire() -> Done {
    tenure::retire::prepare()?;
    let _ = tenure::retire::retire(filled(16 * LEN)?)?;
    match tenure::retire::drain(Some(Duration::from_secs(10))) {
        true => Ok(()),
        false => Err("64 MiB were not torn down within 10 seconds".into()),
    }
}

fn populate() -> Done {
    use tenure::populate::{Access, Populate};
    let mut mapping = Mapping::anonymous(16 * LEN)?;
    Populate::new(mapping.as_mut_ptr(), mapping.len(), Access::Write).threads(2).run()?;
    mapping.discard(0, LEN)?;
    Ok(())
}

fn lock() -> Done {
    use tenure::lock::{lock, When};
    let mapping = Mapping::anonymous(16 << 12)?;
    for when in [When::OnFault, When::Now] {
        match lock(mapping.as_ptr(), mapping.len(), when) {
            Ok(guard) => drop(guard),
            // The limit belongs to the user; the doctor prints it.
            Err(error) if [libc::ENOMEM, libc::EPERM].contains(&error.errno()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn page_cache() -> Done {
    let file = File::open("/proc/self/exe")?;
    tenure::page_cache::resident_bytes(&file, 0..1 << 20)?;
    Ok(())
}

fn statistics() -> Done {
    let _ = tenure::stats();
    let _ = tenure::lock::account()?;
    Ok(())
}

/// The child's work: prints each step before it runs, and its errors. Each message is one write of
/// one line, so that it is there whatever ends the process next.
pub fn work() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for (name, step) in STEPS {
        writeln!(out, "step {name}")?;
        out.flush()?;
        if let Err(error) = step() {
            writeln!(out, "failed {}", error.to_string().replace('\n', " "))?;
        }
    }
    writeln!(out, "end")?;
    Ok(())
}

/// The result of the trial.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every step was done.
    Done,
    /// These steps returned errors; the process survived.
    Failed(Vec<String>),
    /// The process ended, or hung, in the middle of a step.
    Ended {
        /// The step.
        step: String,
        /// How it ended.
        how: Ending,
    },
    /// There was no such process.
    NotTried(String),
}

/// How the process ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending {
    /// A seccomp filter killed it (SIGSYS).
    Filter,
    /// Another cause: a signal, an exit code, or a timeout of the doctor's.
    Other(String),
}

impl Outcome {
    /// Returns whether the doctor itself may try the kernel's features, or would be killed, too.
    pub fn may_probe(&self) -> bool {
        !matches!(self, Outcome::Ended { step, .. } if step == PROBE)
    }
}

/// How many steps there are.
pub fn steps() -> usize {
    STEPS.len()
}

/// Runs the child and watches it.
pub fn run() -> Outcome {
    let child = std::env::current_exe().and_then(|own| {
        Command::new(own)
            .arg(NAME)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
    });
    match child {
        Ok(child) => watch(child).unwrap_or_else(|e| Outcome::NotTried(e.to_string())),
        Err(error) => Outcome::NotTried(format!("the process could not be started: {error}")),
    }
}

fn watch(mut child: Child) -> io::Result<Outcome> {
    let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (said, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if said.send(line).is_err() {
                return;
            }
        }
    });
    let until = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    let hung = loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => seen.push(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => break false,
            Err(mpsc::RecvTimeoutError::Timeout) => break true,
        }
    };
    if hung {
        child.kill()?;
    }
    Ok(outcome(&seen, child.wait()?, hung))
}

fn outcome(said: &[String], status: ExitStatus, hung: bool) -> Outcome {
    let mut step = "starting";
    let mut failed = Vec::new();
    for line in said {
        if let Some(name) = line.strip_prefix("step ") {
            step = name;
        } else if let Some(error) = line.strip_prefix("failed ") {
            failed.push(format!("{step}: {error}"));
        } else if line == "end" && status.success() {
            return if failed.is_empty() { Outcome::Done } else { Outcome::Failed(failed) };
        }
    }
    if said.is_empty() && status.signal().is_none() && !hung {
        return Outcome::NotTried(format!("the process could not be started: {status}"));
    }
    let how = match status.signal() {
        _ if hung => {
            Ending::Other(format!("it took longer than {} s and was ended", PATIENCE.as_secs()))
        }
        Some(libc::SIGSYS) => Ending::Filter,
        _ => Ending::Other(format!("the process ended with {status}")),
    };
    Outcome::Ended { step: step.into(), how }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lines: &[&str], status: i32, hung: bool) -> Outcome {
        let lines: Vec<String> = lines.iter().map(|&line| line.into()).collect();
        outcome(&lines, ExitStatus::from_raw(status), hung)
    }

    #[test]
    fn the_step_that_was_killed_is_named() {
        let killed = said(&["step one", "step two"], libc::SIGSYS, false);
        assert_eq!(killed, Outcome::Ended { step: "two".into(), how: Ending::Filter });
        assert!(killed.may_probe());
        assert!(!said(&[&format!("step {PROBE}")], libc::SIGSYS, false).may_probe());
        let before = Outcome::Ended { step: "starting".into(), how: Ending::Filter };
        assert_eq!(said(&[], libc::SIGSYS, false), before);
    }

    #[test]
    fn errors_and_hangs_are_told_apart() {
        assert_eq!(said(&["step one", "end"], 0, false), Outcome::Done);
        let failed = said(&["step one", "failed no memory", "step two", "end"], 0, false);
        assert_eq!(failed, Outcome::Failed(vec!["one: no memory".into()]));
        for (status, hung, text) in
            [(libc::SIGKILL, true, "longer"), (libc::SIGBUS, false, "signal"), (256, false, "exit")]
        {
            let Outcome::Ended { step, how: Ending::Other(how) } = said(&["step a"], status, hung)
            else {
                panic!("{status}");
            };
            assert!(step == "a" && how.contains(text), "{how}");
        }
    }

    #[test]
    fn a_program_file_that_does_not_start_is_no_killed_program() {
        // As when an emulator runs the doctor.
        assert!(matches!(said(&[], 127 << 8, false), Outcome::NotTried(_)));
    }

    #[test]
    fn each_step_works_or_says_why() {
        // Errors belong to the machine (a limit, a kernel without MADV_FREE); a panic is tenure's.
        for (name, step) in STEPS {
            if let Err(error) = step() {
                println!("{name}: {error}");
            }
        }
    }
}
