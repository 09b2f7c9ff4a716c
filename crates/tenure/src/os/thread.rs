//! Background threads that stay out of the program's way.

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

/// From here on the calling thread takes no processor from a thread that is running on it; it gets its
/// fair share all the same (`SCHED_BATCH`). Refused, nothing changes.
pub(crate) fn wait_for_processors() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread; the structure is only read.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &priority) };
}

/// Calls `attempt` on the processor at hand, then on each that this thread may use, until it answers
/// `true`. The thread's affinity is as before afterwards.
///
/// New and freed pages wait on a short list of the processor that touched them, and `madvise` empties
/// that of its own processor only.
pub(crate) fn on_each_processor(mut attempt: impl FnMut() -> bool) {
    use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
    if attempt() {
        return;
    }
    let Ok(allowed) = sched_getaffinity(None) else { return };
    // More than once: another thread's look at a page (a walk of smaps, a migration) holds it for a
    // moment.
    'passes: for pass in 0..4u64 {
        std::thread::sleep(std::time::Duration::from_millis(pass));
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)) {
            let mut one = CpuSet::new();
            one.set(cpu);
            if sched_setaffinity(None, &one).is_ok() && attempt() {
                break 'passes;
            }
        }
    }
    let _ = sched_setaffinity(None, &allowed);
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
