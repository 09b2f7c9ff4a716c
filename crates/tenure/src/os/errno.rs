//! `errno`, for code that runs where a program does not expect a system call.

use rustix::io::Errno;

/// `errno` of the C library's call that just failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// How often a call is made again that fails with `EAGAIN`. The kernel says so for what passes in a moment, and also for
/// want of memory, and a filter may say so for good.
const ATTEMPTS: u32 = 1000;

/// Makes a call again while a signal interrupts it, or the kernel says that it may work in a moment.
///
/// # Errors
/// The call's; `EAGAIN` if the moment does not come.
pub(crate) fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut attempts = 0;
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if attempts < ATTEMPTS => {
                attempts += 1;
                // SAFETY: no arguments. Not by the standard library, which a signal's handler may not enter.
                unsafe { libc::sched_yield() };
            }
            other => return other,
        }
    }
}

/// Does something and puts the thread's `errno` back to what it was.
pub(crate) fn kept<R>(act: impl FnOnce() -> R) -> R {
    let _kept = Kept::now();
    act()
}

/// Puts the thread's `errno` back when it is dropped.
pub(crate) struct Kept(i32);

impl Kept {
    pub fn now() -> Kept {
        // SAFETY: the thread's own errno; always valid.
        Kept(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the C library gives the address of the calling thread's own errno, which is
        // always valid.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
