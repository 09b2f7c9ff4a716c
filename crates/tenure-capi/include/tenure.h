/* tenure: control over how long memory pages stay, for Linux 5.10 and later.
 *
 * For programs with large caches and buffers: when memory runs short, the kernel takes volatile memory
 * instead of killing the program, and the program learns exactly which pages are gone.
 *
 *  - struct tenure_cache: values under keys. It has no size: it grows while there is room;
 *  - struct tenure_volatile: one buffer that the kernel may take while it is not pinned;
 *  - tenure_mvolatile and the calls after it: the same for ranges that the program has mapped itself;
 *  - tenure_mlock2 and the calls after it: pages that the kernel does not page out;
 *  - tenure_populate: pages that are resident before their use, with an error instead of a signal;
 *  - tenure_alloc: large blocks; a freed block stays warm, and the kernel may take it;
 *  - tenure_munmap: the addresses go at once, and the memory follows without stalling other threads.
 *
 * A mark makes a range volatile, and an unmark or a pin makes it stay. The worker, a background thread
 * that is named tenure-keeper, offers marked ranges to the kernel. The kernel purges pages of them when
 * it needs memory. A pin takes the range back, and reports each purge exactly once.
 *
 * Functions return 0 (or what they say) on success and -1 with errno set on failure; those that
 * return a pointer return NULL. tenure_last_error() then gives the reason and a remedy in a
 * sentence. On success errno is left at any value. Unless it says otherwise, every function may be
 * called by any number of threads at once.
 *
 * A function refuses a NULL pointer where it needs one with EINVAL. It returns EIO for a bug inside
 * tenure that would end a Rust program with a panic. Callbacks must return: no longjmp, no
 * pthread_exit and no C++ exception may leave them.
 *
 * No function is a cancellation point, and no thread is cancelled inside one, whatever its type of
 * cancellation: a pthread_cancel that comes meanwhile takes effect later, at the thread's next
 * cancellation point, or when the function returns if the type is asynchronous. Callbacks run with
 * cancellation off, and must not turn it on. So a call that waits (tenure_populate_wait, say) is not
 * ended by pthread_cancel. This costs each call about 20 ns.
 *
 * Structures that may grow carry their size. One that is filled in by tenure is passed with its
 * size: tenure writes what both sides know and zero-fills the rest. One that the program fills in
 * starts with its size: what it lacks has its default, and if it is longer than tenure knows, the
 * rest must be zero, or the call fails with E2BIG rather than ignore what was asked for.
 *
 * Lengths and offsets are in bytes. */


#ifndef TENURE_H
#define TENURE_H

/* Made from the Rust sources by cbindgen: change those, then run
 * TENURE_UPDATE_HEADER=1 cargo test -p tenure-capi --test header */

#include <stddef.h>
#include <stdint.h>

/* C++ only: a function may have the name of the structure that it fills in, as stat(2) has. */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif

/* A result that must not be thrown away. */
#if defined(__GNUC__)
#define TENURE_MUST_USE __attribute__((warn_unused_result))
#else
#define TENURE_MUST_USE
#endif

/* Start from these, not from zeros: priority 0 is the lowest, not the default.
 *     struct tenure_cache_opts opts = TENURE_CACHE_OPTS_INIT; */
#define TENURE_VOLATILE_OPTS_INIT { sizeof(struct tenure_volatile_opts), TENURE_PRIORITY_DEFAULT, TENURE_REFILL_PAGES, NULL, NULL, NULL }
#define TENURE_CACHE_OPTS_INIT { sizeof(struct tenure_cache_opts), TENURE_PRIORITY_DEFAULT, 0, 0, 0 }
#define TENURE_POOL_OPTS_INIT { sizeof(struct tenure_pool_opts), 500, 10000, 0, 0, 0 }
#define TENURE_POPULATE_OPTS_INIT { sizeof(struct tenure_populate_opts), 0, 0, 0, -1, 0, NULL, NULL }
#define TENURE_POPULATE_RESULT_INIT { sizeof(struct tenure_populate_result), 0, 0, 0, 0, NULL }

/**
 * The priority of what goes first.
 */
#define TENURE_PRIORITY_LOWEST 0

/**
 * The priority of what nothing else is said about.
 */
#define TENURE_PRIORITY_DEFAULT 4

/**
 * The priority of what goes last.
 */
#define TENURE_PRIORITY_HIGHEST 7

/**
 * A purged page raises SIGBUS when it is touched (userfaultfd).
 */
#define TENURE_DETECTION_USERFAULTFD 1

/**
 * A purged page reads as zeros when it is touched; unmarking and pinning tell as exactly. A marked
 * range must not be written, and touches are not refilled.
 */
#define TENURE_DETECTION_WORDS 2

/**
 * For refill_scope: the callback makes the bytes it is asked for, single pages and longer extents.
 */
#define TENURE_REFILL_PAGES 0

/**
 * For refill_scope: the callback always makes the whole buffer; of what it makes, only what was
 * purged is used.
 */
#define TENURE_REFILL_WHOLE 1

/**
 * For tenure_mlock2 and tenure_munlock2: all pages now.
 */
#define TENURE_MLOCK_LOCKED 1

/**
 * For tenure_mlock2 and tenure_munlock2: each page from its first touch on.
 */
#define TENURE_MLOCK_ONFAULT 2

/**
 * For tenure_mmap, beside mmap's own flags: locked on fault from birth. The bit is one that Linux has
 * no use for, and it does not reach the kernel.
 */
#define TENURE_MAP_LOCKONFAULT 16777216

/**
 * For reading: files are read into the page cache and not dirtied; anonymous memory gets the zero
 * page, and takes no memory.
 */
#define TENURE_POPULATE_READ 1

/**
 * For writing: memory is taken, holes of shared files are allocated, private file mappings copied.
 */
#define TENURE_POPULATE_WRITE 2

/**
 * For flags: no MADV_HUGEPAGE first.
 */
#define TENURE_POPULATE_NO_HUGE_PAGES 1

/**
 * For flags: refuse beforehand what would not fit into the memory cgroup or the machine (ENOMEM), the
 * tmpfs or the pool of huge pages (ENOSPC). Where it is not asked, the kernel's answer to a cgroup or
 * a machine without room is its OOM killer.
 */
#define TENURE_POPULATE_WITHIN_ROOM 2

/**
 * For flags: allocate the holes of the shared file `fd` (fallocate) also where that is not the
 * default.
 */
#define TENURE_POPULATE_ALLOCATE 4

/**
 * For flags: never allocate them.
 */
#define TENURE_POPULATE_NO_ALLOCATE 8

/**
 * Not locked.
 */
#define TENURE_LOCK_NONE 0

/**
 * Locked in full: what was resident when it was locked, and all that is touched.
 */
#define TENURE_LOCK_FULL 1

/**
 * Locked on fault: each page from its first touch on.
 */
#define TENURE_LOCK_ON_FAULT 2

/**
 * Never paged out, locked or not: hugetlb, secretmem.
 */
#define TENURE_LOCK_ALWAYS_RESIDENT 3

/**
 * The kernel's own calls succeed and lock nothing: MAP_DROPPABLE, device memory.
 */
#define TENURE_LOCK_IMPOSSIBLE 4

/**
 * Of a kind that this header does not name.
 */
#define TENURE_LOCK_OTHER 5

/**
 * The limit allows it.
 */
#define TENURE_LOCK_FITS 0

/**
 * No limit holds: it is unlimited, or CAP_IPC_LOCK lifts it.
 */
#define TENURE_LOCK_EXEMPT 1

/**
 * The soft limit is too low, and the process may raise it by itself.
 */
#define TENURE_LOCK_RAISE_SOFT 2

