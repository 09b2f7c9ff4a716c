//! A supervisor thread that decides about each call of a kind before the kernel makes it.

#![allow(unsafe_code, reason = "answers the kernel through a descriptor")]

use super::{Call, Errno, Filter};
use crate::unavailable::Unavailable;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Which calls fail, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Only this one.
    Nth(u64),
    /// This one and all later ones.
    FromNth(u64),
    /// None: only count.
    Never,
}

/// Makes the Nth call of some kinds fail, on the thread that installs it and those that it starts.
///
/// The other calls continue into the kernel unchanged. Calls are numbered in the order in which
/// they are made, across threads. The kernel allows one such supervisor for a thread, so all the
/// kinds go into one. It stays until the threads end, also after this value is dropped.
#[derive(Debug)]
pub struct NthFailure {
    shared: Arc<Shared>,
}

impl NthFailure {
    /// Watches `calls`, and fails those that `when` selects with `errno`.
    pub fn install(calls: &[Call], errno: Errno, when: When) -> Result<NthFailure, Unavailable> {
        let shared = Arc::new(Shared::new(errno.raw_os_error(), when));
        let filter = calls
            .iter()
            .fold(Filter::new(), |filter, call| filter.rule(*call, libc::SECCOMP_RET_USER_NOTIF));
        supervise(&filter, &shared)?;
        Ok(NthFailure { shared })
    }

    /// Calls of these kinds so far.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// How many of them were made to fail.
    pub fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::SeqCst)
    }

    /// Starts counting from zero again, with a new rule.
    pub fn rearm(&self, when: When) {
        let shared = &self.shared;
        shared.set_when(When::Never);
        shared.calls.store(0, Ordering::SeqCst);
        shared.failures.store(0, Ordering::SeqCst);
        shared.set_when(when);
    }
}

/// A supervisor counts numbers up to here one by one; higher ones share the last place.
pub(super) const NUMBERS: usize = 1024;

/// The state that the watched threads and the supervisor share. Atomics only: the supervisor must
/// never wait for a lock whose holder waits for the supervisor, and that also rules out allocation.
#[derive(Debug)]
pub(super) struct Shared {
    listener: AtomicI32,
    pub calls: AtomicU64,
    pub by_number: Box<[AtomicU64]>,
    /// The thread whose calls are also counted separately; 0: none.
    pub one_thread: AtomicI32,
    pub of_one_thread: AtomicU64,
    failures: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
    errno: i32,
    /// For how long the next call is stopped; 0: it is not.
    pub hold_for_ms: AtomicU64,
    /// Whether a call is stopped now.
    pub held: AtomicU64,
    /// The thread whose calls are never stopped.
    pub spared: AtomicI32,
}

const NOT_YET: RawFd = -1;
const FAILED: RawFd = -2;

impl Shared {
    pub fn new(errno: i32, when: When) -> Shared {
        let shared = Shared {
            listener: AtomicI32::new(NOT_YET),
            calls: AtomicU64::new(0),
            by_number: (0..NUMBERS).map(|_| AtomicU64::new(0)).collect(),
            one_thread: AtomicI32::new(0),
            of_one_thread: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
            errno,
            hold_for_ms: AtomicU64::new(0),
            held: AtomicU64::new(0),
            spared: AtomicI32::new(0),
        };
        shared.set_when(when);
        shared
    }

    fn set_when(&self, when: When) {
        // Narrowing first, so that no moment in between fails more calls than either rule would.
        let (first, last) = match when {
            When::Nth(n) => (n, n),
            When::FromNth(n) => (n, u64::MAX),
            When::Never => (u64::MAX, 0),
        };
        self.last.store(0, Ordering::SeqCst);
        self.first.store(first, Ordering::SeqCst);
        self.last.store(last, Ordering::SeqCst);
    }

    /// Until when a call is stopped, if it is.
    fn held_until(&self, thread: u32) -> Option<Instant> {
        if i32::try_from(thread) == Ok(self.spared.load(Ordering::SeqCst)) {
            return None;
        }
        // One call at a time.
        let longest = self.hold_for_ms.swap(0, Ordering::SeqCst);
        (longest > 0).then(|| {
            self.held.store(1, Ordering::SeqCst);
            Instant::now() + Duration::from_millis(longest)
        })
    }

    /// Counts a call. Returns the error with which it must fail; 0 lets it continue.
    fn judge(&self, thread: u32, number: i32) -> i32 {
        if i32::try_from(thread) == Ok(self.one_thread.load(Ordering::SeqCst)) {
            self.of_one_thread.fetch_add(1, Ordering::SeqCst);
        }
        let nth = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let place = usize::try_from(number).unwrap_or(NUMBERS).min(NUMBERS - 1);
        self.by_number[place].fetch_add(1, Ordering::SeqCst);
        let (first, last) = (self.first.load(Ordering::SeqCst), self.last.load(Ordering::SeqCst));
        if (first..=last).contains(&nth) {
            self.failures.fetch_add(1, Ordering::SeqCst);
            self.errno
        } else {
            0
        }
    }
}

