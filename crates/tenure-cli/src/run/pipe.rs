//! Passes this process's disposition of SIGPIPE on to the program.

#![allow(unsafe_code, reason = "looks at SIGPIPE before main, and sets it in the child")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

static IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime, which ignores the signal here, and lets it kill started programs.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only asks; the kernel fills in the structure, or fails and leaves the zeros.
    let now = unsafe {
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    IGNORED.store(now.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Has the command ignore the signal if this process was started so.
pub fn inherit(command: &mut Command) {
    if IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: a system call.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure makes one system call, which is allowed after a fork.
        unsafe { command.pre_exec(ignore) };
    }
}
