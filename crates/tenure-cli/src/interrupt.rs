//! Ctrl-C, SIGTERM and the end of the terminal (SIGHUP) as a flag, and as a descriptor for a sleeping thread.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tenure_command::call::failed;

/// Set by the first such signal; the second one ends the process by default.
#[derive(Debug)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    wakes: UnixStream,
}

/// Returns whether the program was started with SIGHUP ignored, as `nohup` does. (A script's shell has
/// its background programs ignore SIGINT. Who sends that nevertheless means it.)
#[allow(unsafe_code, reason = "asks for a signal's disposition")]
fn ignores_the_terminal() -> bool {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with a null second argument the call only writes the local structure.
    let now = unsafe {
        libc::sigaction(SIGHUP, std::ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    now.sa_sigaction == libc::SIG_IGN
}

/// The signals by which a user or the system ends a program that runs: Ctrl-C, SIGTERM, and SIGHUP unless it
/// is ignored.
pub fn ending_signals() -> impl Iterator<Item = i32> {
    let hangup = (!ignores_the_terminal()).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangup)
}

impl Interrupt {
    /// Installs the handlers.
    pub fn catch() -> io::Result<Interrupt> {
        Interrupt::installed().map_err(|error| failed("catching signals", error))
    }

    fn installed() -> io::Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        let (wakes, writes) = UnixStream::pair()?;
        for signal in ending_signals() {
            // It runs first, so that it sees the flag of the signal before.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, writes.try_clone()?)?;
        }
        Ok(Interrupt { flag, wakes })
    }

    /// The flag.
    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Returns whether such a signal came.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Sleeps until a signal comes, `also` is readable, or so much time has passed.
    pub fn sleep(&self, also: Option<BorrowedFd<'_>>, most: Option<Duration>) -> io::Result<()> {
        let most = most.map(|most| Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: most.subsec_nanos().into(),
        });
        let mut fds = vec![PollFd::from_borrowed_fd(self.wakes.as_fd(), PollFlags::IN)];
        fds.extend(also.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, most.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
