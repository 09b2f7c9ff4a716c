//! The kernel's numbers of threads.

use super::{kernel, small_file};
use std::ffi::CStr;
use std::io::Write;
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
    let found =
        unsafe { kernel::call(libc::SYS_tgkill, [process.into(), number.into(), 0, 0, 0, 0]) };
    found == Err(rustix::io::Errno::SRCH)
}

/// How much longer a thread is waited for while the kernel works for it. A thread that closes a source
/// of pressure reports waits for all readers of the kernel (`synchronize_rcu`): up to 3.0 s in one
/// series on a busy machine, and once more than 5 s.
const CLOSING: Duration = Duration::from_secs(30);
/// After such a wait the thread has to run once more.
const TO_RUN: Duration = Duration::from_secs(1);

/// Waits until the kernel has no thread of this number; 0: none. The number is 0 then, because a
/// thread of the program's may get it next. `false`: the kernel has one until then.
pub(crate) fn wait_for_end(number: &AtomicI32, until: Instant) -> bool {
    wait_for_end_of(number.load(Ordering::Acquire), number, until)
}

/// As [`wait_for_end`], for the thread of which `number` was `last`. Another one may have been
/// started since.
pub(crate) fn wait_for_end_of(last: i32, number: &AtomicI32, until: Instant) -> bool {
    let (mut until, latest) = (until, until + CLOSING);
    while last != 0 && !has_ended(last) {
        let now = Instant::now();
        if now > until {
            if now > latest || !is_in_the_kernel(last) {
                return false;
            }
            until = now + TO_RUN;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    // Not that of a thread that has been started meanwhile.
    let _ = number.compare_exchange(last, 0, Ordering::AcqRel, Ordering::Relaxed);
    true
}

/// Returns whether the thread sleeps in the kernel and nothing but the kernel can wake it. Otherwise it
/// may wait for a lock, of the program's allocator for example, and the owner may be stopped until
/// the caller goes on.
fn is_in_the_kernel(number: i32) -> bool {
    let mut buffer = [0; 512];
    // The name, in parentheses, may have any bytes.
    let state =
        |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['D', 'I']));
    file_of(number, "stat", &mut buffer).is_some_and(state)
}

/// Returns whether the thread has a name that none of tenure's has: it is the program's, and has the
/// number of a thread that has ended.
pub(super) fn is_programs(number: i32) -> bool {
    let mut buffer = [0; 64];
    file_of(number, "comm", &mut buffer).is_some_and(|name| !name.starts_with("tenure-"))
}

fn file_of<'a>(number: i32, name: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
    let mut path = [0; 64];
    write!(&mut path[..], "/proc/thread-self/../{number}/{name}\0").ok()?;
    small_file::read(CStr::from_bytes_until_nul(&path).ok()?, buffer).ok()
}

/// Returns whether the main thread has ended (`pthread_exit`). The kernel keeps its number for the
/// process, but `/proc/self` has no descriptors, no mounts and the root cgroup then. `true` without
/// `/proc`, too.
pub(crate) fn main_has_ended() -> bool {
    // A thread that has ended has no working directory.
    let mut byte = [0_u8; 1];
    rustix::fs::readlinkat_raw(rustix::fs::CWD, c"/proc/self/cwd", &mut byte).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;

    #[test]
    fn the_number_of_a_thread_that_has_ended_is_forgotten() {
        let number = AtomicI32::new(std::thread::spawn(own).join().unwrap());
        assert!(wait_for_end(&number, Instant::now() + Duration::from_secs(60)));
        assert_eq!(number.load(Ordering::Relaxed), 0);
        number.store(own(), Ordering::Relaxed);
        assert!(!wait_for_end(&number, Instant::now()));
        assert_eq!(number.load(Ordering::Relaxed), own());
    }

    extern "C" fn reads(pipe: *mut libc::c_void) -> libc::c_int {
        let mut byte = 0u8;
        // SAFETY: the kernel writes the local.
        unsafe { libc::read(pipe.addr() as i32, (&raw mut byte).cast(), 1) as i32 }
    }

    /// The parent of a vfork sleeps so until its child has ended.
    #[test]
    fn a_thread_that_only_the_kernel_can_wake_is_known() {
        assert!(!is_in_the_kernel(own()));
        assert!(!is_in_the_kernel(i32::MAX), "there is none");
        let (tell, number) = std::sync::mpsc::channel();
        let (read, write) = std::io::pipe().unwrap();
        let parent = std::thread::spawn(move || {
            let mut stack = vec![0_u64; 4096];
            tell.send(own()).unwrap();
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            // SAFETY: the child has a stack of its own, which this thread keeps while it sleeps, and
            // makes one system call.
            unsafe {
                let top = stack.as_mut_ptr().add(stack.len()).cast();
                let pipe = std::ptr::without_provenance_mut(read.as_raw_fd() as usize);
                let child = libc::clone(reads, top, flags, pipe);
                child > 0 && libc::waitpid(child, std::ptr::null_mut(), 0) == child
            }
        });
        let number = number.recv().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // Once is enough: it may have waited for a lock of the address space.
        let mut is_seen = is_in_the_kernel(number);
        while !is_seen && Instant::now() < deadline {
            std::thread::yield_now();
            is_seen = is_in_the_kernel(number);
        }
        // The child ends. (It has a copy of this end of the pipe, too.)
        rustix::io::write(&write, b"x").unwrap();
        assert!(is_seen);
        assert!(parent.join().unwrap());
    }
}
