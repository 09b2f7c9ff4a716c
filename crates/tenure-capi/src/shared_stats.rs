//! The contents of shared volatile memory in numbers.

#![allow(unsafe_code, reason = "defines a function for C, which passes pointers")]

use crate::report::status;
use crate::shared::{shared, tenure_shared};
use crate::sized;
use libc::c_int;

/// The present state of shared memory, and its counters so far, in all processes.
/// tenure_shared_stats writes them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_shared_stats {
    /// Chunks in all.
    pub chunks: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Chunks that no process has made yet.
    pub fresh: u64,
    /// Chunks whose bytes are there.
    pub intact: u64,
    /// Chunks that are purged, and that no pin has reported yet.
    pub purged: u64,
    /// Chunks that are being made.
    pub making: u64,
    /// Chunks that a process has pinned.
    pub pinned: u64,
    /// Processes that have the memory open.
    pub processes: u64,
    /// Chunks purged so far.
    pub purges: u64,
    /// Processes that died with the memory open so far, and whose pins tenure removed.
    pub buried: u64,
    /// Chunks whose state is none of tenure's.
    pub damaged: u64,
}

/// Writes the statistics of the memory to `*out`, which has `size` bytes, as tenure_stats does. It
/// first removes the pins of dead processes.
///
/// Cost: a look at each chunk (about 20 ns), and three system calls for each process that has it open.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_stats(
    s: *mut tenure_shared,
    out: *mut tenure_shared_stats,
    size: usize,
) -> c_int {
    status("tenure_shared_stats", || {
        // SAFETY: the C caller passes NULL or a live object.
        let now = unsafe { shared(s)? }.stats();
        let stats = tenure_shared_stats {
            chunks: now.chunks,
            chunk_bytes: now.chunk_bytes,
            fresh: now.fresh,
            intact: now.intact,
            purged: now.purged,
            making: now.making,
            pinned: now.pinned,
            processes: now.processes,
            purges: now.purges,
            buried: now.buried,
            damaged: now.damaged,
        };
        // SAFETY: the C caller passes NULL or `size` writable bytes. All fields are integers of one
        // size, so there is no padding.
        unsafe { sized::write(out, size, &stats) }
    })
}
