//! Standard descriptors that are closed stay so for the program.

#![allow(unsafe_code, reason = "looks at descriptors before main, and closes them in the child")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// A bit for each of the three that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Before Rust's runtime, which opens /dev/null in the place of what is closed.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for descriptor in 0..3 {
        // SAFETY: only asks.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << descriptor, Ordering::Relaxed);
        }
    }
}

/// Has the command start with those closed that this process was started without.
pub fn inherit(command: &mut Command) {
    let closed = CLOSED.load(Ordering::Relaxed);
    if closed != 0 {
        let close = move || {
            for descriptor in (0..3).filter(|descriptor| closed >> descriptor & 1 == 1) {
                // SAFETY: the runtime's descriptor, which nothing here uses any more.
                unsafe { libc::close(descriptor) };
            }
            Ok(())
        };
        // SAFETY: the closure makes system calls only, which is allowed wherever it runs.
        unsafe { command.pre_exec(close) };
    }
}
