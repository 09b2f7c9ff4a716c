//! What must come before everything else: the fork handlers, at the first call of a hook.
//!
//! They are registered before any allocator's. Such handlers take locks in the reverse order of their
//! registration, and an allocator calls mapping hooks with its own locks held, so its locks come
//! before this library's.

#![allow(unsafe_code, reason = "registers fork handlers")]

use crate::errno::Errno;
use crate::{counters, keeper, last_thread, report};
use std::sync::atomic::{AtomicBool, Ordering};

/// At the first call of a hook, which may be before the C library is initialised.
#[cold]
pub fn first_call() {
    if FORKS_REGISTERED.swap(true, Ordering::AcqRel) {
        return;
    }
    let errno = Errno::keep();
    keeper::own_process();
    tenure::register_fork_handlers();
    // SAFETY: the function lives as long as the process, takes no arguments and does not unwind.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    drop(errno);
}

/// For the whole process: the handlers are.
static FORKS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// At every mapping call: an allocator's constructor may run before any allocation comes by here, and it
/// maps memory before it registers its handlers. One load.
#[inline]
pub fn first_mapping() {
    if !FORKS_REGISTERED.load(Ordering::Relaxed) {
        first_call();
    }
}

extern "C" fn in_child() {
    keeper::restart_in_child();
    last_thread::restart_in_child();
    counters::restart();
    report::restart_in_child();
    keeper::give_up_in_child();
}
