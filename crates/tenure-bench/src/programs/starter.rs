//! The small process between the bench and a program: it starts the program, waits for it, and
//! reports its usage.
//!
//! `exec` counts the memory that it leaves behind in `ru_maxrss` (Linux 6.18, `exec_mmap`). So a
//! program that the bench started itself would show at least the peak of the bench. The starter
//! comes after an `exec` of its own and has a few MiB.

#![allow(unsafe_code, reason = "waits for a child, with its usage")]

use crate::harness::Sample;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

/// The hidden command of `tenure-bench` that is a starter. The program's words follow it.
pub const COMMAND: &str = "bench-program";

/// Exit code of a starter that could not start its program.
const CANNOT_START: u8 = 127;

/// The usage of a program and of the processes that it has waited for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Usage {
    pub elapsed_ms: f64,
    cpu_ms: f64,
    faults: f64,
    /// The peak of the largest among them, or of the starter.
    peak_bytes: f64,
}

/// The columns beside the time.
pub(super) const PROCESSOR: &str = "cpu ms";
pub(super) const FAULTS: &str = "faults";
pub(super) const PEAK: &str = "peak MiB";

impl Usage {
    /// The columns of a program that took this time for its work.
    pub fn sample(self, ms: f64) -> Sample {
        Sample::from(ms)
            .with(PROCESSOR, self.cpu_ms)
            .with(FAULTS, self.faults)
            .with(PEAK, self.peak_bytes / f64::from(1 << 20))
    }

    /// Reads the usage from the standard error of a starter: it is the last line.
    pub fn of(complaints: &str) -> io::Result<Usage> {
        let line = complaints.lines().next_back().unwrap_or_default();
        serde_json::from_str(line).map_err(io::Error::from)
    }
}

/// Starts the program, waits for it, writes its usage as the last line of standard error, and
/// returns its exit code. A signal that ended the program counts as a shell counts it.
pub fn main(words: impl IntoIterator<Item = OsString>) -> u8 {
    let mut words = words.into_iter();
    let Some(program) = words.next() else {
        eprintln!("{COMMAND}: this is for `tenure bench`, and takes a program");
        return CANNOT_START;
    };
    let start = Instant::now();
    let ended = Command::new(&program).args(words).spawn().and_then(|child| wait(&child, start));
    match ended {
        Ok((status, usage)) => {
            eprintln!("\n{}", serde_json::json!(usage));
            let signal = status.signal().map(|signal| 128 + signal);
            status.code().or(signal).unwrap_or(0) as u8
        }
        Err(error) => {
            eprintln!("{}: {error}", program.to_string_lossy());
            CANNOT_START
        }
    }
}

/// Waits for a child, and returns its usage.
fn wait(child: &Child, start: Instant) -> io::Result<(ExitStatus, Usage)> {
    let mut status = 0;
    // SAFETY: rusage is plain numbers, for which zeros are valid.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    let pid = child.id() as libc::pid_t;
    // SAFETY: the kernel writes one int and one rusage into the given ones. The child belongs to
    // this process and was not waited for.
    while unsafe { libc::wait4(pid, &mut status, 0, &mut used) } == -1 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    let usage = Usage {
        elapsed_ms: start.elapsed().as_secs_f64() * 1e3,
        cpu_ms: ms(used.ru_utime) + ms(used.ru_stime),
        faults: used.ru_minflt as f64,
        peak_bytes: used.ru_maxrss as f64 * 1024.0,
    };
    Ok((ExitStatus::from_raw(status), usage))
}
