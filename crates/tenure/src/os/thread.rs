//! Background threads that stay out of the program's way.
//!
//! They set no scheduling policy, priority or affinity: systemd's `@resources` group has all three, and
//! a unit with `SystemCallFilter=~@resources` kills the process for the attempt. On Linux 6.18 the
//! policy `SCHED_BATCH` made no difference to a thread that wakes one on its own processor.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that [`spawn_quiet`] has started and that run.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn running() -> usize {
    RUNNING.load(Ordering::SeqCst)
}

/// In a forked child: none came along.
pub(crate) fn reset_in_child() {
    RUNNING.store(0, Ordering::SeqCst);
}

struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Starts a thread with every signal blocked: a program's handlers run on the program's threads.
pub(crate) fn spawn_quiet(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set it is given; pthread_sigmask reads the first set and
    // writes the second, both local.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let counted = move || {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        let _counted = Counted;
        body();
    };
    // A new thread inherits the mask.
    let spawned =
        std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(counted);
    // SAFETY: `before` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    spawned
}

/// Blocks that the calling thread has had read from disks so far; always 0 where the kernel does not
/// count them (CONFIG_TASK_IO_ACCOUNTING).
pub(crate) fn disk_reads() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure it is given, or fails and leaves the zeros.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_inblock as u64
}
