//! The kernel's numbers of threads.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Returns the kernel's number of the calling thread.
pub(crate) fn own() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns whether the kernel has no thread of this number in the process. Then calls that only a
/// process with one thread may make (unshare, setns) no longer count it.
pub(crate) fn has_ended(number: i32) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: signal 0 reaches no thread; the kernel only looks for the thread.
    let found = unsafe { libc::syscall(libc::SYS_tgkill, process, number, 0) };
    found < 0 && super::errno::last_errno() == rustix::io::Errno::SRCH
}

/// How long the kernel may take to end a thread. Where the thread closes a source of pressure reports,
/// the kernel waits for all its readers (`synchronize_rcu`): up to 3.0 s in one series on a busy
/// machine, and once more than 5 s.
pub(crate) const CLOSING: Duration = Duration::from_secs(30);

/// Waits until the kernel has no thread of this number; 0: none. The number is 0 then, because a
/// thread of the program's may get it next. `false`: the kernel has one until then.
pub(crate) fn wait_for_end(number: &AtomicI32, until: Instant) -> bool {
    wait_for_end_of(number.load(Ordering::Acquire), number, until)
}

/// As [`wait_for_end`], for the thread of which `number` was `last`. Another one may have been
/// started since.
pub(crate) fn wait_for_end_of(last: i32, number: &AtomicI32, until: Instant) -> bool {
    while last != 0 && !has_ended(last) {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    // Not that of a thread that has been started meanwhile.
    let _ = number.compare_exchange(last, 0, Ordering::AcqRel, Ordering::Relaxed);
    true
}

/// Returns whether the main thread has ended (`pthread_exit`). The kernel keeps its number for the
/// process, but `/proc/self` has no descriptors, no mounts and the root cgroup then. `true` without
/// `/proc`, too.
pub(crate) fn main_has_ended() -> bool {
    // A thread that has ended has no working directory.
    let mut byte = [0_u8; 1];
    // SAFETY: the kernel reads a constant string, and writes one byte at most.
    unsafe { libc::readlink(c"/proc/self/cwd".as_ptr(), byte.as_mut_ptr().cast(), 1) < 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_thread_that_has_ended_is_forgotten() {
        let number = AtomicI32::new(std::thread::spawn(own).join().unwrap());
        assert!(wait_for_end(&number, Instant::now() + Duration::from_secs(60)));
        assert_eq!(number.load(Ordering::Relaxed), 0);
        number.store(own(), Ordering::Relaxed);
        assert!(!wait_for_end(&number, Instant::now()));
        assert_eq!(number.load(Ordering::Relaxed), own());
    }
}
