//! Counts since the start, and the present state.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::status;
use crate::sized;
use libc::c_int;

/// The state and the counters of tenure. tenure_stats writes them. Numbers named `total_` count
/// since the process started (in a forked child: since its oldest ancestor did), the others are of
/// now.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_stats {
    /// Tracked ranges: pinned (not volatile), marked or offered. Buffers and the segments of caches
    /// count.
    pub ranges: u64,
    /// Tracked ranges that are not volatile now.
    pub pinned: u64,
    /// Their bytes.
    pub pinned_bytes: u64,
    /// Ranges that are volatile and not (yet) offered.
    pub marked: u64,
    /// Their bytes: memory that the program does not use, and that the kernel cannot take yet.
    pub marked_bytes: u64,
    /// Ranges that the kernel may take, or has taken.
    pub offered: u64,
    /// Their bytes; tenure_survey counts those that are still there.
    pub offered_bytes: u64,
    /// How often the tracked ranges of now were pinned or unmarked (each counts to 2^32).
    pub pins: u64,
    /// Ranges that were offered to the kernel.
    pub total_offers: u64,
    /// Their bytes.
    pub total_offered_bytes: u64,
    /// Ranges taken back, purged or not.
    pub total_revivals: u64,
    /// Their bytes, as far as they were still there.
    pub total_revived_bytes: u64,
    /// Ranges that had lost pages when they were taken back.
    pub total_purges: u64,
    /// The bytes they had lost.
    pub total_purged_bytes: u64,
    /// Calls of refill callbacks that succeeded.
    pub total_refills: u64,
    /// Bytes they wrote.
    pub total_refilled_bytes: u64,
    /// Calls of refill callbacks that failed.
    pub total_failed_refills: u64,
    /// Offers that the kernel refused, or that would have split a huge page, or taken pages that
    /// another process shares. The worker tries them again later.
    pub total_refused_offers: u64,
    /// Times the kernel reported pressure.
    pub total_pressure_events: u64,
    /// Scans of the worker, the background thread that offers.
    pub total_keeper_rounds: u64,
    /// Bytes that populates made ready. Bytes that were there already count.
    pub total_populated_bytes: u64,
    /// Populates that failed, were cancelled or ran out of time.
    pub total_populate_failures: u64,
    /// Bytes that the program has from the pool. tenure_pool_stats has more.
    pub pool_in_use_bytes: u64,
    /// Bytes of the pool's free blocks that are warm: the kernel cannot take them yet.
    pub pool_warm_bytes: u64,
    /// Bytes of free blocks that are offered: the kernel may take them, or has.
    pub pool_offered_bytes: u64,
    /// Bytes of addresses of free blocks that are returned: they have no memory.
    pub pool_returned_bytes: u64,
    /// Blocks that the pool handed out.
    pub total_pool_allocs: u64,
    /// Those of them whose pages were resident from an earlier use, or offered.
    pub total_pool_reuses: u64,
    /// Bytes of those pages: page faults avoided.
    pub total_pool_reused_bytes: u64,
    /// Bytes of free blocks that were offered to the kernel.
    pub total_pool_offers_bytes: u64,
    /// Bytes of free blocks that left the resident set.
    pub total_pool_returns_bytes: u64,
    /// Reallocations that moved page tables instead of copying.
    pub total_pool_moves: u64,
    /// Retired mappings that wait to be torn down.
    pub retiring: u64,
    /// Their bytes of address space.
    pub retiring_bytes: u64,
    /// Mappings, or parts of them, that were moved away to be torn down later.
    pub total_retired_moved: u64,
    /// Their bytes of address space.
    pub total_retired_moved_bytes: u64,
    /// Bytes of address space unmapped in slices before the call returned.
    pub total_retired_in_slices_bytes: u64,
    /// Bytes of address space unmapped by one plain munmap.
    pub total_retired_plain_bytes: u64,
    /// Bytes of address space that were moved away and have been torn down since.
    pub total_torn_down_bytes: u64,
    /// Those of them that callers tore down, because too much was waiting or because they asked.
    pub total_retire_helped_bytes: u64,
    /// The longest step of a teardown in nanoseconds. Another thread may have waited for it.
    pub retire_longest_slice_ns: u64,
    /// Bytes of ranges that the same pin has had for at least thirty times the wait for an offer, 15 s by default.
    pub pinned_long_bytes: u64,
    /// Reads that copied bytes of an offered range and left it offered: gets of caches while memory is short.
    pub total_offered_reads: u64,
}

