//! `errno`, for code that makes system calls where a program does not expect any.

use rustix::io::Errno;

/// Returns `errno` of the C library's call that just failed.
pub(crate) fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// How often a call that fails with `EAGAIN` is made again. The kernel returns it for a state that
/// passes in a moment, and also for a lack of memory. A filter may return it always.
const ATTEMPTS: u32 = 1000;

/// Makes a call again while a signal interrupts it, or while the kernel returns `EAGAIN`.
///
/// # Errors
/// The call's own; `EAGAIN` if every attempt fails with it.
pub(crate) fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut attempts = 0;
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if attempts < ATTEMPTS => {
                attempts += 1;
                super::futex::yield_now();
            }
            other => return other,
        }
    }
}

/// Runs `act` and restores the thread's `errno` afterwards.
pub(crate) fn kept<R>(act: impl FnOnce() -> R) -> R {
    let _kept = Kept::now();
    act()
}

/// Restores the thread's `errno` when it is dropped.
pub(crate) struct Kept(i32);

impl Kept {
    pub fn now() -> Kept {
        // SAFETY: the C library returns the address of the calling thread's own errno, which is
        // always valid.
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
