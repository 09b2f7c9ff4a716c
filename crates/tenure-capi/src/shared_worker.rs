//! The background thread of a forked child that uses shared volatile memory.

#![allow(unsafe_code, reason = "defines a function for C")]

use crate::report::status;
use libc::c_int;

/// Starts the background thread of this process, which purges shared memory when little is left
/// under this process's limits, and removes the pins of dead processes. A process that makes or
/// opens memory has one. A forked child that goes on after its parent's end (a daemon), or that has
/// a memory cgroup of its own, calls this after the fork, and before it closes descriptors that are
/// not its own (tenure's userfaultfd is one of them). Nothing starts a thread in a child by itself.
///
/// Errors: EAGAIN: no thread could be created. EMFILE, ENFILE, ENOMEM: this process got no
/// userfaultfd; call again when it may open files.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_shared_start_worker() -> c_int {
    status("tenure_shared_start_worker", || {
        tenure_core::shared::start_worker()?;
        Ok(0)
    })
}
