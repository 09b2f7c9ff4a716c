//! The pool in numbers.

use super::counters::{self, Counter};
use super::{central_list, queue, reservation, thread_cache};

/// What the pool holds now, by state, and what happened so far.
///
/// ```
/// let stats = tenure::pool::stats();
/// println!("{} bytes in use, {} warm", stats.in_use_bytes, stats.warm_bytes);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PoolStats {
    /// Runs that the program has.
    pub in_use: u64,
    /// The bytes it asked for with them.
    pub in_use_bytes: u64,
    /// Runs that are free and of which the kernel was told nothing.
    pub warm: u64,
    /// Their bytes that former users may have written.
    pub warm_bytes: u64,
    /// Free runs that are the kernel's to take (`MADV_FREE`).
    pub offered: u64,
    /// Their bytes that former users may have written; some may be gone.
    pub offered_bytes: u64,
    /// Free runs without memory.
    pub returned: u64,
    /// Their bytes of address space.
    pub returned_bytes: u64,
    /// Bytes of addresses reserved for the pool.
    pub reserved_bytes: u64,
    /// Allocations since the start, as all that follow (in a forked child: since its oldest ancestor's
    /// start).
    pub allocs: u64,
    /// Runs given back.
    pub frees: u64,
    /// Allocations served from a warm run.
    pub warm_reuses: u64,
    /// Allocations served from an offered run.
    pub offered_reuses: u64,
    /// Bytes of those runs that former users had written: page faults that were avoided, except for
    /// what the kernel had taken of offered ones.
    pub reused_bytes: u64,
    /// Bytes that were zeroed for allocations that wanted zeros.
    pub zeroed_bytes: u64,
    /// Bytes offered.
    pub offered_total_bytes: u64,
    /// Bytes returned.
    pub returned_total_bytes: u64,
    /// Reallocations that stayed where they were.
    pub realloc_in_place: u64,
    /// Reallocations that moved page tables instead of copying.
    pub realloc_moved: u64,
    /// Their bytes.
    pub realloc_moved_bytes: u64,
    /// Runs mapped anew because the program had changed their mapping's state or unmapped part of it.
    pub remapped: u64,
    /// Requests that could not be served.
    pub refused: u64,
}

/// Reads the statistics. Costs a few hundred loads; no system call.
///
/// ```
/// let buffer = tenure::pool::Buffer::zeroed(1 << 20)?;
/// assert_eq!(tenure::pool::stats().in_use_bytes, 1 << 20);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn stats() -> PoolStats {
    use Counter::*;
    let get = counters::get;
    let Some(reservation) = reservation::known() else {
        return PoolStats { refused: get(Refused), ..PoolStats::default() };
    };
    let (in_slots, in_slots_bytes) = thread_cache::held();
    let (queued, queued_bytes) = queue::queued();
    // What is freed before what is allocated: in the other order a pair in between would leave less than
    // nothing. Growth counts by wrapping, so the difference may still be below it for a moment.
    let (frees, freed_bytes) = (get(Frees), get(FreedBytes));
    let more = |all: u64, less: u64| (all.wrapping_sub(less) as i64).max(0) as u64;
    let mut stats = PoolStats {
        in_use: more(get(Allocs), frees),
        in_use_bytes: more(get(AllocatedBytes), freed_bytes),
        // What is on its way to the kernel counts as warm until it is there.
        warm: in_slots + queued,
        warm_bytes: in_slots_bytes + queued_bytes,
        reserved_bytes: reservation.reserved_bytes(),
        allocs: get(Allocs),
        frees,
        warm_reuses: get(WarmReuses),
        offered_reuses: get(OfferedReuses),
        reused_bytes: get(ReusedBytes),
        zeroed_bytes: get(ZeroedBytes),
        offered_total_bytes: get(OfferedBytes),
        returned_total_bytes: get(ReturnedBytes),
        realloc_in_place: get(InPlace),
        realloc_moved: get(Moved),
        realloc_moved_bytes: get(MovedBytes),
        remapped: get(Remapped),
        refused: get(Refused),
        ..PoolStats::default()
    };
    for class in 0..reservation.classes {
        central_list::with(reservation, class, |lists| {
            stats.warm += u64::from(lists.warm.count);
            stats.warm_bytes += lists.warm.bytes;
            stats.offered += u64::from(lists.offered.count);
            stats.offered_bytes += lists.offered.bytes;
            stats.returned += u64::from(lists.returned.count);
            stats.returned_bytes +=
                u64::from(lists.returned.count) * reservation.area(class).stride as u64;
        });
    }
    stats
}