/**
 * The hard limit is too low: it must be raised where the process is started.
 */
#define TENURE_LOCK_RAISE_HARD 3

/**
 * For tenure_retire_settings.pending_max: found from the limits that hold for the process.
 */
#define TENURE_PENDING_AUTOMATIC UINT64_MAX

/**
 * For tenure_retire_settings.files: file mappings are given up before the call returns.
 */
#define TENURE_FILES_AT_ONCE 0

/**
 * For tenure_retire_settings.files: later, as other memory; until then the file system cannot be
 * unmounted and a memfd not be sealed against writes.
 */
#define TENURE_FILES_LATER 1

/**
 * For tenure_settings.unoffered_max: found from the limits that hold for the process.
 */
#define TENURE_AUTOMATIC UINT64_MAX

/**
 * A cache without a size: it grows while there is room, and shrinks when others need the room. A
 * get returns the bytes that were put in, or nothing: never wrong or partial ones.
 */
struct tenure_cache;

/**
 * A lock on fault whose pages become resident in the background. Opaque.
 */
struct tenure_gradual;

/**
 * A counted lock. Opaque.
 */
struct tenure_held;

/**
 * Where a make callback puts the value that it makes.
 */
struct tenure_made;

/**
 * A populate in the background.
 */
struct tenure_populating;

/**
 * A value that a get has found. Its bytes stay as they are until it is released, whatever happens to
 * its key and its cache meanwhile.
 */
struct tenure_value;

/**
 * A buffer that the kernel may take while it is not pinned.
 */
struct tenure_volatile;

/**
 * A range of which the part used last is locked. Opaque.
 */
struct tenure_within;

/**
 * Told about an extent that is gone: `offset` and `len` in bytes from the start of what was asked
 * about; `arg` as it was passed.
 */
typedef void (*tenure_gone_fn)(size_t offset, size_t len, void *arg);

/**
 * Called for a touch of a purged page: `address` is what was touched, `[range, range + len)` the
 * volatile range that holds it, as tenure knows it (neighbouring marks may have been merged). Not 0
 * lets the access be tried again; 0 passes the signal on.
 */
typedef int (*tenure_purged_access_fn)(void *address, void *range, size_t len);

/**
 * Makes `len` bytes from `offset` on again, into `bytes` (not the buffer itself). Returns 0, or
 * anything else for a failure. It may be called by several threads at once.
 */
typedef int (*tenure_refill_fn)(void *arg, size_t offset, void *bytes, size_t len);

/**
 * Frees a callback's argument.
 */
typedef void (*tenure_free_fn)(void *arg);

/**
 * What tenure_volatile_new leaves at its default. Start from TENURE_VOLATILE_OPTS_INIT.
 */
struct tenure_volatile_opts {
    /**
     * sizeof(struct tenure_volatile_opts).
     */
    size_t size;
    /**
     * From 0 (given up first) to 7 (last).
     */
    unsigned int priority;
    /**
     * TENURE_REFILL_PAGES or TENURE_REFILL_WHOLE; of no effect without refill.
     */
    unsigned int refill_scope;
    /**
     * Makes purged bytes again, at the next pin, or when a thread touches them without a pin: that
     * thread waits while the callback runs on another. NULL: purged bytes read as zeros when pinned,
     * and raise SIGBUS when touched without a pin.
     *
     * That thread has the program's descriptors, and all signals blocked but those that it raises
     * itself. Where tenure cannot keep descriptors of its own (private_descriptors of `tenure
     * doctor`), such a touch raises SIGBUS.
     *
     * It must not touch purged pages of a buffer that has a refill callback without a pin, nor wait
     * for a thread that does, for a lock that it holds for instance: one thread serves them all.
     */
    tenure_refill_fn refill;
    /**
     * Passed to refill.
     */
    void *arg;
    /**
     * Called once with arg when refill will not be called again, which can be a moment after
     * tenure_volatile_free, on another thread. Not called if the buffer could not be made. May be
     * NULL.
     */
    tenure_free_fn free_arg;
};

/**
 * What tenure_cache_new may be told. Start from TENURE_CACHE_OPTS_INIT.
 */
struct tenure_cache_opts {
    /**
     * sizeof(struct tenure_cache_opts).
     */
    size_t size;
    /**
     * How willingly the cache's memory is given up against other volatile memory of the process:
     * from 0 (first) to 7 (last).
     */
    unsigned int priority;
    /**
     * Must be 0.
     */
    unsigned int reserved;
    /**
     * The most bytes of memory that the cache may take; 0: what the machine and the memory cgroup
     * allow. A few segments of 2 MiB are taken in any case.
     */
    uint64_t ceiling;
    /**
     * How long a value may be returned after it was put in, in milliseconds; 0: without end.
     */
    uint64_t ttl_ms;
};

/**
 * Makes the value that tenure_cache_get_or_insert did not find: asks tenure_made_resize for room and
 * fills it (without asking, the value is empty). Returns 0, or anything else if there is no value.
 */
typedef int (*tenure_make_fn)(void *arg, struct tenure_made *into);

/**
 * Written by tenure_cache_stats. Counts since the cache was made, but for those that say "now".
 */
struct tenure_cache_stats {
    /**
     * Gets that found their value.
     */
    uint64_t hits;
    /**
     * Gets that did not, for whatever reason.
     */
    uint64_t misses;
    /**
     * Values put in.
     */
    uint64_t insertions;
    /**
     * Values removed or overwritten.
     */
    uint64_t removals;
    /**
     * Values that the cache dropped to make room, or whose segment was found wholly purged.
     */
    uint64_t evictions;
    /**
     * Values that were found purged by a get.
     */
    uint64_t purged_values;
    /**
     * Bytes of segments that the kernel took, as far as the cache has noticed.
     */
    uint64_t purged_bytes;
    /**
     * Values that were moved because they were used, when their segment was emptied.
     */
    uint64_t moved_values;
    /**
     * Keys now in the index; some may lead to values that are gone.
     */
    uint64_t values;
    /**
     * Bytes of the segments now, filled or not, as far as they are known not to be purged.
     */
    uint64_t footprint_bytes;
    /**
     * The footprint that purges and free memory now allow without asking again.
     */
    uint64_t target_bytes;
    /**
     * Bytes that the cache takes now beside its segments, and of the headers inside them. A key that
     * is kept takes its own bytes as well.
     */
    uint64_t bookkeeping_bytes;
};

/**
 * How far a populate is.
 */
struct tenure_populate_progress {
    /**
     * Bytes in all.
     */
    uint64_t bytes;
    /**
     * Bytes populated so far; never goes backwards.
     */
    uint64_t populated;
    /**
     * Nanoseconds since it began.
     */
    uint64_t elapsed_ns;
    /**
     * Rate of about the last half second.
     */
    uint64_t bytes_per_second;
};

/**
 * Told how far it is. Not 0 cancels the populate.
 */
typedef int (*tenure_populate_fn)(const struct tenure_populate_progress *progress, void *arg);

/**
 * What tenure_populate leaves at its default. Start from TENURE_POPULATE_OPTS_INIT: fd 0 is a file.
 */
struct tenure_populate_opts {
    /**
     * sizeof(struct tenure_populate_opts).
     */
    size_t size;
    /**
     * How many threads work; 0: as many as are useful, at most one for each processor that the
     * process may use.
     */
    unsigned int threads;
    /**
     * TENURE_POPULATE_NO_HUGE_PAGES and its like, or-ed.
     */
    unsigned int flags;
    /**
     * Ends it with ETIMEDOUT when it is not done by then; 0: no deadline.
     */
    uint64_t deadline_ms;
    /**
     * The file behind the mapping, or -1. With it the holes of a shared file are allocated before
     * they are written, and failures say more. It is duplicated.
     */
    int fd;
    /**
     * How often progress is called, in milliseconds; 0: every 100.
     */
    unsigned int every_ms;
    /**
     * Called on the calling thread while others work, and once at the end; NULL: not called. Not
     * for tenure_populate_start.
     */
    tenure_populate_fn progress;
    /**
     * Passed to progress.
     */
    void *arg;
};

