//! What shared volatile memory holds.

#![allow(unsafe_code, reason = "defines a function for C, which passes pointers")]

use crate::report::status;
use crate::shared::{shared, tenure_shared};
use crate::sized;
use libc::c_int;

/// What shared memory holds now, and what happened to it so far, in all processes. Written by
/// tenure_shared_stats.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_shared_stats {
    /// Chunks in all.
    pub chunks: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Chunks that nobody has made yet.
    pub fresh: u64,
    /// Chunks whose bytes are there.
    pub intact: u64,
    /// Chunks that are purged, and nobody was told yet.
    pub purged: u64,
    /// Chunks that are being made.
    pub making: u64,
    /// Chunks that somebody has pinned.
    pub pinned: u64,
    /// Processes that have the memory open.
    pub processes: u64,
    /// Chunks purged so far.
    pub purges: u64,
    /// Processes that died with the memory open, so far, and whose pins were taken away.
    pub buried: u64,
    /// Chunks whose state is none of tenure's.
    pub damaged: u64,
}

/// Writes what the memory holds and what happened to it to `*out`, which has `size` bytes, as
/// tenure_stats does. Takes away first what dead processes left.
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
