//! One run: a program whose Nth call of a kind fails.

#![allow(unsafe_code, reason = "ends the process group of a run")]

use crate::kinds::Kind;
use crate::stage::{BEGINS, ENDS, ERRNO, MARK};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tenure_measure::seccomp::{start_watched, Answer, Asked, Call, Errno, Listener, When};
use tenure_measure::Unavailable;

/// No run that ends takes longer, even on a busy machine: alone it takes a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(40);
const MARK_CALL: Call = Call::WithArgument(libc::SYS_prctl, 0, MARK as u32);

/// The call that fails, and its error.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// The kind of call.
    pub kind: &'static Kind,
    /// Its error.
    pub errno: i32,
    /// The Nth, or all from the Nth on.
    pub when: When,
}

impl Failure {
    /// How many calls fail in a row. A signal that interrupts a call does not last, and neither
    /// does another thread's change of the mappings, for which userfaultfd returns EAGAIN: the call
    /// must be made again.
    fn most(&self) -> u64 {
        let passes =
            self.errno == libc::EINTR || (self.errno == libc::EAGAIN && self.kind.name == "ioctl");
        if passes {
            200
        } else {
            u64::MAX / 2
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    /// How it ended; `None`: it did not, and was killed.
    pub status: Option<ExitStatus>,
    /// Its standard output and error.
    pub output: String,
    /// Calls of the kind while they were counted.
    pub calls: u64,
    /// How many of them were made to fail.
    pub failures: u64,
    /// Whether a process of it was still there after it had ended.
    pub left_process: bool,
    /// How long it took.
    pub took: Duration,
}

impl Ran {
    /// Whether it ended with this exit status.
    pub fn ended_with(&self, code: i32) -> bool {
        self.status.is_some_and(|status| status.code() == Some(code))
    }

    /// Its end in words.
    pub fn end(&self) -> String {
        match self.status {
            None => format!("a hang of {} s", PATIENCE.as_secs()),
            Some(status) => match status.signal() {
                Some(signal) => format!("signal {signal}"),
                None => format!("exit status {}", status.code().unwrap_or(-1)),
            },
        }
    }
}

/// The calls that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// All calls between the scenario's marks.
    Marked,
    /// These, and all calls by the code of a file of this name.
    MarkedAndBy(&'static str),
}

/// Runs a program to its end.
///
/// # Errors
/// The program cannot be started under a filter.
pub fn run(mut command: Command, failure: Failure, counted: Counted) -> Result<Ran, Unavailable> {
    let unavailable = |e: std::io::Error| Unavailable::new(format!("a run cannot begin: {e}"));
    let begun = Instant::now();
    let mut printed =
        File::from(memfd_create("run", MemfdFlags::CLOEXEC).map_err(|e| unavailable(e.into()))?);
    let output = || printed.try_clone().map_err(unavailable);
    let none = failure.when == When::Never;
    command.env(ERRNO, if none { "0".into() } else { failure.errno.to_string() });
    command.stdin(Stdio::null()).stdout(output()?).stderr(output()?).process_group(0);
    let mut calls = vec![MARK_CALL];
    calls.extend(failure.kind.calls());
    let (mut child, listener) = start_watched(&mut command, &calls)?;
    let mut count = Count { failure, counted, is_on: false, calls: 0, failures: 0 };
    let status = watch(&mut child, &listener, &mut count);
    let mut output = String::new();
    if status.is_none() {
        output = where_it_hangs(child.id());
    }
    let left_process = end_group(&child, status.is_some());
    let _ = child.wait();
    let mut bytes = Vec::new();
    let _ = printed.rewind().and_then(|()| printed.read_to_end(&mut bytes));
    output.insert_str(0, &String::from_utf8_lossy(&bytes));
    let Count { calls, failures, .. } = count;
    Ok(Ran { status, output, calls, failures, left_process, took: begun.elapsed() })
}

/// The calls of one run.
struct Count {
    failure: Failure,
    counted: Counted,
    is_on: bool,
    calls: u64,
    failures: u64,
}

impl Count {
    fn judge(&mut self, asked: &Asked) -> Answer {
        if i64::from(asked.number) == libc::SYS_prctl && asked.arguments[0] == MARK {
            match asked.arguments[1] {
                BEGINS => self.is_on = true,
                ENDS => (self.is_on, self.counted) = (false, Counted::Marked),
                _ => {}
            }
            return Answer::Zero;
        }
        if !self.is_on && !self.is_by_file(asked) {
            return Answer::GoOn;
        }
        self.calls += 1;
        let fails = match self.failure.when {
            When::Nth(n) => self.calls == n,
            When::FromNth(n) => (n..n + self.failure.most()).contains(&self.calls),
            When::Never => false,
        };
        if !fails {
            return Answer::GoOn;
        }
        self.failures += 1;
        if std::env::var_os("TENURE_FAILING_SHOW").is_some() {
            eprintln!("call {} of thread {} fails: {asked:x?}", self.calls, asked.thread);
        }
        Answer::Fail(Errno::from_raw_os_error(self.failure.errno))
    }

    fn is_by_file(&self, asked: &Asked) -> bool {
        let Counted::MarkedAndBy(name) = self.counted else { return false };
        // The caller waits before the call, so it changes nothing meanwhile.
        let maps = fs::read_to_string(format!("/proc/{}/maps", asked.thread)).unwrap_or_default();
        maps.lines().filter(|line| line.ends_with(name)).any(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            range.is_some_and(|(from, to)| {
                let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
                (number(from)..=number(to)).contains(&asked.at)
            })
        })
    }
}

/// Decides about the program's calls until it ends; `None`: it does not end.
fn watch(child: &mut Child, listener: &Listener, count: &mut Count) -> Option<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let end = Instant::now() + PATIENCE;
    // No process has the filter any more, so no more calls arrive.
    let mut hung_up = false;
    loop {
        let left = end.checked_duration_since(Instant::now())?;
        let wait = Timespec::try_from(left).ok()?;
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        let fds = if hung_up { &mut fds[..1] } else { &mut fds[..] };
        match poll(fds, Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        if let Some(asking) = fds.get(1).map(PollFd::revents) {
            if asking.contains(PollFlags::IN) {
                if let Some(asked) = listener.next() {
                    let answer = count.judge(&asked);
                    listener.answer(&asked, answer);
                }
                continue;
            }
            hung_up = !asking.is_empty();
        }
        if fds[0].revents().contains(PollFlags::IN) {
            return child.wait().ok();
        }
    }
}

/// Ends the processes that are left of the run. Returns whether there were any.
pub(crate) fn end_group(child: &Child, ended: bool) -> bool {
    let group = child.id() as i32;
    // SAFETY: signal 0 asks only whether there is such a group; a number without a group is
    // refused.
    let is_there = || unsafe { libc::kill(-group, 0) } == 0;
    let begun = Instant::now();
    // The leader is gone. A child that it killed may need a moment.
    while ended && is_there() && begun.elapsed() < Duration::from_millis(500) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let left = ended && is_there();
    // SAFETY: the group of the program that this process has started. If the leader has been reaped
    // and no process of the group is left, the kernel finds none.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    left
}

/// The place where each thread waits.
pub(crate) fn where_it_hangs(pid: u32) -> String {
    let mut text = String::from("\nit hangs here:\n");
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name: &str| {
            fs::read_to_string(task.path().join(name))
                .unwrap_or_default()
                .trim()
                .replace('\n', " < ")
        };
        let line = format!(
            "{} {} {} system call {}\n",
            read("comm"),
            read("wchan"),
            read("stack"),
            read("syscall")
        );
        text.push_str(&line);
    }
    text
}