/**
 * What a populate did, also where it failed. Start from TENURE_POPULATE_RESULT_INIT.
 */
struct tenure_populate_result {
    /**
     * sizeof(struct tenure_populate_result).
     */
    size_t size;
    /**
     * Bytes asked for.
     */
    uint64_t bytes;
    /**
     * Bytes populated; pages that were there already count.
     */
    uint64_t populated;
    /**
     * Nanoseconds from beginning to end.
     */
    uint64_t elapsed_ns;
    /**
     * Threads that worked.
     */
    uint64_t threads;
    /**
     * The lowest page that was not populated; NULL: all were. Everything before it is.
     */
    void *first_missing;
};

/**
 * How a part of a range in one mapping is locked.
 */
struct tenure_lock_part {
    /**
     * Its first address.
     */
    uint64_t start;
    /**
     * Its length.
     */
    uint64_t len_bytes;
    /**
     * How many of its bytes are in memory, in pages of their own.
     */
    uint64_t resident_bytes;
    /**
     * One of TENURE_LOCK_NONE to TENURE_LOCK_OTHER.
     */
    uint32_t state;
    /**
     * 0.
     */
    uint32_t reserved;
};

/**
 * Whether so much more could be locked, and the numbers behind it. UINT64_MAX is an unlimited limit.
 */
struct tenure_lock_answer {
    /**
     * What was asked about, in whole pages.
     */
    uint64_t bytes;
    /**
     * Charged already (VmLck).
     */
    uint64_t locked_bytes;
    /**
     * The limit that would be enough.
     */
    uint64_t limit_needed_bytes;
    /**
     * RLIMIT_MEMLOCK as it holds.
     */
    uint64_t soft_limit_bytes;
    /**
     * What it may be raised to.
     */
    uint64_t hard_limit_bytes;
    /**
     * What the machine, or the tightest memory cgroup, has free: a lock of more may be allowed and
     * then end in the kernel's OOM killer.
     */
    uint64_t memory_free_bytes;
    /**
     * One of TENURE_LOCK_FITS to TENURE_LOCK_RAISE_HARD.
     */
    uint32_t verdict;
    /**
     * 1: the calling thread has CAP_IPC_LOCK, and capabilities lift the limit here.
     */
    uint32_t has_ipc_lock;
};

/**
 * How a lock within a budget stands.
 */
struct tenure_within_status {
    /**
     * Bytes locked on fault at the moment; never more than the budget.
     */
    uint64_t locked_bytes;
    /**
     * Bytes that were locked since the start.
     */
    uint64_t moved_in_bytes;
    /**
     * Bytes that had to make room since the start.
     */
    uint64_t moved_out_bytes;
    /**
     * Times a look was taken at what is used.
     */
    uint64_t looks;
    /**
     * Windows that the kernel refused to lock.
     */
    uint64_t refused;
};

/**
 * Read by tenure_pool_configure. Start from TENURE_POOL_OPTS_INIT.
 */
struct tenure_pool_opts {
    /**
     * sizeof(struct tenure_pool_opts).
     */
    size_t size;
    /**
     * How long a freed block stays warm before it is the kernel's to take, in ms (500).
     */
    uint64_t offer_after_ms;
    /**
     * How long after it was freed it leaves the resident set, in ms (10,000).
     */
    uint64_t return_after_ms;
    /**
     * How many bytes may be warm; 0: a quarter of what is free under the limits that hold.
     */
    uint64_t warm_max;
    /**
     * Not 0: no block gets huge pages. Takes effect for sizes that were not used before.
     */
    uint32_t never_huge;
    /**
     * Not 0: pages of freed blocks go back to the kernel at once. For a program that frees memory which the kernel
     * still reads or writes for it (vmsplice, MSG_ZEROCOPY, io_uring or AIO in flight).
     */
    uint32_t never_reuse;
};

/**
 * Written by tenure_pool_stats. Counts named `total_` are since the start, the others are of now.
 */
struct tenure_pool_stats {
    /**
     * Blocks that the program has.
     */
    uint64_t in_use;
    /**
     * The bytes it asked for with them.
     */
    uint64_t in_use_bytes;
    /**
     * Free blocks of which the kernel was told nothing.
     */
    uint64_t warm;
    /**
     * Their bytes that former users may have written.
     */
    uint64_t warm_bytes;
    /**
     * Free blocks that are the kernel's to take (MADV_FREE).
     */
    uint64_t offered;
    /**
     * Their bytes that former users may have written; some may be gone.
     */
    uint64_t offered_bytes;
    /**
     * Free blocks without memory.
     */
    uint64_t returned;
    /**
     * Their bytes of addresses.
     */
    uint64_t returned_bytes;
    /**
     * Bytes of addresses reserved for the pool.
     */
    uint64_t reserved_bytes;
    /**
     * Allocations.
     */
    uint64_t total_allocs;
    /**
     * Blocks given back.
     */
    uint64_t total_frees;
    /**
     * Allocations served from a warm block.
     */
    uint64_t total_warm_reuses;
    /**
     * Allocations served from an offered block.
     */
    uint64_t total_offered_reuses;
    /**
     * Bytes of those that former users had written: page faults avoided.
     */
    uint64_t total_reused_bytes;
    /**
     * Bytes zeroed for allocations that wanted zeros.
     */
    uint64_t total_zeroed_bytes;
    /**
     * Bytes offered.
     */
    uint64_t total_offered_bytes;
    /**
     * Bytes returned.
     */
    uint64_t total_returned_bytes;
    /**
     * Reallocations that stayed where they were.
     */
    uint64_t total_realloc_in_place;
    /**
     * Reallocations that moved page tables instead of copying.
     */
    uint64_t total_realloc_moved;
    /**
     * Their bytes.
     */
    uint64_t total_realloc_moved_bytes;
    /**
     * Blocks mapped anew because the program had changed their mapping's state or unmapped part of it.
     */
    uint64_t total_remapped;
    /**
     * Requests that could not be served.
     */
    uint64_t total_refused;
};

/**
 * How tenure_munmap works. Start from what is in force: tenure_retire_settings(&s, sizeof s).
 */
struct tenure_retire_settings {
    /**
     * sizeof(struct tenure_retire_settings).
     */
    size_t size;
    /**
     * Ranges below this many bytes are unmapped by plain munmap.
     */
    uint64_t min_bytes;
    /**
     * How long another thread may have to wait for one step of a teardown, in microseconds (1,000 unless
     * set).
     */
    uint64_t longest_stall_us;
    /**
     * How many resident bytes may wait to be given back; TENURE_PENDING_AUTOMATIC unless set.
     */
    uint64_t pending_max;
    /**
     * TENURE_FILES_AT_ONCE (unless set) or TENURE_FILES_LATER.
     */
    uint64_t files;
};

/**
 * Written by tenure_stats. Counts named `total_` are since the process started (in a forked child:
 * since its oldest ancestor did), the others are of now.
 */
