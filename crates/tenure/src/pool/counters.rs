//! The pool's counters, in one shard for each processor so that threads do not contend.

use super::slot;
use crate::runtime::published::Part;
use std::sync::atomic::{AtomicU64, Ordering};

/// The events and the bytes that the pool counts.
#[derive(Clone, Copy)]
pub(super) enum Counter {
    Allocs,
    AllocatedBytes,
    Frees,
    FreedBytes,
    WarmReuses,
    OfferedReuses,
    ReusedBytes,
    ZeroedBytes,
    OfferedBytes,
    ReturnedBytes,
    InPlace,
    Moved,
    MovedBytes,
    Remapped,
    Refused,
}

const COUNTERS: usize = Counter::Refused as usize + 1;
const SHARDS: usize = 64;

#[repr(align(128))]
struct Shard([AtomicU64; COUNTERS]);

/// For the whole process, as the pool is.
static SHARDED: [Shard; SHARDS] =
    [const { Shard([const { AtomicU64::new(0) }; COUNTERS]) }; SHARDS];

/// For the whole process: other processes read it, in the order of [`Counter`].
pub(super) static PUBLISHED: Part = Part::words(
    (&raw const SHARDED).cast(),
    "pool.allocs pool.allocated_bytes pool.frees pool.freed_bytes pool.warm_reuses pool.offered_reuses \
     pool.reused_bytes pool.zeroed_bytes pool.offered_total_bytes pool.returned_total_bytes pool.realloc_in_place \
     pool.realloc_moved pool.realloc_moved_bytes pool.remapped pool.refused",
    COUNTERS,
    SHARDS,
    size_of::<Shard>(),
);

#[inline]
pub(super) fn add(counter: Counter, amount: u64) {
    SHARDED[slot::current() % SHARDS].0[counter as usize].fetch_add(amount, Ordering::Relaxed);
}

pub(super) fn get(counter: Counter) -> u64 {
    let each = SHARDED.iter().map(|shard| shard.0[counter as usize].load(Ordering::Relaxed));
    each.fold(0, u64::wrapping_add)
}
