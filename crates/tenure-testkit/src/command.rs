//! Programs that tests start.

use crate::Deadline;
use rustix::process::{kill_process_group, Pid, Signal};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;

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
    output_within_and(command, limit, LAST)
}

fn output_within_and(command: &mut Command, limit: Duration, last: Duration) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.process_group(0).spawn()?;
    let group = Pid::from_child(&child);
    let (send, ended) = channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let mut deadline = Deadline::after(limit);
    let mut is_killed = false;
    loop {
        match ended.recv_timeout(LOOK) {
            Ok(output) => {
                let mut output = output?;
                if is_killed {
                    let text = format!("\nIt was killed: it did not end in {limit:?}.\n");
                    output.stderr.extend(text.into_bytes());
                    // The program itself may have ended well, and left one that hung.
                    output.status = ExitStatus::from_raw(Signal::KILL.as_raw());
                }
                return Ok(output);
            }
            Err(RecvTimeoutError::Timeout) if !deadline.is_over() => {}
            Err(RecvTimeoutError::Timeout) if !is_killed => {
                let _ = kill_process_group(group, Signal::KILL);
                (is_killed, deadline) = (true, Deadline::after(last));
            }
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
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

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
        let began = Instant::now();
        let mut command = Command::new("sh");
        let command = command.args(["-c", "sleep 1000 & echo started; sleep 1000"]);
        let output = output_within(command, Duration::from_millis(300)).unwrap();
        assert_eq!(output.status.signal(), Some(9));
        assert_eq!(output.stdout, b"started\n");
        assert!(String::from_utf8_lossy(&output.stderr).contains("did not end in 300ms"));
        assert!(began.elapsed() < Duration::from_secs(900));
    }

    #[test]
    fn what_a_program_leaves_behind_is_a_failure() {
        let soon = Duration::from_millis(300);
        let left = output_within(Command::new("sh").args(["-c", "sleep 1000 &"]), soon).unwrap();
        assert!(!left.status.success());
        // It has left the group, so it is not killed.
        let file = std::env::temp_dir().join(format!("tenure-left-{}", std::process::id()));
        let outside =
            "setsid sh -c 'echo $$ >$0; exec sleep 1000' $0 & until [ -s $0 ]; do :; done";
        let mut command = Command::new("sh");
        // Long enough for the start of three programs from a slow disk.
        let error = output_within_and(command.args(["-c", outside]).arg(&file), 20 * soon, soon);
        let number = std::fs::read_to_string(&file);
        let number = number.unwrap_or_else(|none| panic!("{none}: {error:?}"));
        std::fs::remove_file(&file).unwrap();
        let left = Pid::from_raw(number.trim().parse().unwrap()).unwrap();
        kill_process(left, Signal::KILL).unwrap();
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