struct tenure_stats {
    /**
     * Ranges known: pinned (not volatile), marked or offered. Buffers and a cache's segments count.
     */
    uint64_t ranges;
    /**
     * Ranges that are not volatile at the moment.
     */
    uint64_t pinned;
    /**
     * Their bytes.
     */
    uint64_t pinned_bytes;
    /**
     * Ranges that are volatile and not (yet) offered.
     */
    uint64_t marked;
    /**
     * Their bytes: memory that the program does not use, and that the kernel cannot take yet.
     */
    uint64_t marked_bytes;
    /**
     * Ranges that the kernel may take, or has taken.
     */
    uint64_t offered;
    /**
     * Their bytes; tenure_survey says how many are still there.
     */
    uint64_t offered_bytes;
    /**
     * Times known ranges were pinned or unmarked, as far as the ranges still exist (each counts to
     * 2^32).
     */
    uint64_t pins;
    /**
     * Ranges told to the kernel.
     */
    uint64_t total_offers;
    /**
     * Their bytes.
     */
    uint64_t total_offered_bytes;
    /**
     * Ranges taken back, purged or not.
     */
    uint64_t total_revivals;
    /**
     * Their bytes, as far as they were still there.
     */
    uint64_t total_revived_bytes;
    /**
     * Ranges that had lost something when they were taken back.
     */
    uint64_t total_purges;
    /**
     * The bytes they had lost.
     */
    uint64_t total_purged_bytes;
    /**
     * Calls of refill callbacks that succeeded.
     */
    uint64_t total_refills;
    /**
     * Bytes they wrote.
     */
    uint64_t total_refilled_bytes;
    /**
     * Calls of refill callbacks that failed.
     */
    uint64_t total_failed_refills;
    /**
     * Offers that the kernel refused, or that would have split a huge page or taken pages that
     * another process shares; tried again later.
     */
    uint64_t total_refused_offers;
    /**
     * Times the kernel reported pressure.
     */
    uint64_t total_pressure_events;
    /**
     * Scans of the worker, the background thread that offers.
     */
    uint64_t total_keeper_rounds;
    /**
     * Bytes that populates made ready, those that were there already included.
     */
    uint64_t total_populated_bytes;
    /**
     * Populates that failed, were cancelled or ran out of time.
     */
    uint64_t total_populate_failures;
    /**
     * Bytes that the program has from the pool; tenure_pool_stats says more.
     */
    uint64_t pool_in_use_bytes;
    /**
     * Bytes of the pool's free blocks of which the kernel was told nothing.
     */
    uint64_t pool_warm_bytes;
    /**
     * Bytes of free blocks that are the kernel's to take, or are taken.
     */
    uint64_t pool_offered_bytes;
    /**
     * Bytes of addresses of free blocks without memory.
     */
    uint64_t pool_returned_bytes;
    /**
     * Blocks that the pool handed out.
     */
    uint64_t total_pool_allocs;
    /**
     * Of those, blocks whose pages were there from an earlier use, or offered and perhaps there.
     */
    uint64_t total_pool_reuses;
    /**
     * Bytes of those pages: page faults avoided.
     */
    uint64_t total_pool_reused_bytes;
    /**
     * Bytes of free blocks told to the kernel.
     */
    uint64_t total_pool_offers_bytes;
    /**
     * Bytes of free blocks that left the resident set.
     */
    uint64_t total_pool_returns_bytes;
    /**
     * Reallocations that moved page tables instead of copying.
     */
    uint64_t total_pool_moves;
    /**
     * Retired mappings that wait to be torn down.
     */
    uint64_t retiring;
    /**
     * Their bytes of address space.
     */
    uint64_t retiring_bytes;
    /**
     * Mappings, or parts of them, that were moved away to be torn down later.
     */
    uint64_t total_retired_moved;
    /**
     * Their bytes of address space.
     */
    uint64_t total_retired_moved_bytes;
    /**
     * Bytes of address space unmapped in slices before the call returned.
     */
    uint64_t total_retired_in_slices_bytes;
    /**
     * Bytes of address space unmapped by one plain munmap.
     */
    uint64_t total_retired_plain_bytes;
    /**
     * Bytes of address space that were moved away and have been torn down since.
     */
    uint64_t total_torn_down_bytes;
    /**
     * Of those, what callers tore down because too much was waiting, or because they asked.
     */
    uint64_t total_retire_helped_bytes;
    /**
     * The longest step of a teardown in nanoseconds: what another thread may have waited for.
     */
    uint64_t retire_longest_slice_ns;
};

/**
 * Written by tenure_survey.
 */
struct tenure_survey {
    /**
     * Bytes offered when the survey passed.
     */
    uint64_t offered_bytes;
    /**
     * Of those, bytes that the kernel has discarded; their owners learn it at the next unmark.
     */
    uint64_t gone_bytes;
};

/**
 * What a program may set. Start from what is in force: tenure_settings(&s, sizeof s).
 */