/// Puts the filter onto the calling thread and starts a thread that answers its notifications.
///
/// The supervisor starts first, so that it does not inherit the filter: its own calls (and those of
/// its exit, such as madvise on its stack) would wait for itself. It reads the descriptor from an
/// atomic from time to time: waking it would be a system call of the filtered thread, which would
/// wait. It lives until the last filtered thread is gone. If it ended earlier, their calls would
/// fail with ENOSYS.
pub(super) fn supervise(filter: &Filter, shared: &Arc<Shared>) -> Result<(), Unavailable> {
    let for_thread = Arc::clone(shared);
    thread::Builder::new()
        .name("seccomp-watch".into())
        .spawn(move || {
            let fd = loop {
                match for_thread.listener.load(Ordering::Acquire) {
                    NOT_YET => thread::sleep(Duration::from_micros(50)),
                    FAILED => return,
                    fd => break fd,
                }
            };
            // SAFETY: the kernel has just made this descriptor for the listener, and no other code
            // has its number.
            answer_all(unsafe { OwnedFd::from_raw_fd(fd) }, &for_thread);
        })
        .map_err(|e| Unavailable::new(format!("no thread to watch system calls with: {e}")))?;
    let listen = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // With this flag (Linux 5.19) a signal does not make a waiting call start again, which would
    // count it twice. An older kernel refuses the unknown flag before it installs anything.
    let installed = filter
        .install(listen | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
        .or_else(|_| filter.install(listen));
    let fd = installed.as_ref().map_or(FAILED, |fd| *fd as RawFd);
    shared.listener.store(fd, Ordering::Release);
    installed.map(drop)
}

/// A kernel's notification, with space for fields that later kernels may add.
#[repr(C)]
union Notification {
    known: libc::seccomp_notif,
    room: [u64; 64],
}

#[repr(C)]
union Response {
    known: libc::seccomp_notif_resp,
    room: [u64; 64],
}

fn answer_all(listener: OwnedFd, shared: &Shared) {
    // The call that is stopped, and until when.
    let mut stopped: Option<(u64, Instant)> = None;
    let moment = Timespec { tv_sec: 0, tv_nsec: 500_000 };
    loop {
        if let Some((id, until)) = stopped {
            if shared.held.load(Ordering::SeqCst) == 0 || Instant::now() >= until {
                shared.held.store(0, Ordering::SeqCst);
                answer(&listener, id, Some(0));
                stopped = None;
            }
        }
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        match poll(&mut fds, stopped.map(|_| &moment)) {
            Ok(0) => continue,
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        let events = fds[0].revents();
        if !events.contains(PollFlags::IN) {
            // Hung up: no thread has the filter any more.
            return;
        }
        let Some(asked) = notification(&listener) else { continue };
        let (id, thread, number) = (asked.id, asked.thread, asked.number);
        let errno = shared.judge(thread, number);
        match shared.held_until(thread) {
            Some(until) if stopped.is_none() => stopped = Some((id, until)),
            _ => answer(&listener, id, Some(errno)),
        }
    }
}

/// A system call that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub(super) id: u64,
    /// The thread that makes it.
    pub thread: u32,
    /// Its number.
    pub number: i32,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// The address behind the instruction that makes the call.
    pub at: u64,
}

/// Takes the next call that waits. `None`: its caller died or was interrupted in between.
pub(super) fn notification(listener: &OwnedFd) -> Option<Asked> {
    // The kernel requires zeroes here.
    let mut asked = Notification { room: [0; 64] };
    let fd = listener.as_raw_fd();
    // SAFETY: the buffer is larger than any notification and lives through the call.
    if unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &mut asked) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so the kernel has filled in the fields that every version has;
    // all are plain numbers.
    let known = unsafe { asked.known };
    let data = known.data;
    Some(Asked {
        id: known.id,
        thread: known.pid,
        number: data.nr,
        arguments: data.args,
        at: data.instruction_pointer,
    })
}

/// Lets a call continue (0), fail with an error, or return 0 without being made (`None`).
pub(super) fn answer(listener: &OwnedFd, id: u64, errno: Option<i32>) {
    let mut response = Response { room: [0; 64] };
    response.known = libc::seccomp_notif_resp {
        id,
        val: 0,
        error: -errno.unwrap_or(0),
        flags: if errno == Some(0) { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 },
    };
    let fd = listener.as_raw_fd();
    // SAFETY: the buffer lives through the call. If the caller is gone by now, the kernel returns
    // an error.
    unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND, &mut response) };
}
