//! Programs that tests start.

use crate::Deadline;
use rustix::process::{kill_process_group, Pid, Signal};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often the deadline is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long the kernel may take to end what was killed.
const LAST: Duration = Duration::from_secs(10);

/// Runs a program without input to its end, with the processes that it starts in its group, and
/// returns its output. If the program, or one that keeps its output open, hangs, all are killed, and so
/// says the status: after `limit`, and the time for which the machine [stalls](Deadline). A bound inside
/// the program would know nothing of such stalls.
///
/// # Errors
/// As [`Command::output`]. `TimedOut`: a process that left the group keeps the output open.
pub fn output_within(command: &mut Command, limit: Duration) -> io::Result<Output> {
    output_before(command, Deadline::after(limit))
}

fn output_before(command: &mut Command, deadline: Deadline) -> io::Result<Output> {
    let mut last = None;
    let is_late = || last.get_or_insert_with(|| Deadline::after(LAST)).is_over();
    output_until(command, || deadline.is_over(), is_late)
}

/// Ends the program once it `hangs`, and waits for its output until that `is_late`.
fn output_until(
    command: &mut Command,
    mut hangs: impl FnMut() -> bool,
    mut is_late: impl FnMut() -> bool,
) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.process_group(0).spawn()?;
    let group = Pid::from_child(&child);
    let (send, ended) = channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let began = Instant::now();
    let mut is_killed = false;
    loop {
        match ended.recv_timeout(LOOK) {
            Ok(output) => {
                let mut output = output?;
                if is_killed {
                    let text =
                        format!("\nIt was killed: it did not end in {:?}.\n", began.elapsed());
                    output.stderr.extend(text.into_bytes());
                    // The program itself may have ended well, and left one that hung.
                    output.status = ExitStatus::from_raw(Signal::KILL.as_raw());
                }
                return Ok(output);
            }
            Err(RecvTimeoutError::Timeout) if !is_killed => {
                if hangs() {
                    let _ = kill_process_group(group, Signal::KILL);
                    is_killed = true;
                }
            }
            Err(RecvTimeoutError::Timeout) if !is_late() => {}
            Err(RecvTimeoutError::Timeout) => {
                let text = format!("{command:?} left a process that keeps its output open");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the thread that waits for the program has ended"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::kill_process;
    use std::path::PathBuf;

    const LONG: Duration = Duration::from_secs(60);

    /// A file that a program writes when all of it has started. What is killed then hangs on any
    /// machine, so these tests need no time limit, which would be long on a busy one.
    struct Started(PathBuf);

    impl Started {
        fn new(name: &str) -> Started {
            let file = format!("tenure-{name}-{}", std::process::id());
            let file = std::env::temp_dir().join(file);
            let _ = std::fs::remove_file(&file); // of a killed run
            Started(file)
        }

        /// Ends with the file's last line, and where there is none for long.
        fn look(&self) -> impl FnMut() -> bool + '_ {
            let deadline = Deadline::after(LONG);
            let is_whole = |text: Vec<u8>| text.ends_with(b"\n");
            move || std::fs::read(&self.0).is_ok_and(is_whole) || deadline.is_over()
        }
    }

    impl Drop for Started {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn what_ends_in_time_keeps_its_output() {
        let mut command = Command::new("sh");
        let output =
            output_within(command.args(["-c", "echo out; echo err >&2; exit 3"]), LONG).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert!(output_within(&mut Command::new("/there/is/none"), LONG).is_err());
    }

    /// Also a process that the program has started, and that keeps its output open.
    #[test]
    fn what_hangs_is_killed_with_what_it_has_started() {
        let file = Started::new("hangs");
        let mut command = Command::new("sh");
        let text = "sleep 1000 & echo started; echo >$0; sleep 1000";
        let command = command.args(["-c", text]).arg(&file.0);
        let output = output_until(command, file.look(), || false).unwrap();
        assert_eq!(output.status.signal(), Some(9));
        assert_eq!(output.stdout, b"started\n");
        assert!(String::from_utf8_lossy(&output.stderr).contains("did not end in"));
    }

    #[test]
    fn a_limit_ends_what_hangs() {
        let mut deadline = Deadline::after(Duration::from_millis(300));
        deadline.most = Duration::ZERO; // a sleep needs no processor
        let output = output_before(Command::new("sleep").arg("1000"), deadline).unwrap();
        assert_eq!(output.status.signal(), Some(9));
    }

    #[test]
    fn what_a_program_leaves_behind_is_a_failure() {
        let file = Started::new("leaves");
        let mut command = Command::new("sh");
        let ends =
            "sleep 1000 & { until grep -q ') Z' /proc/$$/stat; do sleep 0.01; done; echo >$0; } &";
        let command = command.args(["-c", ends]).arg(&file.0);
        let left = output_until(command, file.look(), || false).unwrap();
        assert_eq!(left.status.signal(), Some(9));
    }

    #[test]
    fn what_has_left_the_group_is_not_waited_for() {
        let file = Started::new("outside");
        let outside =
            "setsid sh -c 'echo $$ >$0; exec sleep 1000' $0 & until [ -s $0 ]; do sleep 0.01; done";
        let mut command = Command::new("sh");
        let command = command.args(["-c", outside]).arg(&file.0);
        let error = output_until(command, file.look(), || true);
        let number = std::fs::read_to_string(&file.0).unwrap();
        let left = Pid::from_raw(number.trim().parse().unwrap()).unwrap();
        kill_process(left, Signal::KILL).unwrap();
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
