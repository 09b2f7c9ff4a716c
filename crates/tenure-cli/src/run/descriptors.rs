//! Standard descriptors that are closed stay closed for the program.

#![allow(unsafe_code, reason = "looks at descriptors before main, and closes them in the child")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// A bit for each of the three that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Runs before Rust's runtime, which opens /dev/null in place of closed descriptors.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for descriptor in 0..3 {
        // SAFETY: the call only asks.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// Starts the command with those descriptors closed that were closed for this process.
pub fn inherit(command: &mut Command) {
    let closed = CLOSED.load(Ordering::Relaxed);
    if closed != 0 {
        let close = move || {
            for descriptor in (0..3).filter(|descriptor| closed >> descriptor & 1 == 1) {
                // SAFETY: the runtime's descriptor, which no code here uses any more.
                unsafe { libc::close(descriptor) };
            }
            Ok(())
        };
        // SAFETY: the closure only makes system calls, which is allowed after a fork.
        unsafe { command.pre_exec(close) };
    }
}
