//! The pool's statistics.

use super::counters::{self, Counter};
use super::{central_list, queue, reservation, thread_cache};

/// The runs and bytes of the pool by state, and counts of events so far.
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
    /// The bytes that the program asked for with them.
    pub in_use_bytes: u64,
    /// Free runs that the kernel may not take.
    pub warm: u64,
    /// The bytes of these runs that former users may have written.
    pub warm_bytes: u64,
    /// Free runs whose pages the kernel may take (`MADV_FREE`).
    pub offered: u64,
    /// The bytes of these runs that former users may have written. The kernel may have taken some.
    pub offered_bytes: u64,
    /// Free runs without memory.
    pub returned: u64,
    /// The bytes of their addresses.
    pub returned_bytes: u64,
    /// Bytes of addresses reserved for the pool.
    pub reserved_bytes: u64,
    /// Allocations since the start. This field and all that follow count from the start (in a
    /// forked child: from the start of its oldest ancestor).
    pub allocs: u64,
    /// Runs given back.
    pub frees: u64,
    /// Allocations served from a warm run.
    pub warm_reuses: u64,
    /// Allocations served from an offered run.
    pub offered_reuses: u64,
    /// Bytes of those runs that former users had written. They are page faults that were avoided,
    /// except for pages of offered runs that the kernel had taken.
    pub reused_bytes: u64,
    /// Bytes that were zeroed for allocations that wanted zeros.
    pub zeroed_bytes: u64,
    /// Bytes offered.
    pub offered_total_bytes: u64,
    /// Bytes returned.
    pub returned_total_bytes: u64,
    /// Reallocations that stayed in place.
    pub realloc_in_place: u64,
    /// Reallocations that moved page tables instead of copying.
    pub realloc_moved: u64,
    /// The bytes of these reallocations.
    pub realloc_moved_bytes: u64,
    /// Runs mapped anew because the program had changed their mapping's state or unmapped part of
    /// it.
    pub remapped: u64,
    /// Requests that the pool refused.
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
    // The frees are read before the allocations: in the other order an allocation and its free in
    // between would make the difference negative.
    let (frees, freed_bytes) = (get(Frees), get(FreedBytes));
    let mut stats = PoolStats {
        in_use: get(Allocs).saturating_sub(frees),
        in_use_bytes: get(AllocatedBytes).saturating_sub(freed_bytes),
        // Runs in the queue count as warm until they are offered or returned.
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
