//! Background threads that stay out of the program's way.

use std::io;
use std::mem::MaybeUninit;

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
    // A new thread inherits the mask.
    let spawned = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(256 << 10)
        .spawn(body);
    // SAFETY: `before` was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    spawned
}
