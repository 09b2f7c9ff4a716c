//! The order of locks.

/// The order of locks, outermost first: a thread that holds one takes only locks that come later. Forks
/// hold them in this order. Locks of one rank are not nested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Rank {
    /// One fork at a time.
    Fork,
    /// The list of caches.
    CacheList,
    /// A cache's segments, its size and its queue.
    CacheSpace,
    /// One shard of a cache's table.
    CacheShard,
    /// A cache's values that are being made.
    SingleFlight,
    /// The list of objects with a refill function.
    RefillList,
    /// Which thread waits for which.
    Waits,
    /// Mappings that wait to be torn down.
    RetireQueue,
    /// How much may wait.
    RetireBudget,
    /// The pool's free runs on their way to the kernel.
    PoolDecay,
    /// The raw ranges in order of address.
    IntervalMap,
    /// No lock but a place in the order: forks wait here until no other thread has a claim. A thread with
    /// a claim takes only locks that come later.
    Claims,
    /// The list of shared volatile memory.
    SharedList,
    /// Where shared memory reads what is left.
    SharedRoom,
    /// What is left under the memory limits.
    Budget,
    /// The pool's reserved addresses.
    PoolReservation,
    /// The right to reserve addresses.
    PoolAllowance,
    /// One cache of a processor's free blocks.
    PoolThreadCache,
    /// The pool's free blocks of one class.
    PoolCentral,
    /// The memory of what is noted under a claim.
    Heap,
}
