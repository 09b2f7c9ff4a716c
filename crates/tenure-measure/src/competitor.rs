//! A neighbour process that takes memory on request.
//!
//! It is this program, executed again and caught before `main` by a start-up hook. A plain fork
//! would be simpler but wrong: it shares every page of the parent copy-on-write, and the kernel
//! discards a lazily freed page only if every process that maps it has given it up. So a forked
//! competitor would keep the pages under test in memory.

#![allow(unsafe_code, reason = "runs before main, and maps memory")]

use crate::unavailable::Unavailable;
use crate::MemoryCgroup;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const HOOK_VARIABLE: &str = "TENURE_TESTKIT_COMPETITOR_OF";
const NEED: u8 = b'n';
const RELEASE: u8 = b'r';
/// Bytes between two checks that the parent is alive.
const STEP: usize = 16 << 20;

/// The failure of a request to a competitor.
#[derive(Debug)]
pub enum Refused {
    /// It is dead; the status has the cause.
    Died(ExitStatus),
    /// The kernel refused the address space.
    Os(io::Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Died(status) => write!(f, "the competitor died: {status}"),
            Refused::Os(e) => write!(f, "the competitor was refused memory: {e}"),
        }
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Os(error) => error,
            died => io::Error::new(io::ErrorKind::BrokenPipe, died),
        }
    }
}

/// A process that takes and gives back memory on request.
///
/// It holds no memory of the starting process, exits when that process ends, and is killed on drop.
#[derive(Debug)]
pub struct Competitor {
    child: Child,
    requests: ChildStdin,
    answers: ChildStdout,
    held: u64,
    asked: Option<u64>,
    status: Option<ExitStatus>,
}

impl Competitor {
    /// Starts one, in `group` if there is one.
    pub fn spawn(group: Option<&MemoryCgroup>) -> Result<Competitor, Unavailable> {
        // This reference makes the linker keep the hook.
        std::hint::black_box(&START_UP_HOOK);
        let mut child = Command::new("/proc/self/exe")
            .env(HOOK_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| Unavailable::new(format!("cannot start a competitor: {e}")))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for as pipes");
        };
        let mut competitor =
            Competitor { child, requests, answers, held: 0, asked: None, status: None };
        if let Some(group) = group {
            group.add_pid(competitor.pid()).map_err(|e| {
                let path = group.path().display();
                Unavailable::new(format!("cannot put a competitor into {path}: {e}"))
            })?;
        }
        // A first exchange, so that the competitor is ready when this returns.
        competitor
            .release()
            .map_err(|e| Unavailable::new(format!("the competitor did not start: {e}")))?;
        Ok(competitor)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it take `bytes` more and write to every page; returns how long that took it.
    pub fn need(&mut self, bytes: u64) -> Result<Duration, Refused> {
        self.ask_need(bytes);
        self.answer()
    }

    /// Has it give back all it holds.
    pub fn release(&mut self) -> Result<Duration, Refused> {
        self.ask_release();
        self.answer()
    }

    /// Sends the request of [`need`](Self::need) without waiting. One request at a time.
    pub fn ask_need(&mut self, bytes: u64) {
        self.ask(NEED, bytes, self.held + bytes);
    }

    /// Sends the request of [`release`](Self::release) without waiting. One request at a time.
    pub fn ask_release(&mut self) {
        self.ask(RELEASE, 0, 0);
    }

    fn ask(&mut self, kind: u8, bytes: u64, held_then: u64) {
        assert!(self.asked.is_none(), "the last request has not been answered yet");
        let mut request = [kind; 9];
        request[1..].copy_from_slice(&bytes.to_ne_bytes());
        // A dead competitor is noticed when its reply is read.
        let _ = self.requests.write_all(&request);
        self.asked = Some(held_then);
    }

    /// Waits for the reply to the request that was sent.
    pub fn answer(&mut self) -> Result<Duration, Refused> {
        let held_then = self.asked.take().expect("a request was sent");
        let mut answer = [0; 16];
        if self.answers.read_exact(&mut answer).is_err() {
            let status = self.child.wait().map_err(Refused::Os)?;
            self.status = Some(status);
            self.held = 0;
            return Err(Refused::Died(status));
        }
        let word = |at: usize| u64::from_ne_bytes(answer[at..at + 8].try_into().expect("8 bytes"));
        match word(0) {
            0 => {
                self.held = held_then;
                Ok(Duration::from_nanos(word(8)))
            }
            errno => Err(Refused::Os(io::Error::from_raw_os_error(errno as i32))),
        }
    }

