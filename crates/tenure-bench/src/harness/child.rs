//! Work in a forked process, so that its mappings, locks and handlers end with it.

#![allow(unsafe_code, reason = "forks, and sets signals back")]

use rustix::pipe::pipe;
use rustix::process::{set_parent_process_death_signal, Signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// A child's message through its pipe.
#[derive(Serialize, Deserialize)]
enum Said<T> {
    Done(T),
    /// It cannot be measured here, with the reason.
    Unsupported(String),
    Failed(String),
}

/// A working forked process.
pub struct Child<T> {
    pid: libc::pid_t,
    said: File,
    result: PhantomData<T>,
}

impl<T: Serialize + DeserializeOwned> Child<T> {
    /// Forks and runs `body` in the child, which ends with it: no destructor of the parent's state
    /// runs there.
    ///
    /// # Errors
    /// Errors of `pipe` and `fork`.
    pub fn start(body: impl FnOnce() -> io::Result<T>) -> io::Result<Child<T>> {
        let (reader, writer) = pipe()?;
        // SAFETY: the child calls only `body`. glibc keeps its allocator usable after a fork, and
        // tenure keeps its own locks. This crate holds no lock, and `body` does not use those of
        // other threads.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(reader);
                speak(File::from(writer), body);
                // SAFETY: ends this process at once, without the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Child { pid, said: reader.into(), result: PhantomData }),
        }
    }

    /// Waits for its result.
    ///
    /// # Errors
    /// The body's own error; or the cause of its death.
    pub fn join(mut self) -> io::Result<T> {
        let mut said = Vec::new();
        let read = self.said.read_to_end(&mut said);
        let status = self.reap()?;
        read?;
        if libc::WIFSIGNALED(status) {
            let signal = libc::WTERMSIG(status);
            return Err(io::Error::other(format!("its process was killed by signal {signal}")));
        }
        match serde_json::from_slice(&said) {
            Ok(Said::Done(result)) => Ok(result),
            Ok(Said::Unsupported(why)) => Err(io::Error::new(io::ErrorKind::Unsupported, why)),
            Ok(Said::Failed(why)) => Err(io::Error::other(why)),
            Err(_) => Err(io::Error::other("its process ended without a result")),
        }
    }

    fn reap(&mut self) -> io::Result<libc::c_int> {
        let mut status = 0;
        loop {
            // SAFETY: the kernel writes one int; the child belongs to this process and was not
            // waited for.
            match unsafe { libc::waitpid(self.pid, &mut status, 0) } {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => return Err(io::Error::last_os_error()),
                _ => {
                    self.pid = 0;
                    return Ok(status);
                }
            }
        }
    }
}

impl<T> Drop for Child<T> {
    fn drop(&mut self) {
        if self.pid > 0 {
            // SAFETY: a child of this process that was not waited for, so the id is still its own.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

fn speak<T: Serialize>(mut to: File, body: impl FnOnce() -> io::Result<T>) {
    end_by_signals();
    // No process would read the result of a child that outlives its parent.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let said = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(result)) => Said::Done(result),
        Ok(Err(error)) if error.kind() == io::ErrorKind::Unsupported => {
            Said::Unsupported(error.to_string())
        }
        Ok(Err(error)) => Said::Failed(error.to_string()),
        Err(_) => Said::Failed("its process panicked".into()),
    };
    if let Ok(text) = serde_json::to_vec(&said) {
        let _ = to.write_all(&text);
    }
}

/// Ctrl-C ends a child at once. Its parent, which keeps the finished results, only notes the
/// signal. Signals that this program's starter has ignored stay ignored.
fn end_by_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: sigaction is plain data, for which zeros are valid. The kernel writes one;
        // setting the default action installs no code.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut now) == 0
                && now.sa_sigaction != libc::SIG_IGN
            {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// Runs `body` in a process of its own.
///
/// # Errors
/// As for [`Child::start`] and [`Child::join`].
pub fn in_process<T: Serialize + DeserializeOwned>(
    body: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    Child::start(body)?.join()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_errors_come_back() {
        let parent = std::process::id();
        let (child, sum) = in_process(|| Ok((std::process::id(), u64::MAX))).unwrap();
        assert_ne!(child, parent);
        assert_eq!(sum, u64::MAX);
        let error = in_process::<u8>(|| {
            Err(io::Error::new(io::ErrorKind::Unsupported, "no such call here"))
        })
        .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert_eq!(error.to_string(), "no such call here");
    }

    #[test]
    fn a_death_is_told_and_left_to_the_child() {
        let error = in_process::<u8>(|| {
            // SAFETY: kills this process, which is the child.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            Ok(0)
        })
        .unwrap_err();
        assert!(error.to_string().contains("signal 9"), "{error}");
    }

    #[test]
    fn one_that_is_not_waited_for_is_ended() {
        let child = Child::<u8>::start(|| loop {
            std::thread::park();
        })
        .unwrap();
        let pid = child.pid;
        drop(child);
        // SAFETY: signal 0 only asks whether the process is there.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
    }
}
