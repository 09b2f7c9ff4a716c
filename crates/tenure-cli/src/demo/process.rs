//! One of the demo's two processes: this program again, with pipes for messages.

use super::wire;
use anyhow::Context;
use serde::{de::DeserializeOwned, Serialize};
use std::io::{self, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;
use tenure_command::call::failed;

/// The hidden command that is the worker.
pub const WORKER: &str = "demo-worker";
/// The hidden command that is its neighbour.
pub const NEIGHBOUR: &str = "demo-neighbour";

/// A process of the demo.
#[derive(Debug)]
pub struct Process {
    child: Child,
    to: Option<ChildStdin>,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts this program with a hidden `command`. Its messages arrive at the receiver, which is
    /// closed when the process ends.
    pub fn spawn<T>(command: &str) -> anyhow::Result<(Process, Receiver<T>)>
    where
        T: DeserializeOwned + Send + 'static,
    {
        // By its path, so that it has its name in the kernel's log and in `ps`; by the link, if the
        // file has been replaced since this program was started.
        let path = std::env::current_exe().ok().filter(|path| path.exists());
        let mut child = Command::new(path.unwrap_or_else(|| "/proc/self/exe".into()))
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed("exec", error))
            .with_context(|| format!("cannot start {command}"))?;
        let to = child.stdin.take();
        let from = child.stdout.take().context("a pipe was asked for")?;
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            // Ends with the process, or with the receiver; the kill of a process may cut a message
            // short.
            while let Ok(Some(message)) = wire::receive(&mut from) {
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        Ok((Process { child, to, status: None }, receiver))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a message. For a process that has just died that is no error: its death is noticed
    /// elsewhere.
    pub fn tell<T: Serialize>(&mut self, message: &T) -> anyhow::Result<()> {
        let Some(to) = &mut self.to else {
            return Ok(());
        };
        match wire::send(to, message) {
            Err(e)
                if e.downcast_ref::<io::Error>().map(io::Error::kind)
                    == Some(io::ErrorKind::BrokenPipe) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// How it ended; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Kills it as the kernel would.
    pub fn kill(&mut self) {
        // The standard library knows when the process has been reaped, and then sends no signal.
        let _ = self.child.kill();
    }

    /// Bytes of its own memory; 0 once it is gone. Pages of files, such as the program itself, are
    /// not counted: they are shared with this process and charged to its cgroup.
    pub fn resident(&self) -> u64 {
        own_bytes(&self.pid().to_string())
    }
}

/// Bytes of a process's own memory, by its id or "self".
pub fn own_bytes(process: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm"));
    text.map_or(0, |text| own_pages(&text)) * rustix::param::page_size() as u64
}

/// From the second and third number of a statm line: resident pages less those of files.
fn own_pages(statm: &str) -> u64 {
    let mut numbers = statm.split_ascii_whitespace().skip(1).map_while(|n| n.parse::<u64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(resident), Some(shared)) => resident.saturating_sub(shared),
        _ => 0,
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of its input tells it to exit; this does not wait for a process that hangs.
        self.to = None;
        for _ in 0..50 {
            if self.ended().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
        let _ = self.child.wait();
    }
}

/// The next message within `patience`; an error that names the process if none comes.
pub fn expect<T>(
    from: &Receiver<T>,
    process: &mut Process,
    patience: Duration,
) -> anyhow::Result<T> {
    from.recv_timeout(patience).map_err(|e| {
        let how = match (e, process.ended()) {
            (RecvTimeoutError::Timeout, _) => "does not respond".to_string(),
            (_, Some(status)) => format!("ended early: {}", describe(status)),
            (_, None) => "closed its pipe".to_string(),
        };
        anyhow::anyhow!("a process of the demo (pid {}) {how}", process.pid())
    })
}

/// Ctrl-C and the terminal's end reach all processes of the terminal. They are for the demo, which
/// ends the others.
pub fn ignore_interrupts() -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT};
    for signal in [SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// `signal 9` or `exit status 1`.
pub fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("{status}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn own_memory_is_what_no_file_backs() {
        assert_eq!(super::own_pages("5000 1200 200 300 0 900 0\n"), 1000);
        assert_eq!(super::own_pages(""), 0);
        assert_eq!(super::own_pages("0 0 0 0 0 0 0"), 0);
    }
}
