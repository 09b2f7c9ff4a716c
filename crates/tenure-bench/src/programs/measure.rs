//! A program as a process: started, waited for, and its usage.

#![allow(unsafe_code, reason = "waits for a child, with its usage")]

use crate::harness::Sample;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The usage of a process and of the children that it has waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    cpu_ms: f64,
    faults: f64,
    /// The peak of the largest among them.
    peak_bytes: f64,
}

/// The columns beside the time.
pub(super) const PROCESSOR: &str = "cpu ms";
pub(super) const FAULTS: &str = "faults";
pub(super) const PEAK: &str = "peak MiB";

impl Usage {
    /// The columns of a program with this time.
    pub fn sample(self, elapsed: Duration) -> Sample {
        Sample::from(elapsed.as_secs_f64() * 1e3)
            .with(PROCESSOR, self.cpu_ms)
            .with(FAULTS, self.faults)
            .with(PEAK, self.peak_bytes / f64::from(1 << 20))
    }
}

/// The output of a program.
pub(super) struct Ended {
    pub usage: Usage,
    pub elapsed: Duration,
    pub output: Vec<u8>,
}

/// A process in a group of its own. Its drop kills the whole group.
pub(super) struct Running {
    child: Child,
    output: File,
    complaints: File,
    start: Instant,
    waited: bool,
}

impl Running {
    /// Starts a program with this text as its input. Its output goes to files without a name, so no
    /// pipe can fill up.
    pub fn start(command: &mut Command, input: Option<&str>) -> io::Result<Running> {
        let (output, complaints) = (nameless()?, nameless()?);
        command.stdin(match input {
            Some(text) => {
                let mut file = nameless()?;
                io::Write::write_all(&mut file, text.as_bytes())?;
                file.rewind()?;
                Stdio::from(file)
            }
            None => Stdio::null(),
        });
        command.stdout(output.try_clone()?).stderr(complaints.try_clone()?).process_group(0);
        let start = Instant::now();
        Ok(Running { child: command.spawn()?, output, complaints, start, waited: false })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it failed, with the last line of its complaint.
    pub fn finish(mut self) -> io::Result<Ended> {
        let (status, usage) = wait(&self.child)?;
        let elapsed = self.start.elapsed();
        self.waited = true;
        if !status.success() {
            return Err(io::Error::other(format!("{status}: {}", self.complaint()?)));
        }
        Ok(Ended { usage, elapsed, output: read(&mut self.output)? })
    }

    /// The last line of its standard error.
    fn complaint(&mut self) -> io::Result<String> {
        let said = read(&mut self.complaints)?;
        let said = String::from_utf8_lossy(&said);
        let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("(silent)");
        Ok(line.trim().to_owned())
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// If it ended early.
    pub fn is_alive(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                self.waited = true;
                Err(io::Error::other(format!("{status}: {}", self.complaint()?)))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.waited {
            return;
        }
        // SAFETY: kills the group that this process has made. Its leader was not waited for, so its
        // number is still its own.
        unsafe { libc::killpg(self.child.id() as libc::pid_t, libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

/// Waits for a child, and returns its usage.
fn wait(child: &Child) -> io::Result<(ExitStatus, Usage)> {
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
        cpu_ms: ms(used.ru_utime) + ms(used.ru_stime),
        faults: used.ru_minflt as f64,
        peak_bytes: used.ru_maxrss as f64 * 1024.0,
    };
    Ok((ExitStatus::from_raw(status), usage))
}

fn nameless() -> io::Result<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    Ok(rustix::fs::memfd_create("tenure-bench", flags)?.into())
}

fn read(file: &mut File) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut all)?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn output_and_usage_come_back() {
        let count = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; cat; echo $i";
        let ended = Running::start(&mut shell(count), Some("in ")).unwrap().finish().unwrap();
        assert_eq!(ended.output, b"in 20000\n");
        let Usage { cpu_ms, faults, peak_bytes } = ended.usage;
        assert!(cpu_ms > 1.0 && faults > 10.0 && peak_bytes > 5e5, "{:?}", ended.usage);
    }

    #[test]
    fn a_failure_says_what_the_program_said() {
        let failing = &mut shell("echo first >&2; echo last >&2; exit 3");
        let error = Running::start(failing, None).unwrap().finish().err().unwrap().to_string();
        assert!(error.contains("exit status: 3: last"), "{error}");
    }

    #[test]
    fn one_that_is_dropped_is_ended_with_its_children() {
        let mut running = Running::start(&mut shell("sleep 1000 & echo $!; wait"), None).unwrap();
        let sleeper = loop {
            let said = String::from_utf8(read(&mut running.output.try_clone().unwrap()).unwrap());
            if let Ok(pid) = said.unwrap().trim().parse::<u32>() {
                break pid;
            }
            running.is_alive().unwrap();
        };
        drop(running);
        // A killed process takes a moment to end, and is then at most a zombie for a while.
        let start = Instant::now();
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
            if !stat.contains("(sleep)") || stat.contains(") Z ") || stat.contains(") X ") {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{stat}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