    /// Returns the reply if it comes within `patience`, else `None`; the request then stays open.
    pub fn answer_within(&mut self, patience: Duration) -> Option<Result<Duration, Refused>> {
        readable_within(&self.answers, patience).then(|| self.answer())
    }

    /// The bytes that it holds according to its last reply.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// How it ended; `None` while it runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// The signal that killed it. It is SIGKILL (9) if the kernel killed it for lack of memory.
    pub fn killed_by(&mut self) -> Option<i32> {
        self.status()?.signal()
    }

    /// Sets which process the kernel kills first when memory runs out: 1000 is this one first.
    /// Raising the value needs no privilege.
    pub fn set_oom_score_adj(&self, value: i16) -> io::Result<()> {
        std::fs::write(format!("/proc/{}/oom_score_adj", self.pid()), value.to_string())
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        // Both calls know whether the process was reaped already, and then send no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn readable_within(fd: impl AsFd, patience: Duration) -> bool {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let timeout = Timespec {
        tv_sec: patience.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
}

#[used]
#[unsafe(link_section = ".init_array")]
static START_UP_HOOK: extern "C" fn() = {
    extern "C" fn hook() {
        if let Some(parent) = std::env::var_os(HOOK_VARIABLE) {
            let parent: Option<i32> = parent.to_str().and_then(|p| p.parse().ok());
            // A user has set the variable, or a child of another kind has inherited it: continue to
            // main.
            if parent.is_some_and(parent_is) {
                serve(parent.unwrap_or(0));
            }
        }
    }
    hook
};

fn parent_is(pid: i32) -> bool {
    rustix::process::getppid().is_some_and(|p| p.as_raw_nonzero().get() == pid)
}

/// The competitor's whole life. It does not use PR_SET_PDEATHSIG, which fires when the *thread*
/// that made it ends, not that thread's process. A check of the parent's id is exact.
fn serve(parent: i32) -> ! {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut held: Vec<(*mut libc::c_void, usize)> = Vec::new();
    loop {
        if !parent_is(parent) {
            exit_now();
        }
        if !readable_within(&input, Duration::from_secs(1)) {
            continue;
        }
        let mut request = [0; 9];
        if input.read_exact(&mut request).is_err() {
            exit_now();
        }
        let bytes = u64::from_ne_bytes(request[1..].try_into().expect("8 bytes"));
        let started = Instant::now();
        let outcome = match request[0] {
            NEED => take(bytes as usize, parent).map(|taken| held.push(taken)),
            _ => {
                for (at, len) in held.drain(..) {
                    // SAFETY: `take` mapped exactly this range, and nothing refers to it.
                    unsafe { libc::munmap(at, len) };
                }
                Ok(())
            }
        };
        let errno = outcome.err().and_then(|e| e.raw_os_error()).unwrap_or(0) as u64;
        let mut answer = [0; 16];
        answer[..8].copy_from_slice(&errno.to_ne_bytes());
        answer[8..].copy_from_slice(&(started.elapsed().as_nanos() as u64).to_ne_bytes());
        if output.write_all(&answer).and_then(|()| output.flush()).is_err() {
            exit_now();
        }
    }
}

/// Exits without exit handlers, because this process never ran the program that has registered
/// them.
fn exit_now() -> ! {
    // SAFETY: _exit has no precondition.
    unsafe { libc::_exit(0) }
}

/// Maps `len` bytes and makes every page resident and dirty, with data that is no zero page.
fn take(len: usize, parent: i32) -> io::Result<(*mut libc::c_void, usize)> {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping at an address that the kernel chooses replaces nothing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let page = rustix::param::page_size();
    for offset in (0..len).step_by(page) {
        if offset % STEP == 0 && !parent_is(parent) {
            exit_now();
        }
        // SAFETY: offset is a page boundary below len, inside the writable mapping made above.
        unsafe { at.cast::<u8>().add(offset).cast::<u64>().write_volatile(!(offset as u64)) };
    }
    Ok((at, len))
}
