//! The order of locks.

/// The order of locks, outermost first: a thread that holds one takes only locks that come later.
/// Forks hold the locks in this order. A thread takes no two locks of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Rank {
    /// One fork at a time.
    Fork,
    /// The launcher's own calls of the next allocator.
    NextAllocator,
    /// The list of caches.
    CacheList,
    /// A cache's segments, its size and its queue.
    CacheSpace,
    /// One shard of a cache's table.
    CacheShard,
    /// The values of a cache that threads are making.
    SingleFlight,
    /// The list of objects with a refill function.
    RefillList,
    /// The list of threads that wait for other threads.
    Waits,
    /// Mappings that wait to be torn down.
    RetireQueue,
    /// The bound on the memory that waits to be torn down.
    RetireBudget,
    /// The pool's free runs on their way to the kernel.
    PoolDecay,
    /// The raw ranges in order of address.
    IntervalMap,
    /// This is a place in the order, and no lock: here a fork waits until no other thread has a
    /// claim. A thread with a claim takes only locks that come later.
    Claims,
    /// The list of shared volatile memory.
    SharedList,
    /// Where shared memory reads the room that is left.
    SharedRoom,
    /// The room that is left under the memory limits.
    Budget,
    /// The pool's reserved addresses.
    PoolReservation,
    /// The right to reserve addresses.
    PoolAllowance,
    /// One cache of a processor's free blocks.
    PoolThreadCache,
    /// The pool's free blocks of one class.
    PoolCentral,
    /// The memory of notes made under a claim.
    Heap,
}
