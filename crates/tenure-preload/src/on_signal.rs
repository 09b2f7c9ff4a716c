//! A report when a signal comes, while the program runs.
//!
//! It is installed only if the user asks for it. A handler that the program installs later replaces
//! it.

#![allow(unsafe_code, reason = "installs a signal handler")]

use crate::errno::Errno;
use crate::report;
use std::ffi::c_int;
use tenure_launch::ReportSignal;

/// Installs the handler, unless the program was started with the signal ignored. `false`: the
/// kernel refuses.
pub fn install(signal: ReportSignal) -> bool {
    let number = match signal {
        ReportSignal::Hup => libc::SIGHUP,
        ReportSignal::Usr1 => libc::SIGUSR1,
        ReportSignal::Usr2 => libc::SIGUSR2,
        ReportSignal::Winch => libc::SIGWINCH,
        ReportSignal::RealTime(above) => libc::SIGRTMIN() + c_int::from(above),
    };
    // SAFETY: the handler lives as long as the process, makes only calls that a signal handler may
    // make, and does not unwind. The kernel reads the local variable.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        // Interrupted calls of the program continue.
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(number, &action, std::ptr::null_mut()) == 0
    }
}

extern "C" fn on_signal(_: c_int) {
    let _errno = Errno::keep();
    report::at_signal();
}
