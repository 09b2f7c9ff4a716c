//! A program as a process: started, waited for, and ended with its children.

#![allow(unsafe_code, reason = "ends the group of a process")]

use super::starter::Usage;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// What a program has written.
pub(super) struct Ended {
    pub output: Vec<u8>,
    pub complaints: String,
}

/// A process in a group of its own. Its drop kills the whole group.
pub(super) struct Running {
    child: Child,
    output: File,
    complaints: File,
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
        Ok(Running { child: command.spawn()?, output, complaints, waited: false })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it failed, with the last line of its complaint.
    pub fn finish(mut self) -> io::Result<Ended> {
        let status = self.child.wait()?;
        self.waited = true;
        if !status.success() {
            return Err(io::Error::other(format!("{status}: {}", self.complaint()?)));
        }
        Ok(Ended { output: read(&mut self.output)?, complaints: self.complaints()? })
    }

    fn complaints(&mut self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&read(&mut self.complaints)?).into_owned())
    }

    /// The last line of its standard error that is not a starter's.
    fn complaint(&mut self) -> io::Result<String> {
        let said = self.complaints()?;
        let is_complaint = |line: &&str| !line.trim().is_empty() && Usage::of(line).is_err();
        Ok(said.lines().rfind(is_complaint).unwrap_or("(silent)").trim().to_owned())
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
    use std::time::{Duration, Instant};

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn output_comes_back() {
        let ended =
            Running::start(&mut shell("cat; echo $((1 + 1)); echo all well >&2"), Some("in "));
        let Ended { output, complaints } = ended.unwrap().finish().unwrap();
        assert_eq!((&output[..], &complaints[..]), (&b"in 2\n"[..], "all well\n"));
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