/// Written by tenure_survey.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_survey {
    /// Bytes that were offered when the survey looked.
    pub offered_bytes: u64,
    /// Those of them that the kernel has purged. The next pin or unmark reports them to the
    /// program.
    pub gone_bytes: u64,
}

/// Writes the statistics of the process to `*out`, which has `size` bytes: pass sizeof *out. An
/// older program gets the fields that it knows. A newer program gets zeros in the fields that the
/// library does not know.
///
/// Cost: one look at each tracked range (about 3 ns); no system call.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_stats(out: *mut tenure_stats, size: usize) -> c_int {
    status("tenure_stats", || {
        let now = tenure_core::stats();
        let total = now.total;
        let stats = tenure_stats {
            ranges: now.ranges,
            pinned: now.pinned,
            pinned_bytes: now.pinned_bytes,
            marked: now.marked,
            marked_bytes: now.marked_bytes,
            offered: now.offered,
            offered_bytes: now.offered_bytes,
            pins: now.pins,
            total_offers: total.offers,
            total_offered_bytes: total.offered_bytes,
            total_revivals: total.revivals,
            total_revived_bytes: total.revived_bytes,
            total_purges: total.purges,
            total_purged_bytes: total.purged_bytes,
            total_refills: total.refills,
            total_refilled_bytes: total.refilled_bytes,
            total_failed_refills: total.failed_refills,
            total_refused_offers: total.refused_offers,
            total_pressure_events: total.pressure_events,
            total_keeper_rounds: total.keeper_rounds,
            total_populated_bytes: total.populated_bytes,
            total_populate_failures: total.populate_failures,
            pool_in_use_bytes: now.pool_in_use_bytes,
            pool_warm_bytes: now.pool_warm_bytes,
            pool_offered_bytes: now.pool_offered_bytes,
            pool_returned_bytes: now.pool_returned_bytes,
            total_pool_allocs: total.pool_allocs,
            total_pool_reuses: total.pool_reuses,
            total_pool_reused_bytes: total.pool_reused_bytes,
            total_pool_offers_bytes: total.pool_offers_bytes,
            total_pool_returns_bytes: total.pool_returns_bytes,
            total_pool_moves: total.pool_moves,
            retiring: now.retiring,
            retiring_bytes: now.retiring_bytes,
            total_retired_moved: total.retired_moved,
            total_retired_moved_bytes: total.retired_moved_bytes,
            total_retired_in_slices_bytes: total.retired_in_slices_bytes,
            total_retired_plain_bytes: total.retired_plain_bytes,
            total_torn_down_bytes: total.torn_down_bytes,
            total_retire_helped_bytes: total.retire_helped_bytes,
            retire_longest_slice_ns: total.retire_longest_slice_ns,
            pinned_long_bytes: now.pinned_long_bytes,
            total_offered_reads: total.offered_reads,
        };
        // SAFETY: the C caller passes NULL or `size` writable bytes. All fields are integers of one
        // size, so there is no padding.
        unsafe { sized::write(out, size, &stats) }
    })
}

/// Counts the offered pages that are still there, without touching them, and writes the numbers to
/// `*out`, which has `size` bytes.
///
/// Cost: 4 ns a page (PAGEMAP_SCAN, Linux 6.7; before, a read of /proc/self/pagemap).
///
/// Errors: EINVAL: NULL. Others: /proc/self/pagemap could not be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_survey(out: *mut tenure_survey, size: usize) -> c_int {
    status("tenure_survey", || {
        let survey = tenure_core::survey()?;
        let survey =
            tenure_survey { offered_bytes: survey.offered_bytes, gone_bytes: survey.gone_bytes };
        // SAFETY: the C caller passes NULL or `size` writable bytes. All fields are integers of one
        // size, so there is no padding.
        unsafe { sized::write(out, size, &survey) }
    })
}