struct tenure_settings {
    /**
     * sizeof(struct tenure_settings).
     */
    size_t size;
    /**
     * How long a range stays marked before it is offered to the kernel when memory is not short,
     * in microseconds (500,000 unless set).
     */
    uint64_t offer_after_us;
    /**
     * How many bytes may be marked and not offered; what is marked beyond that is offered at once,
     * oldest first. TENURE_AUTOMATIC (unless set): a quarter of what is free, at least 16 MiB.
     */
    uint64_t unoffered_max;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes `[addr, addr + len)` volatile: the kernel may come to be told that it can take the pages.
 * Marking what is marked already changes nothing; any page-aligned range will do, whether or not
 * it was marked in other pieces before.
 *
 * While a range is marked it must not be unmapped, replaced by another mapping, made read-only or
 * inaccessible, or locked: call tenure_mnovolatile or tenure_forget before. A page that is gone
 * raises SIGBUS when it is touched. Where tenure_detection() is TENURE_DETECTION_WORDS it reads as
 * zeros instead, and a marked range must not be written.
 *
 * Cost: no system call for a range marked before (about 30 ns, whatever its size); about 3 us the
 * first time, which checks it.
 *
 * Errors: EINVAL: empty, unaligned or wrapping; shared memory or a file's; locked; not readable and
 * writable. ENOMEM: part of it is not mapped, or 33 million ranges are known already. EOPNOTSUPP:
 * the kernel refuses MADV_FREE. EAGAIN: the worker's thread could not be started. Nothing is marked
 * then.
 */
int tenure_mvolatile(void *addr, size_t len);

/**
 * tenure_mvolatile with a priority, from 0 (given up first) to 7 (last). It holds until the range is
 * marked with another.
 *
 * Errors: as tenure_mvolatile; EINVAL also for a priority above 7.
 */
int tenure_mvolatile_priority(void *addr,
                              size_t len,
                              unsigned int priority);

/**
 * Makes `[addr, addr + len)` non-volatile and returns 0 if all of it is still there, 1 if at least
 * one page is gone. Pages that are gone read as zeros and can be written; every other byte is as it
 * was. Parts that were never marked count as there.
 *
 * Cost: no system call for a range that was not offered to the kernel (about 30 ns, whatever its
 * size). Offered: 0.5 us for a 2 MiB huge page, 140 ns for a 4 KiB page, and 1.2 us; purged: a look
 * at the page map (4 ns a page) as well.
 *
 * Errors: EINVAL: empty, unaligned or wrapping; or no longer writable. ENOMEM: part of it is not
 * mapped, or there is no memory for pages that a fork shares. After an error each part is either
 * volatile as before or the program's again; no loss is forgotten: the next call for it tells it.
 */
TENURE_MUST_USE int tenure_mnovolatile(void *addr, size_t len);

/**
 * tenure_mnovolatile that also says what went: `gone` is called for each extent that is gone, with
 * its offset from `addr`, in no particular order, before the function returns. It may be NULL.
 *
 * Errors: as tenure_mnovolatile.
 */
TENURE_MUST_USE int tenure_mnovolatile_map(void *addr, size_t len, tenure_gone_fn gone, void *arg);

/**
 * Offers what is marked in the range to the kernel now, without the usual wait.
 *
 * Errors: EINVAL: nothing in the range is marked, the range is empty, unaligned or wrapping, or
 * it was locked meanwhile. ENOMEM: the process has too many mappings. EBUSY: a process made by fork
 * shares the pages.
 */
int tenure_offer_now(void *addr, size_t len);

/**
 * Offers what is marked in the range and has the kernel discard it by its own reclaim: for tests,
 * and to give room back at once. The kernel may leave a page that is in use elsewhere;
 * tenure_mnovolatile_map says what went.
 *
 * Errors: as tenure_offer_now.
 */
int tenure_purge_now(void *addr, size_t len);

/**
 * Makes the range non-volatile and drops all that tenure knows of it, so that the program may unmap
 * it or use it for something else; the next tenure_mvolatile checks it anew.
 *
 * Errors: as tenure_mnovolatile.
 */
int tenure_forget(void *addr, size_t len);

/**
 * 1 if any page of the range is volatile, 0 if none is, or if the range is empty, unaligned or
 * wrapping, which no marked one can be.
 */
int tenure_is_volatile(const void *addr, size_t len);

/**
 * How purges are noticed in this process: TENURE_DETECTION_USERFAULTFD, or TENURE_DETECTION_WORDS
 * where userfaultfd is refused (many container profiles). `tenure doctor` says why.
 */
int tenure_detection(void);

/**
 * Has `handler` called on the thread that touches a purged page of a volatile range. It unmarks the
 * range, makes its contents and returns 1, and the access is tried again; or it returns 0, and the
 * SIGBUS handler that was installed before this call gets the signal (by default the process dies of
 * it). A second call replaces the handler; NULL passes every signal on from then on.
 *
 * The handler runs inside a signal handler, at an instruction of the program's own choosing: it may
 * call tenure, and whatever else the touching code could call at that point.
 *
 * tenure installs no signal handler before this is called. Where tenure_detection() is
 * TENURE_DETECTION_WORDS, purged pages raise no SIGBUS and the handler is never called.
 *
 * Errors: those of sigaction(2).
 */
int tenure_on_purged_access(tenure_purged_access_fn handler);

/**
 * Makes a buffer of `len` zeroed bytes, volatile from the start. Free it with tenure_volatile_free.
 *
 * From 2 MiB on it is made of huge pages, where the kernel has them: they are a thousand times
 * cheaper to offer and to take back.
 *
 * Errors (NULL): EINVAL: the length is 0. ENOMEM: no address space, too many mappings. EOPNOTSUPP:
 * the kernel refuses MADV_FREE. EAGAIN: the worker's thread could not be started.
 */
TENURE_MUST_USE struct tenure_volatile *tenure_volatile_new(size_t len);

/**
 * tenure_volatile_new with options; NULL for the defaults.
 *
 * Errors (NULL): as tenure_volatile_new; EINVAL also for a wrong size, priority or refill_scope.
 * E2BIG: something is set that this version does not know. arg stays the caller's then.
 */
TENURE_MUST_USE
struct tenure_volatile *tenure_volatile_new_with(size_t len,
                                                 const struct tenure_volatile_opts *opts);

/**
 * Frees a buffer; NULL is let through. Its bytes must not be touched afterwards, pinned or not.
 */
void tenure_volatile_free(struct tenure_volatile *v);

/**
 * Makes the bytes stay, and says what became of them: 0 everything is as it was last written, 1
 * something is gone and reads as zeros. `*bytes` is then their address (always the same one; `bytes`
 * may be NULL). With a refill callback what is gone has been made again, and the answer is 0.
 *
 * Pins are counted: each needs its tenure_volatile_unpin, on any thread, and the buffer is volatile
 * again after the last. Once something was lost every pin returns 1, nested ones too, until
 * tenure_volatile_restored says that it was made again.
 *
 * The bytes may be written while pinned; threads that have it pinned at once settle that among
 * themselves.
 *
 * Cost: not offered to the kernel: one atomic instruction, and one for the unpin, whatever the size.
 * Offered: as tenure_mnovolatile.
 *
 * Errors: EINVAL: NULL. EIO: the refill callback failed; the bytes are as before, and the next pin
 * tries again. EDEADLK: the refill callback pins the buffer that it makes, or waits for a thread that
 * does. ENOMEM: no memory for pages that a fork shares. The buffer is not pinned by this call then, and
 * nothing is lost.
 */
TENURE_MUST_USE
int tenure_volatile_pin(struct tenure_volatile *v,
                        void **bytes);

/**
 * Takes a pin away: exactly one for each tenure_volatile_pin that did not fail.
 *
 * Errors: EINVAL: NULL, or it is not pinned.
 */
int tenure_volatile_unpin(struct tenure_volatile *v);

/**
 * Says what was lost and not restored: `gone` (which may be NULL) is called for each extent, with its
 * offset in the buffer, in order. Returns 0 if nothing is, 1 otherwise. Call it while pinned: the
 * answer holds as long as the pin.
 *
 * Errors: as tenure_volatile_pin.
 */
int tenure_volatile_lost(struct tenure_volatile *v,
                         tenure_gone_fn gone,
                         void *arg);

/**
 * Declares the contents good again after they were lost. Call it while pinned.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_volatile_restored(struct tenure_volatile *v);

/**
 * Changes how willingly the buffer is given up, from 0 (first) to 7 (last).
 *
 * Errors: EINVAL: NULL, or a priority above 7.
 */
int tenure_volatile_set_priority(struct tenure_volatile *v, unsigned int priority);

/**
 * The buffer's length in bytes; 0 for NULL.
 */
size_t tenure_volatile_len(const struct tenure_volatile *v);

/**
 * The address of the first byte, for code that touches the bytes without a pin: a page that is gone
 * raises SIGBUS, or is refilled while the toucher waits; if the refill fails, SIGBUS. Where
 * tenure_detection() is TENURE_DETECTION_WORDS it reads as zeros, so there the bytes may be read only
 * while pinned. Without a pin they are never to be written. NULL for NULL.
 */
void *tenure_volatile_address(const struct tenure_volatile *v);

/**
 * Tells the kernel now that it may take the bytes, without the usual wait.
 *
 * Errors: EINVAL: NULL, or pinned. Others as tenure_offer_now.
 */
int tenure_volatile_offer_now(struct tenure_volatile *v);

/**
 * tenure_volatile_offer_now, and has the kernel discard the bytes by its own reclaim; `*gone` (which
 * may be NULL) is then how many are gone.
 *
 * Errors: as tenure_volatile_offer_now.
 */
int tenure_volatile_purge_now(struct tenure_volatile *v,
                              size_t *gone);

/**
 * Makes a cache; it takes no memory before the first value is put in. `opts` may be NULL. Free it
 * with tenure_cache_free.
 *
 * Errors (NULL): EINVAL: a wrong size or priority. E2BIG: something is set that this version does not
 * know. EOPNOTSUPP: the kernel refuses MADV_FREE. EAGAIN: the worker's thread could not be started.
 */
TENURE_MUST_USE
struct tenure_cache *tenure_cache_new(const struct tenure_cache_opts *opts);

/**
 * Frees a cache; NULL is let through. No other call on it may be under way. Values that were got from
 * it stay valid until they are released, and its memory goes with the last of them.
 */
void tenure_cache_free(struct tenure_cache *c);

/**
 * Puts a copy of the value under a copy of the key, in the place of the value before. Both may be of
 * length 0, and then NULL.
 *
 * Errors: EINVAL: NULL with a length; a value longer than 4 GiB. ENOMEM: neither the kernel nor the
 * ceiling has room for it, whatever is evicted. The key has no value then.
 */
int tenure_cache_insert(struct tenure_cache *c,
                        const void *key,
                        size_t key_len,
                        const void *value,
                        size_t value_len);

/**
 * The value under a key, pinned; its bytes are at `*bytes`, `*len` of them (either may be NULL).
 * Release it soon with tenure_value_release: while it is held, the kernel cannot take the 2 MiB segment
 * that it lies in. While very many values are held, the bytes are a copy.
 *
 * NULL with errno ENOENT, and tenure_last_error() as it was, if there is no value: it was never there,
 * was evicted or purged, or its time is over.
 *
 * Cost: a pin and an unpin, two atomic instructions for the index, and a small allocation.
 * If the segment was offered to the kernel: taking it back, 0.6 us (huge page) or 70 us.
 *
 * Errors (NULL): EINVAL: NULL with a length.
 */
TENURE_MUST_USE
struct tenure_value *tenure_cache_get(struct tenure_cache *c,
                                      const void *key,
                                      size_t key_len,
                                      const void **bytes,
                                      size_t *len);

/**
 * tenure_cache_get that has a missing value made: `make` is called with `arg` on the calling thread,
 * once however many threads ask for the key meanwhile; they wait. If the cache has no room
 * for the value it is returned all the same (see tenure_value_is_cached). If `make` fails, a thread
 * that waited tries itself.
 *
 * Errors (NULL): EINVAL: NULL with a length, or `make` is NULL; the value made is longer than 4 GiB.
 * EIO: `make` failed. EDEADLK: the value is being made by this thread, or by one that waits for this
 * thread, for another value or for a buffer's refill.
 *
 * An insert, a removal or a clear of the key that comes while `make` runs wins: what `make` gave is
 * returned and not kept.
 */
TENURE_MUST_USE
struct tenure_value *tenure_cache_get_or_insert(struct tenure_cache *c,
                                                const void *key,
                                                size_t key_len,
                                                tenure_make_fn make,
                                                void *arg,
                                                const void **bytes,
                                                size_t *len);

/**
 * Room for the value that a make callback is making: `len` bytes, zeroed where they are new. May be
 * called again, to grow or shrink; what was written is kept, but it may lie elsewhere. Only for use
 * inside the callback.
 *
 * Errors (NULL): EINVAL: NULL. ENOMEM: no memory; what was there before is kept.
 */
TENURE_MUST_USE void *tenure_made_resize(struct tenure_made *into, size_t len);

/**
 * Whether the value is in the cache: 0 if it was made by tenure_cache_get_or_insert and found no room,
 * and for NULL.
 */
int tenure_value_is_cached(const struct tenure_value *value);

/**
 * Lets a value go, on any thread; NULL is let through. Its bytes must not be touched afterwards.
 */
void tenure_value_release(struct tenure_value *value);

/**
 * Removes a key and its value: 1, or 0 if there was none. The space is free when the last value of its
 * segment is released.
 *
 * Errors: EINVAL: NULL with a length.
 */
int tenure_cache_remove(struct tenure_cache *c,
                        const void *key,
                        size_t key_len);

/**
 * Removes everything.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_cache_clear(struct tenure_cache *c);

/**
 * Writes what the cache has done and holds to `*out`, which has `size` bytes, as tenure_stats does.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_cache_stats(struct tenure_cache *c, struct tenure_cache_stats *out, size_t size);

/**
 * Locks the pages that [addr, addr + len) touches: TENURE_MLOCK_LOCKED makes all of it resident and keeps it so,
 * TENURE_MLOCK_ONFAULT keeps each page from its first touch on; exactly one of them. The whole length
 * is charged against RLIMIT_MEMLOCK either way, once.
 *
 * Unlike the kernel's mlock2 it changes nothing when it fails, a lock on fault does not weaken a full
 * one, and memory of which the kernel only pretends to lock it (MAP_DROPPABLE) is an error. The two
 * kinds are kept apart: see tenure_munlock2. It is not counted: a second call adds nothing.
 *
 * Cost: on fault about 7 us for a mapping of any size with nothing locked in it.
 *
 * Errors: EINVAL: empty or wrapping; flags are not exactly one kind; part of it is
 * volatile; MAP_DROPPABLE. ENOMEM: over the limit; a hole; too many mappings; with
 * TENURE_MLOCK_LOCKED also a page past the end of its file, a guard page, one without access, a full
 * tmpfs: tenure_last_error() says which, where and what to do. EPERM: the limit is 0. EAGAIN: no
 * memory to make all of it resident.
 */
int tenure_mlock2(const void *addr,
                  size_t len,
                  unsigned int flags);

/**
 * Clears the kinds of lock named from the pages that [addr, addr + len) touches, and no others: a range locked in both ways
 * and cleared of TENURE_MLOCK_LOCKED stays locked on fault. Pages that stay locked are not unlocked
 * even for an instant.
 *
 * Cost: one system call where nothing is locked; else a reading of /proc/self/smaps (10 ns for each
 * resident page of the process).
 *
 * Errors: EINVAL: empty or wrapping; no kind, or one that there is not. ENOMEM: part of it
 * is not mapped; too many mappings; the limit was lowered below what is locked. Nothing is changed
 * then.
 */
int tenure_munlock2(const void *addr,
                    size_t len,
                    unsigned int flags);

/**
 * Locks everything that is mapped (MCL_CURRENT), everything that will be (MCL_FUTURE),
 * or both; with MCL_ONFAULT each page from its first touch on. Without MCL_FUTURE it
 * ends an earlier one. The flags are those of <sys/mman.h>. Unlike the kernel's call it does not weaken what is locked in full.
 *
 * Errors: EINVAL: neither MCL_CURRENT nor MCL_FUTURE, or an unknown flag; memory is
 * volatile (with MCL_CURRENT). ENOMEM: more is mapped than the limit allows to be locked.
 * EPERM: the limit is 0. Nothing is changed then.
 */
int tenure_mlockall(int flags);

/**
 * Clears what tenure_mlockall set: MCL_CURRENT full locks of what is mapped,
 * MCL_ONFAULT locks on fault of what is mapped and future ones, MCL_FUTURE the locking of
 * mappings to come. Pages that stay locked are not unlocked even for an instant.
 *
 * Errors: EINVAL: no flag, or an unknown one. ENOMEM: a future lock is to end while something stays
 * locked, and more is mapped than the limit allows to be locked. Nothing is changed then.
 */
int tenure_munlockall2(int flags);

/**
 * mmap(2), and with TENURE_MAP_LOCKONFAULT among the flags the mapping is locked on fault from birth:
 * no page that is ever touched is paged out, and none is resident yet. With MAP_FIXED as well, what is
 * mapped there is replaced only once the new mapping is locked. Returns MAP_FAILED (not NULL) on
 * failure.
 *
 * Errors: mmap's. With TENURE_MAP_LOCKONFAULT also EAGAIN: over RLIMIT_MEMLOCK; EPERM: the limit is 0;
 * EINVAL: MAP_LOCKED as well, or MAP_DROPPABLE. Nothing is mapped then, and what was there still is.
 */
void *tenure_mmap(void *addr,
                  size_t len,
                  int prot,
                  int flags,
                  int fd,
                  int64_t off);

/**
 * Makes the pages that `[addr, addr + len)` touches resident (addr is a multiple of the page size), for reading or for writing (`how`), in as many
 * threads as are useful. What the pages hold does not change. `opts` may be NULL, and so may
 * `result`, which is written also on failure: everything before result->first_missing is populated.
 *
 * Where MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14) are missing, the kernel is made to
 * touch each page, with the same answers; nothing here raises a signal.
 *
 * Errors: EINVAL: addr NULL or unaligned, empty, a volatile range, a special mapping (device or secret
 * memory), or options that make no sense. ENOMEM: not mapped, or no memory. EACCES: the mapping's
 * protection does not allow it. EFAULT: past the end of the file, a guard region, or a page that
 * userfaultfd watches. ENOSPC: the file system, tmpfs or pool of huge pages is full. EHWPOISON: the
 * hardware lost the page. ETIMEDOUT: the deadline passed. ECANCELED: the callback asked for it.
 * EBADF: fd. E2BIG: opts has more than tenure knows, or a size is no size. EAGAIN: no thread could be
 * started beside the callback.
 *
 * Cost: the kernel's own, for up to 4 MiB in one call; beyond, a microsecond for each piece of a few
 * milliseconds.
 */
int tenure_populate(const void *addr,
                    size_t len,
                    int how,
                    const struct tenure_populate_opts *opts,
                    struct tenure_populate_result *result);

/**
 * Begins to populate in the background, in threads that take no signals. The handle is for
 * tenure_populate_end or tenure_populate_detach. In a child made by fork it counts as over.
 *
 * Errors: as tenure_populate, as far as they can be told beforehand. EAGAIN: no thread could be
 * started. EINVAL also: opts->progress is set.
 */
struct tenure_populating *tenure_populate_start(const void *addr,
                                                size_t len,
                                                int how,
                                                const struct tenure_populate_opts *opts);

/**
 * Writes how far it is to `*out`, which has `size` bytes.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_populate_progress(const struct tenure_populating *p,
                             struct tenure_populate_progress *out,
                             size_t size);

/**
 * Has it end at its next piece, a few milliseconds later, without waiting for that.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_populate_cancel(const struct tenure_populating *p);

/**
 * Waits until it is over, at most `timeout_ms`; less than 0: however long it takes. 0: it is over;
 * 1: not yet.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_populate_wait(const struct tenure_populating *p, int timeout_ms);

/**
 * Waits until it is over, frees the handle and returns what tenure_populate would have. `result` may
 * be NULL. To end it sooner: tenure_populate_cancel first. The handle is freed unless this is EINVAL.
 *
 * Errors: as tenure_populate. ECANCELED also: in a child made by fork.
 */
int tenure_populate_end(struct tenure_populating *p,
                        struct tenure_populate_result *result);

/**
 * Frees the handle and lets the populate go on. The range should stay mapped until it is done.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_populate_detach(struct tenure_populating *p);

/**
 * Gives the pages of `[addr, addr + len)` back; the range stays mapped. Anonymous memory reads as
 * zeros then, locked or not; a private mapping of a file, memfd or hugetlbfs reads as the file does;
 * shared memory, memfds, tmpfs and hugetlbfs lose the contents for every process that maps them. A file on disk
 * that is mapped shared is refused: it would lose its data.
 *
 * Nothing is discarded unless all of it can be.
 *
 * Errors: EINVAL: unaligned or empty, a volatile range, a file on disk mapped shared, a special
 * mapping, part of a huge page of the pool, locked shared memory, or any locked memory before Linux
 * 5.18. EACCES: shared memory
 * mapped read-only. ENOMEM: part of it is not mapped.
 */
int tenure_discard(void *addr,
                   size_t len);

/**
 * Locks the pages that [addr, addr + len) touches, as tenure_mlock2 does, and counted: overlapping
 * locks nest, and tenure_unlock leaves locked what another one, tenure_mlock2 or tenure_mlockall
 * still wants locked. NULL on failure.
 *
 * Errors: as tenure_mlock2. Nothing is locked then.
 */
struct tenure_held *tenure_lock(const void *addr, size_t len, unsigned int flags);

/**
 * Gives a lock back and frees the handle; NULL is nothing to do. Before or after the memory is
 * unmapped is the same. In a forked child it unlocks nothing, for a child inherits no locks.
 */
void tenure_unlock(struct tenure_held *l);

/**
 * Writes how [addr, addr + len) is locked in fact, by the kernel's own books, mapping by mapping in
 * order of address: at most `room` parts of `part_size` bytes each (sizeof(struct tenure_lock_part)).
 * Where two parts do not touch, nothing is mapped between. Returns how many parts there are, which may
 * be more than `room`; `parts` may be NULL with a `room` of 0.
 *
 * Cost: a reading of /proc/self/smaps up to the end of the range (10 ns for each resident page).
 *
 * Errors: EINVAL: empty or wrapping; NULL with a room. E2BIG: part_size is no structure's. Others:
 * /proc/self/smaps or /proc/self/pagemap could not be read.
 */
int tenure_lock_receipt(const void *addr,
                        size_t len,
                        struct tenure_lock_part *parts,
                        size_t part_size,
                        size_t room);

/**
 * Says whether `bytes` more could be locked, without locking anything: 0: yes; 1: no, and
 * tenure_last_error() then says what is missing and what to write for a shell, systemd, Docker and
 * Kubernetes. `out` may be NULL; else it has `size` bytes. Cost: about 200 us.
 *
 * Errors: EINVAL, E2BIG: the size is no structure's. Others: /proc is not mounted.
 */
int tenure_lock_explain(uint64_t bytes, struct tenure_lock_answer *out, size_t size);

/**
 * Locks the pages that [addr, addr + len) touches on fault, and makes them resident in the background: usable at once, whole
 * soon, each page locked from the moment it is there. Files are populated for reading, other memory
 * for writing. NULL on failure. The caller waits 0.1 to 0.2 ms for the start of two threads.
 *
 * Errors: as tenure_mlock2 with TENURE_MLOCK_ONFAULT; EAGAIN: no thread could be started. Nothing is
 * locked then.
 */
struct tenure_gradual *tenure_lock_gradually(const void *addr,
                                             size_t len);

/**
 * Writes how far the background is to `*out`, which has `size` bytes.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_gradual_progress(const struct tenure_gradual *g,
                            struct tenure_populate_progress *out,
                            size_t size);

/**
 * Waits until all of it is resident, at most `timeout_ms`; less than 0: however long it takes. 0: it
 * is; 1: not yet. `result` may be NULL; it is written when it is over. Waiting again returns the same.
 *
 * Errors: as tenure_populate: what could not be made resident. The lock stays.
 */
int tenure_gradual_wait(const struct tenure_gradual *g,
                        int timeout_ms,
                        struct tenure_populate_result *result);

/**
 * Ends the background, unlocks, and frees the handle. NULL is nothing to do.
 */
void tenure_gradual_end(struct tenure_gradual *g);

/**
 * Keeps locked what was last used of the pages that [addr, addr + len) touches, `budget` bytes at most; the rest stays the
 * kernel's to page out. For a range larger than RLIMIT_MEMLOCK allows. A page that was touched is
 * locked some 20 ms later. NULL on failure. Costs 24 bytes for each window of which something is
 * resident (a 16th to a quarter of the budget, 2 MiB or a thousandth of large ones).
 *
 * Until tenure_within_end the range must stay mapped as it is: pages of shared mappings are taken out
 * of the page table to see whether they are used again, and private memory mapped there instead could
 * lose its contents.
 *
 * Errors: EINVAL: empty or wrapping; volatile; a budget below 16 pages. ENOMEM, EPERM: the
 * budget is more than may still be locked. ENOMEM: part of it is not mapped. EAGAIN: no thread could
 * be started.
 */
struct tenure_within *tenure_lock_within(const void *addr,
                                         size_t len,
                                         size_t budget);

/**
 * Writes how it stands to `*out`, which has `size` bytes.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_within_status(const struct tenure_within *w,
                         struct tenure_within_status *out,
                         size_t size);

/**
 * Unlocks all of it and frees the handle. NULL is nothing to do.
 */
void tenure_within_end(struct tenure_within *w);

/**
 * A block of `size` bytes, page-aligned, with whatever its former user left there: a page of it may
 * change by itself until it is first written. The smallest block has 64 KiB; ask malloc for less.
 * NULL on failure.
 *
 * The first call starts the worker, the thread that gives free blocks to the kernel; a program whose
 * malloc is built on this calls tenure_pool_prepare at a safe moment before.
 *
 * Cost: 50 to 100 ns for a block that is warm or offered.
 *
 * Errors: ENOMEM: more than the largest block (128 GiB where addresses are not limited), or the kernel
 * refuses to map more.
 */
void *tenure_alloc(size_t size);

/**
 * The same for `count` times `size` bytes, all zeros. Of a block that was used before only the pages
 * that are there are zeroed.
 *
 * Errors: as tenure_alloc; ENOMEM also where the product overflows.
 */
void *tenure_calloc(size_t count,
                    size_t size);

/**
 * The same as tenure_alloc at a multiple of `align`, a power of two.
 *
 * Errors: as tenure_alloc; EINVAL: not a power of two.
 */
void *tenure_aligned_alloc(size_t align, size_t size);

/**
 * Makes a block hold `size` bytes, as realloc: here or elsewhere, with its contents. Large blocks move
 * without being copied. NULL: as tenure_alloc. NULL is returned on failure, and the block is as it was.
 *
 * Errors: as tenure_alloc.
 */
void *tenure_realloc(void *p,
                     size_t size);

/**
 * Gives a block back; NULL is let be. errno stays as it is. A pointer that is not a block's start, or
 * was freed before, ends the process with a message on standard error.
 */
void tenure_free(void *p);

/**
 * How many bytes the block has room for; all may be used from then on. 0: NULL, or not a block that is
 * in use.
 */
size_t tenure_usable_size(const void *p);

/**
 * 1: the address lies in the pool's range. 0: it does not. One comparison.
 */
int tenure_pool_owns(const void *p);

/**
 * Gives the memory of all that is free in the pool back to the kernel at once, as malloc_trim. 1: there was some;
 * 0: there was none.
 */
int tenure_pool_trim(void);

/**
 * Starts the worker for the pool, for programs that must not have a thread created in tenure_alloc.
 *
 * Errors: EAGAIN: no thread could be created. ENOMEM: no addresses could be reserved.
 */
int tenure_pool_prepare(void);

/**
 * Sets how the pool works. NULL: as it is without being set.
 *
 * Errors: EINVAL, E2BIG: a wrong size.
 */
int tenure_pool_configure(const struct tenure_pool_opts *opts);

/**
 * Writes the pool's statistics to `*out`, which has `size` bytes.
 *
 * Cost: about 2 us; no system call.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_pool_stats(struct tenure_pool_stats *out, size_t size);

/**
 * munmap, for large mappings in a few microseconds: when it returns, the addresses are gone (a touch
 * raises SIGSEGV, a new mapping may take them), and the memory follows in the background, without keeping
 * other threads from mapping, unmapping or faulting. Any mappings, holes allowed, lengths rounded up to
 * pages, as munmap has it.
 *
 * The first call of a process (or of a forked child) for a large range creates the background thread, which allocates:
 * tenure_munmap_raw is for allocators. Where no thread can be created the range is unmapped in slices: other
 * threads do not wait, the caller does. Memory that waits counts as the process's: see tenure_munmap_drain.
 *
 * Errors: munmap's, with nothing changed. EINVAL: empty, unaligned, past the end of the address space, or
 * its ends cut a huge page of hugetlbfs. EPERM: sealed. ENOMEM: it would make two of a mapping, and there
 * are vm.max_map_count already.
 */
int tenure_munmap(void *addr,
                  size_t len);

/**
 * tenure_munmap for an allocator's own use: it neither allocates nor creates a thread, and a signal handler may
 * call it. Until tenure_munmap_prepare (or tenure_munmap of a large range) was called in the process it works in
 * slices, which take the caller as long as munmap takes or longer.
 *
 * Errors: as tenure_munmap. tenure_last_error() has nothing to add, for that would take memory.
 */
int tenure_munmap_raw(void *addr,
                      size_t len);

/**
 * Starts the background thread and watches forks, for tenure_munmap_raw. To be called once in a process, and
 * again in a forked child, wherever memory may be allocated; later calls cost a few loads. tenure_munmap does
 * it by itself.
 *
 * Errors: EAGAIN: no thread could be created.
 */
int tenure_munmap_prepare(void);

/**
 * Waits until the memory of all that tenure_munmap has taken away is back, at most `timeout_ms`; less than
 * 0: however long it takes. The caller helps. 0: it is; 1: not yet.
 */
int tenure_munmap_drain(int timeout_ms);

/**
 * Writes how tenure_munmap works at present to `*out`, which has `size` bytes.
 *
 * Errors: EINVAL: NULL, or no room for the size field.
 */
int tenure_retire_settings(struct tenure_retire_settings *out, size_t size);

/**
 * Sets it, for the whole process and from the next call on.
 *
 * Errors: EINVAL: NULL, the size field is too small, or an unknown value of files. E2BIG: something is set
 * that this version does not know.
 */
int tenure_retire_configure(const struct tenure_retire_settings *settings);

/**
 * Writes the statistics of the process to `*out`, which has `size` bytes: pass sizeof *out. An older
 * program gets the fields it knows; a newer one gets zeros in those that the library does not.
 *
 * Cost: one look at each known range (about 3 ns); no system call.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_stats(struct tenure_stats *out,
                 size_t size);

/**
 * Looks at every offered page, touching none, and writes how much is still there to `*out`, which
 * has `size` bytes.
 *
 * Cost: 4 ns a page (PAGEMAP_SCAN, Linux 6.7; before, a read of /proc/self/pagemap).
 *
 * Errors: EINVAL: NULL. Others: /proc/self/pagemap could not be read.
 */
int tenure_survey(struct tenure_survey *out, size_t size);

/**
 * Writes the settings in force to `*out`, which has `size` bytes; its own size field says how many
 * of them are meant.
 *
 * Errors: EINVAL: NULL, or no room for the size field.
 */
int tenure_settings(struct tenure_settings *out, size_t size);

/**
 * Sets them, for the whole process; takes effect at the worker's next scan, at once if it sleeps.
 *
 * Errors: EINVAL: NULL, or the size field is too small. E2BIG: something is set that this version
 * does not know.
 */
int tenure_configure(const struct tenure_settings *settings);

/**
 * Ends tenure's background threads, gives back what tenure_munmap left to them, and waits until the kernel counts
 * them no more: before unshare, setns, capset, a seccomp filter, Landlock, and other calls for a process with one
 * thread, or for the calling thread only. The next call that needs a thread starts it anew, with the rights of its
 * caller. Until then marked ranges stay marked. The two threads that make pages again for touches of buffers with a
 * refill function stay.
 *
 * 0: they have ended; 1: not within a second (Linux before 5.9, or close_range is refused).
 */
int tenure_end_background_threads(void);

/**
 * The sentence behind this thread's last failure: which call, on which range, why, and what to do
 * about it. Never NULL; empty if no call of this thread has failed. Valid until the thread's next
 * call that fails, or its end.
 */
const char *tenure_last_error(void);

/**
 * The version of the library, such as "0.1.0".
 */
const char *tenure_version(void);

extern int pthread_setcancelstate(int state, int *before);

extern int pthread_setcanceltype(int kind, int *before);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TENURE_H */

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
