//! Exact counts of the system calls that a section of code makes.

use super::notify::{supervise, Shared, When};
use super::Filter;
use crate::unavailable::Unavailable;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread;

/// The running count of a thread whose system calls are all reported before they are made.
#[derive(Debug)]
pub struct SyscallCount {
    shared: Arc<Shared>,
}

impl SyscallCount {
    /// System calls so far. Reading it makes none.
    pub fn now(&self) -> u64 {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// The section's result, and how many system calls it made.
    pub fn of<R>(&self, section: impl FnOnce() -> R) -> (R, u64) {
        let before = self.now();
        let result = section();
        (result, self.now() - before)
    }

    /// The section's result and the number of its calls, without those that other threads make
    /// meanwhile, such as a background thread that runs while a slow machine is still in the
    /// section.
    pub fn of_this_thread<R>(&self, section: impl FnOnce() -> R) -> (R, u64) {
        let calls = || self.shared.of_one_thread.load(Ordering::SeqCst);
        self.shared.one_thread.store(rustix::thread::gettid().as_raw_pid(), Ordering::SeqCst);
        let before = calls();
        let result = section();
        let made = calls() - before;
        self.shared.one_thread.store(0, Ordering::SeqCst);
        (result, made)
    }

    /// The number and count of each system call so far, for the message of a failed check.
    pub fn by_number(&self) -> Vec<(usize, u64)> {
        let counts = self.shared.by_number.iter().map(|n| n.load(Ordering::SeqCst));
        counts.enumerate().filter(|(_, n)| *n > 0).collect()
    }
}

/// Runs `body` on a thread of its own, and counts every system call of that thread and of the
/// threads that it starts. So work that is done once (thread-local set-up, first allocations) can
/// be done before the section that [`SyscallCount::of`] counts.
pub fn counting_syscalls<R: Send>(
    body: impl FnOnce(&SyscallCount) -> R + Send,
) -> Result<R, Unavailable> {
    let counted = thread::scope(|scope| {
        scope
            .spawn(|| {
                let shared = Arc::new(Shared::new(0, When::Never));
                let mut filter = Filter::new();
                filter.otherwise = Some(libc::SECCOMP_RET_USER_NOTIF);
                supervise(&filter, &shared)?;
                Ok(body(&SyscallCount { shared }))
            })
            .join()
    });
    counted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How many system calls `section` makes, run on a thread of its own.
pub fn count_syscalls(section: impl FnOnce() + Send) -> Result<u64, Unavailable> {
    counting_syscalls(|count| count.of(section).1)
}
