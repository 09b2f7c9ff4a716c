//! Writes to the program's descriptors that send the program no signal.

use super::kernel::call;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// The kernel's set of signals.
type Set = u64;

fn set_of(signal: i32) -> Set {
    1 << (signal - 1)
}

/// Writes as `write(2)`. A message to a closed pipe, or past RLIMIT_FSIZE, is lost: without this its
/// signal (SIGPIPE, SIGXFSZ) would end the program, or run a handler of it.
///
/// # Errors
/// As for `write(2)`.
pub fn write_quietly(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    const SIZE: i64 = size_of::<Set>() as i64;
    let both = set_of(libc::SIGPIPE) | set_of(libc::SIGXFSZ);
    let (mut before, mut pending): (Set, Set) = (0, 0);
    let (set, old) = ((&raw const both) as i64, (&raw mut before) as i64);
    let block = [libc::SIG_BLOCK.into(), set, old, SIZE, 0, 0];
    // SAFETY: the kernel reads the first set and writes the second, which are local.
    let is_blocked = unsafe { call(libc::SYS_rt_sigprocmask, block) }.is_ok();
    // SAFETY: the kernel writes the local set.
    let _ = unsafe { call(libc::SYS_rt_sigpending, [(&raw mut pending) as i64, SIZE, 0, 0, 0, 0]) };
    let written = rustix::io::write(fd, bytes);
    let raised = match written {
        Err(Errno::PIPE) => set_of(libc::SIGPIPE),
        Err(Errno::FBIG) => set_of(libc::SIGXFSZ),
        _ => 0,
    };
    // One that waits since before is the program's.
    if is_blocked && raised & !pending != 0 {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (set, time) = ((&raw const raised) as i64, (&raw const at_once) as i64);
        // SAFETY: the kernel reads the local set and the local time.
        while unsafe { call(libc::SYS_rt_sigtimedwait, [set, 0, time, SIZE, 0, 0]) }
            == Err(Errno::INTR)
        {}
    }
    if is_blocked {
        let restore = [libc::SIG_SETMASK.into(), old, 0, SIZE, 0, 0];
        // SAFETY: the kernel reads the local set, which it wrote before.
        let _ = unsafe { call(libc::SYS_rt_sigprocmask, restore) };
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use tenure_testkit::{in_child, this_test};

    fn waits(signal: i32) -> bool {
        // SAFETY: the C library initialises the local set, and only reads it after that.
        unsafe {
            let mut set = std::mem::MaybeUninit::uninit();
            libc::sigpending(set.as_mut_ptr());
            libc::sigismember(set.as_ptr(), signal) == 1
        }
    }

    /// Rust ignores SIGPIPE at the start.
    #[test]
    fn a_message_that_cannot_be_written_raises_no_signal_and_takes_none() {
        in_child(this_test!(), &[], || {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            // SAFETY: the default actions of two signals, and of one a block and a sending.
            unsafe {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
            }
            assert_eq!(write_quietly(writer.as_fd(), b"lost"), Err(Errno::PIPE));
            assert!(!waits(libc::SIGPIPE));
            let file = tempfile::tempfile().unwrap();
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the kernel reads the local.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &none) }, 0);
            assert_eq!(write_quietly(file.as_fd(), b"lost"), Err(Errno::FBIG));
            // SAFETY: blocks a signal for this thread, and sends it there.
            unsafe {
                let mut set = std::mem::MaybeUninit::uninit();
                libc::sigemptyset(set.as_mut_ptr());
                libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
                libc::raise(libc::SIGPIPE);
            }
            assert_eq!(write_quietly(writer.as_fd(), b"lost"), Err(Errno::PIPE));
            assert!(waits(libc::SIGPIPE), "the program's own signal is gone");
        });
    }
}
