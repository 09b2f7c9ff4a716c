//! Registers the fork handlers at the first call of a hook, before all other work.
//!
//! They are registered before those of any allocator. Such handlers take locks in the reverse order
//! of their registration. An allocator calls mapping hooks while it holds its own locks, so a fork
//! must take the allocator's locks before this library's.

#![allow(unsafe_code, reason = "registers fork handlers")]

use crate::errno::Errno;
use crate::{counters, keeper, last_thread, report};
use std::sync::atomic::{AtomicBool, Ordering};

/// Called at the first call of a hook, which may come before the C library is initialised.
#[cold]
pub fn first_call() {
    if FORKS_REGISTERED.swap(true, Ordering::AcqRel) {
        return;
    }
    let errno = Errno::keep();
    keeper::own_process();
    tenure::launcher::is_launchers_copy();
    tenure::register_fork_handlers();
    // SAFETY: the functions live as long as the process, take no arguments and do not unwind.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    drop(errno);
}

/// For the whole process: the handlers are registered once.
static FORKS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// Called at every mapping call. An allocator's constructor may run before any allocation comes
/// here, and it maps memory before it registers its handlers. Costs one load.
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
