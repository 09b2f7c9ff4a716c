/* tenure: control over how long memory pages stay, for Linux 5.10 and later.
 *
 * For programs with large caches and buffers: when memory runs short, the kernel takes volatile memory
 * instead of killing the program, and the program learns exactly which pages are gone.
 *
 *  - struct tenure_cache: values under keys. It has no size: it grows while there is room;
 *  - struct tenure_volatile: one buffer that the kernel may take while it is not pinned;
 *  - struct tenure_shared: volatile memory that several processes share;
 *  - tenure_mvolatile and its relatives: ranges that the program has mapped itself;
 *  - tenure_lock, tenure_mlock2 and their relatives: pages that the kernel does not page out, all of
 *    them now or each page from its first touch on;
 *  - tenure_populate: pages that are resident before their use, with an error instead of a signal;
 *  - tenure_alloc: large blocks; a freed block stays warm, and the kernel may take it;
 *  - tenure_munmap: the addresses are free at once, and the memory follows without stalling other threads.
 *
 * A mark makes a range volatile, and an unmark or a pin makes it stay. The worker, a background thread
 * that is named tenure-keeper, offers marked ranges to the kernel. The kernel purges pages of them when
 * it needs memory. A pin takes the range back, and reports each purge exactly once.
 *
 * Unless its comment has another rule, a function returns 0 on success, and -1 with errno set on failure.
 * Functions that return a pointer return NULL on failure. tenure_last_error() then returns the reason and a
 * remedy in a sentence. On success errno may have any value. Unless its comment has another rule, any number
 * of threads may call a function at once.
 *
 * A function that needs a pointer fails with EINVAL if it gets NULL. It fails with EIO for a bug inside
 * tenure that would end a Rust program with a panic. If malloc has no memory for the copy of a key or for
 * tenure's records, which are small, the process may end with SIGABRT, as Rust programs do. Callbacks must
 * return: no longjmp, no pthread_exit and no C++ exception may leave them.
 *
 * No function is a cancellation point, and no thread is cancelled inside one. A pthread_cancel that comes
 * meanwhile takes effect at the thread's next cancellation point, or, if the thread's type of cancellation
 * is asynchronous, when the function returns. So pthread_cancel does not end a call that waits
 * (tenure_populate_wait, for instance). Callbacks run with cancellation off, and must not turn it on. This
 * costs each call about 20 ns.
 *
 * Structures that may grow carry their size. The program passes a structure that tenure fills in together
 * with its size: tenure writes the fields that both know, and zeros for the rest. A structure that the
 * program fills in starts with its size. Fields that it lacks have their defaults. If it is longer than
 * tenure knows, the rest must be zero: otherwise the call fails with E2BIG, and ignores nothing.
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
#define TENURE_CACHE_OPTS_INIT { sizeof(struct tenure_cache_opts), TENURE_PRIORITY_DEFAULT, 0, 0, 0, NULL, NULL, NULL, 0 }
#define TENURE_SHARED_OPTS_INIT { sizeof(struct tenure_shared_opts), 0, 0, 0, NULL, NULL, NULL }
#define TENURE_POOL_OPTS_INIT { sizeof(struct tenure_pool_opts), 500, 10000, 0, 0, 0 }
#define TENURE_POPULATE_OPTS_INIT { sizeof(struct tenure_populate_opts), 0, 0, 0, -1, 0, NULL, NULL }
#define TENURE_POPULATE_RESULT_INIT { sizeof(struct tenure_populate_result), 0, 0, 0, 0, NULL }

/**
 * The priority of memory that the kernel takes first.
 */
#define TENURE_PRIORITY_LOWEST 0

/**
 * The priority of memory for which the program sets none.
 */
#define TENURE_PRIORITY_DEFAULT 4

/**
 * The priority of memory that the kernel takes last.
 */
#define TENURE_PRIORITY_HIGHEST 7

/**
 * A purged page raises SIGBUS when it is touched (userfaultfd).
 */
#define TENURE_DETECTION_USERFAULTFD 1

/**
 * A purged page reads as zeros when it is touched. Unmarking and pinning report purges just as
 * exactly. The program must not write to a marked range, and touches are not refilled.
 */
#define TENURE_DETECTION_WORDS 2

/**
 * For refill_scope: the callback makes the bytes that it is asked for, single pages and longer
 * extents.
 */
#define TENURE_REFILL_PAGES 0

/**
 * For refill_scope: the callback always makes the whole buffer. tenure uses only the purged bytes.
 */
#define TENURE_REFILL_WHOLE 1

/**
 * The key was removed, by tenure_cache_remove, tenure_cache_clear or tenure_cache_retain.
 */
#define TENURE_REMOVED 0

/**
 * Another value was put under the key.
 */
#define TENURE_REPLACED 1

/**
 * The value's time to live was over.
 */
#define TENURE_EXPIRED 2

/**
 * The cache dropped the value to make room.
 */
#define TENURE_EVICTED 3

/**
 * The kernel took the value's memory.
 */
#define TENURE_PURGED 4

/**
 * The state of a chunk that is pinned: every byte is as its maker left it.
 */
#define TENURE_SHARED_INTACT 0

/**
 * The chunk was made, and is gone. The caller makes it. No other process gets this state.
 */
#define TENURE_SHARED_PURGED 1

/**
 * No process has made the chunk yet. The caller makes it.
 */
#define TENURE_SHARED_FRESH 2

/**
 * A maker died or gave up before it had finished it. The caller makes the chunk.
 */
#define TENURE_SHARED_HALF_MADE 3

/**
 * Another thread or process makes the chunk: tenure_shared_wait.
 */
#define TENURE_SHARED_BEING_MADE 4

/**
 * For tenure_mlock2 and tenure_munlock2: all pages now.
 */
#define TENURE_MLOCK_LOCKED 1

/**
 * For tenure_mlock2 and tenure_munlock2: each page from its first touch on.
 */
#define TENURE_MLOCK_ONFAULT 2

/**
 * For tenure_mmap, with mmap's own flags: the mapping is locked on fault from the start. Linux
 * does not use this bit, and it does not reach the kernel.
 */
#define TENURE_MAP_LOCKONFAULT 16777216

/**
 * For reading. Files come into the page cache and stay clean. Anonymous memory gets the zero page,
 * and takes no memory.
 */
#define TENURE_POPULATE_READ 1

/**
 * For writing. The call takes memory, allocates holes of shared files, and copies private file
 * mappings.
 */
#define TENURE_POPULATE_WRITE 2

/**
 * For flags: no MADV_HUGEPAGE first.
 */
#define TENURE_POPULATE_NO_HUGE_PAGES 1

/**
 * For flags: refuse a populate beforehand that would not fit into the memory cgroup or the machine
 * (ENOMEM), the tmpfs or the pool of huge pages (ENOSPC). Without this flag the kernel may call
 * its OOM killer if a cgroup or the machine has no room. Where /proc/self/pagemap cannot be read
 * (after setuid), pages that are there already count as needed, too. Where /proc/self/maps cannot
 * be read, all of the range does, also for reading.
 */
#define TENURE_POPULATE_WITHIN_ROOM 2

/**
 * For flags: allocate the holes of the shared file `fd` (fallocate) also if that is not the
 * default.
 */
#define TENURE_POPULATE_ALLOCATE 4

/**
 * For flags: never allocate the holes of `fd`.
 */
#define TENURE_POPULATE_NO_ALLOCATE 8

/**
 * Not locked.
 */
#define TENURE_LOCK_NONE 0

/**
 * Locked in full: the pages that were resident at the lock, and every page from its first touch
 * on.
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
 * A state that this header does not name.
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
 * The hard limit is too low: raise it where the process is started.
 */
#define TENURE_LOCK_RAISE_HARD 3

/**
 * For tenure_retire_settings.pending_max: tenure finds the bound from the limits of the process.
 */
#define TENURE_PENDING_AUTOMATIC UINT64_MAX

/**
 * For tenure_retire_settings.files: the call gives up file mappings before it returns.
 */
#define TENURE_FILES_AT_ONCE 0

/**
 * For tenure_retire_settings.files: the worker gives up file mappings later, as other memory.
 * Until then the file system cannot be unmounted, and a memfd cannot be sealed against writes.
 */
#define TENURE_FILES_LATER 1

/**
 * For tenure_settings.unoffered_max: tenure finds the bound from the limits of the process.
 */
#define TENURE_AUTOMATIC UINT64_MAX

/**
 * A cache without a size: it grows while there is room, and shrinks when other programs need the
 * memory. A get returns the inserted bytes, or nothing; it never returns wrong or partial bytes.
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
 * The place where a make callback puts the value that it makes.
 */
struct tenure_made;

/**
 * A populate in the background.
 */
struct tenure_populating;

/**
 * A buffer for a key or a password. Opaque.
 */
struct tenure_secret;

/**
 * Volatile memory that several processes share, as one of them has it open. It consists of chunks,
 * numbered from 0. A process pins a chunk to use it. While no process has a chunk pinned, any
 * process that has the memory open may give its pages back when memory is short. The next process
 * that pins the chunk gets a report, and makes the bytes again.
 */
struct tenure_shared;

/**
 * A value that a get has found. Its bytes stay as they are until it is released, whatever happens to
 * its key and its cache meanwhile. Any thread may read it and release it.
 */
struct tenure_value;

/**
 * A buffer that the kernel may take while it is not pinned.
 */
struct tenure_volatile;

/**
 * A range with a lock on the part that was used last. Opaque.
 */
struct tenure_within;

/**
 * Receives an extent that is gone: `offset` and `len` in bytes from the start of the range or
 * buffer of the call, and `arg` as it was passed.
 */
typedef void (*tenure_gone_fn)(size_t offset, size_t len, void *arg);

/**
 * Called for a touch of a purged page. `address` is the touched address. `[range, range + len)` is
 * the volatile range around it, as tenure knows it (neighbouring marks may have been merged). If
 * it returns 0, the signal goes on; otherwise the access is tried again.
 */
typedef int (*tenure_purged_access_fn)(void *address, void *range, size_t len);

/**
 * Makes `len` bytes from `offset` on again, into `bytes` (which is not the buffer itself). Returns
 * 0, or another number for a failure. Several threads may call it at once.
 */
typedef int (*tenure_refill_fn)(void *arg, size_t offset, void *bytes, size_t len);

/**
 * Frees a callback's argument.
 */
typedef void (*tenure_free_fn)(void *arg);

/**
 * The options of tenure_volatile_new_with. Start from TENURE_VOLATILE_OPTS_INIT.
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
     * TENURE_REFILL_PAGES or TENURE_REFILL_WHOLE. Without `refill` it has no effect.
     */
    unsigned int refill_scope;
    /**
     * Makes purged bytes again: at the next pin, or when a thread touches them without a pin. That
     * thread waits while the callback runs on another thread. NULL: purged bytes read as zeros
     * when pinned, and raise SIGBUS when touched without a pin.
     *
     * The other thread has the program's descriptors, and all signals blocked but those that it
     * raises itself. Where tenure cannot keep descriptors of its own (private_descriptors of
     * `tenure doctor`), a touch without a pin raises SIGBUS.
     *
     * One thread runs all refill callbacks. So a callback must not touch purged pages of such a
     * buffer without a pin, and must not wait for a thread that does so (for its lock, for
     * instance).
     */
    tenure_refill_fn refill;
    /**
     * Passed to refill.
     */
    void *arg;
    /**
     * Called once with arg when refill will not be called again. That can be a moment after
     * tenure_volatile_free, on another thread. It is not called if the buffer could not be made.
     * May be NULL.
     */
    tenure_free_fn free_arg;
};

/**
 * tenure calls it when the value under a key has left the cache, with the cause: TENURE_REMOVED to
 * TENURE_PURGED. More causes may come. The key's bytes are there until it returns. Several threads
 * may call it at once.
 */
typedef void (*tenure_removed_fn)(void *arg, const void *key, size_t key_len, unsigned int cause);

/**
 * The options of tenure_cache_new. Start from TENURE_CACHE_OPTS_INIT.
 */
struct tenure_cache_opts {
    /**
     * sizeof(struct tenure_cache_opts).
     */
    size_t size;
    /**
     * When the kernel takes the cache's memory, compared with other volatile memory of the
     * process: from 0 (first) to 7 (last).
     */
    unsigned int priority;
    /**
     * Must be 0.
     */
    unsigned int reserved;
    /**
     * The most bytes of memory that the cache may take. 0: as much as the machine and the memory
     * cgroup allow. The cache takes a few segments of 2 MiB in any case.
     */
    uint64_t ceiling;
    /**
     * How long the cache returns a value after its insert, in milliseconds. 0: without end.
     */
    uint64_t ttl_ms;
    /**
     * tenure calls it for each value that leaves the cache, once. NULL: no call.
     *
     * The call comes a little later than the value leaves, on a thread that calls the cache just
     * then (never on tenure's own threads), and under no lock. It may use the cache, and then
     * tenure may call it inside itself. tenure notices a value that the kernel took, or that has
     * ended, only by a look: a get or an iteration, a search for room, or a replacement or removal
     * of the value under its key. The end of the cache causes no call.
     */
    tenure_removed_fn removed;
    /**
     * Passed to removed.
     */
    void *arg;
    /**
     * Called once with arg when removed will not be called again: when the cache is freed and its last value is
     * released, by the thread that does so. It is not called if the cache could not be made, or where removed is
     * NULL. May be NULL.
     */
    tenure_free_fn free_arg;
    /**
     * The cost of a miss, in nanoseconds. 0: tenure measures it, in tenure_cache_get_or_insert. Of
     * several caches of the process the kernel first takes those whose bytes save the least time.
     */
    uint64_t miss_cost_ns;
};

/**
 * Makes the value that tenure_cache_get_or_insert did not find: it asks tenure_made_resize for
 * room and fills that. (If it does not ask, the value is empty.) Returns 0, or another number if
 * there is no value.
 */
typedef int (*tenure_make_fn)(void *arg, struct tenure_made *into);

/**
 * Counters of a cache since it was made, and its present contents. tenure_cache_stats writes them.
 */
struct tenure_cache_stats {
    /**
     * Gets that found their value.
     */
    uint64_t hits;
    /**
     * Gets that did not find their value, for any reason.
     */
    uint64_t misses;
    /**
     * Values inserted.
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
     * Values that a get found purged.
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
     * Keys that are in the index now. Some may lead to values that are gone.
     */
    uint64_t values;
    /**
     * Bytes of the segments now, filled or not, without the segments that the cache knows to be
     * purged.
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
 * Receives a key, the bytes of its value, and `arg` as it was passed. Both stay until it returns.
 * Its result tells the caller how to go on: see the function that calls it. It may use the cache.
 */
typedef int (*tenure_each_fn)(void *arg,
                              const void *key,
                              size_t key_len,
                              const void *bytes,
                              size_t len);

/**
 * Receives a key, and `arg` as it was passed. The key's bytes stay until it returns. It returns 0 to go on,
 * and another number to stop. It may use the cache.
 */
typedef int (*tenure_each_key_fn)(void *arg, const void *key, size_t key_len);

/**
 * Makes the `len` bytes of chunk `chunk` into `bytes` (which is not the chunk itself, and holds zeros).
 * Returns 0, or another number for a failure. Several threads may call it at once.
 */
typedef int (*tenure_shared_refill_fn)(void *arg, size_t chunk, void *bytes, size_t len);

/**
 * The options of tenure_shared_new. Start from TENURE_SHARED_OPTS_INIT.
 */
struct tenure_shared_opts {
    /**
     * sizeof(struct tenure_shared_opts).
     */
    size_t size;
    /**
     * Bytes of a chunk, a power of two from a page to 1 GiB. 0: 64 KiB. From 2 MiB on a chunk has
     * huge pages, where the system allows them for shared memory.
     */
    size_t chunk_size;
    /**
     * How many processes may have the memory open at a time, 1 to 1,024. 0: 56.
     */
    unsigned int processes;
    /**
     * Must be 0.
     */
    unsigned int reserved;
    /**
     * Makes chunks that are gone, or that no process has made yet: when this process pins such a
     * chunk, or when a thread of this process touches it without a pin (tenure_shared_addr). That
     * thread waits while the callback runs on another thread, and goes on. Others that pin or
     * touch the chunk meanwhile, in any process, wait for it. NULL: pins report such chunks, and
     * such a touch raises SIGBUS.
     *
     * tenure puts each page in place whole, when it has all bytes of the chunk. A touch without a
     * pin sees bytes of a maker, never zeros or half of a page. If the chunk was purged and made
     * again in between, its pages may come from two makers.
     *
     * If it fails the chunk stays gone: the pin fails with EIO, and the touch raises the SIGBUS that it
     * would have raised without a callback. The next pin or touch tries again.
     *
     * Only callbacks make chunks of such memory: tenure_shared_pin returns none to make, and
     * tenure_shared_remake fails with EOPNOTSUPP. A process that opens the memory sets its own
     * callback (tenure_shared_set_refill). tenure installs a handler for SIGBUS.
     *
     * For touches one thread runs all callbacks. So a callback must not touch such memory without a pin,
     * and must not wait for a thread that does so (for its lock, for instance).
     */
    tenure_shared_refill_fn refill;
    /**
     * Passed to refill.
     */
    void *arg;
    /**
     * Called once with arg when refill will not be called again. It is not called if the memory could
     * not be made. May be NULL.
     */
    tenure_free_fn free_arg;
};

/**
 * The present state of shared memory, and its counters so far, in all processes.
 * tenure_shared_stats writes them.
 */
struct tenure_shared_stats {
    /**
     * Chunks in all.
     */
    uint64_t chunks;
    /**
     * Bytes of a chunk.
     */
    uint64_t chunk_bytes;
    /**
     * Chunks that no process has made yet.
     */
    uint64_t fresh;
    /**
     * Chunks whose bytes are there.
     */
    uint64_t intact;
    /**
     * Chunks that are purged, and that no pin has reported yet.
     */
    uint64_t purged;
    /**
     * Chunks that are being made.
     */
    uint64_t making;
    /**
     * Chunks that a process has pinned.
     */
    uint64_t pinned;
    /**
     * Processes that have the memory open.
     */
    uint64_t processes;
    /**
     * Chunks purged so far.
     */
    uint64_t purges;
    /**
     * Processes that died with the memory open so far, and whose pins tenure removed.
     */
    uint64_t buried;
    /**
     * Chunks whose state is none of tenure's.
     */
    uint64_t damaged;
};

/**
 * How far a populate has come.
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
 * Receives how far the populate has come. If it does not return 0, the populate is cancelled.
 */
typedef int (*tenure_populate_fn)(const struct tenure_populate_progress *progress, void *arg);

/**
 * The options of tenure_populate. Start from TENURE_POPULATE_OPTS_INIT: fd 0 is a file.
 */
struct tenure_populate_opts {
    /**
     * sizeof(struct tenure_populate_opts).
     */
    size_t size;
    /**
     * How many threads work. 0: as many as are useful, at most one for each processor that the
     * process may use.
     */
    unsigned int threads;
    /**
     * TENURE_POPULATE_NO_HUGE_PAGES and its like, or-ed.
     */
    unsigned int flags;
    /**
     * The populate ends with ETIMEDOUT if it is not done by then. 0: no deadline. It does not end
     * the wait for a page that the handler of a userfaultfd of the program's own must fill.
     */
    uint64_t deadline_ms;
    /**
     * The file behind the mapping, or -1. With it tenure allocates the holes of a shared file
     * before it writes them, and errors have more details. tenure duplicates the descriptor.
     */
    int fd;
    /**
     * How often progress is called, in milliseconds; 0: every 100.
     */
    unsigned int every_ms;
    /**
     * Called on the calling thread while other threads work, and once at the end. NULL: not
     * called. Not for tenure_populate_start.
     */
    tenure_populate_fn progress;
    /**
     * Passed to progress.
     */
    void *arg;
};

/**
 * The result of a populate, even if it failed. Start from TENURE_POPULATE_RESULT_INIT.
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
     * The lowest page that was not populated. Everything before it is populated. NULL: all were
     * populated, or the call failed because addr is NULL.
     */
    void *first_missing;
};

/**
 * The lock on the part of a range in one mapping.
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
 * Whether a number of bytes more could be locked, and the numbers behind it. UINT64_MAX stands for
 * no limit.
 */
struct tenure_lock_answer {
    /**
     * The bytes of the question, in whole pages.
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
     * The soft limit (RLIMIT_MEMLOCK) now.
     */
    uint64_t soft_limit_bytes;
    /**
     * The highest soft limit that the process may set.
     */
    uint64_t hard_limit_bytes;
    /**
     * The free memory of the machine, or of the tightest memory cgroup: the kernel may allow a
     * lock of more, and then call its OOM killer.
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
 * The bytes that a lock within a budget has locked now, and its counters so far.
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
     * Bytes that were unlocked for them since the start.
     */
    uint64_t moved_out_bytes;
    /**
     * How often the thread has looked at the uses.
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
     * How long a freed block stays warm before it is offered to the kernel, in ms (500).
     */
    uint64_t offer_after_ms;
    /**
     * How long after it was freed it leaves the resident set, in ms (10,000).
     */
    uint64_t return_after_ms;
    /**
     * How many bytes may be warm. 0: a quarter of the memory that is free under the limits of the
     * process.
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
 * The state and the counters of the pool. tenure_pool_stats writes them. Numbers named `total_`
 * count since the start, the others are of now.
 */
struct tenure_pool_stats {
    /**
     * Blocks that the program has.
     */
    uint64_t in_use;
    /**
     * The bytes that it requested with them.
     */
    uint64_t in_use_bytes;
    /**
     * Free blocks that are warm: the kernel cannot take them yet.
     */
    uint64_t warm;
    /**
     * Their bytes that former users may have written.
     */
    uint64_t warm_bytes;
    /**
     * Free blocks that are offered: the kernel may take them (MADV_FREE).
     */
    uint64_t offered;
    /**
     * Their bytes that former users may have written; some may be gone.
     */
    uint64_t offered_bytes;
    /**
     * Free blocks that are returned: they have no memory.
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
     * Requests that the pool could not serve.
     */
    uint64_t total_refused;
};

/**
 * How tenure_munmap works. Start from the settings in force: tenure_retire_settings(&s, sizeof s).
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
     * How many resident bytes may wait for their teardown; TENURE_PENDING_AUTOMATIC unless set.
     */
    uint64_t pending_max;
    /**
     * TENURE_FILES_AT_ONCE (unless set) or TENURE_FILES_LATER.
     */
    uint64_t files;
};

/**
 * The state and the counters of tenure. tenure_stats writes them. Numbers named `total_` count
 * since the process started (in a forked child: since its oldest ancestor did), the others are of
 * now.
 */
struct tenure_stats {
    /**
     * Tracked ranges: pinned (not volatile), marked or offered. Buffers and the segments of caches
     * count.
     */
    uint64_t ranges;
    /**
     * Tracked ranges that are not volatile now.
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
     * Their bytes; tenure_survey counts those that are still there.
     */
    uint64_t offered_bytes;
    /**
     * How often the tracked ranges of now were pinned or unmarked (each counts to 2^32).
     */
    uint64_t pins;
    /**
     * Ranges that were offered to the kernel.
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
     * Ranges that had lost pages when they were taken back.
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
     * Offers that the kernel refused, or that would have split a huge page, or taken pages that
     * another process shares. The worker tries them again later.
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
     * Bytes that populates made ready. Bytes that were there already count.
     */
    uint64_t total_populated_bytes;
    /**
     * Populates that failed, were cancelled or ran out of time.
     */
    uint64_t total_populate_failures;
    /**
     * Bytes that the program has from the pool. tenure_pool_stats has more.
     */
    uint64_t pool_in_use_bytes;
    /**
     * Bytes of the pool's free blocks that are warm: the kernel cannot take them yet.
     */
    uint64_t pool_warm_bytes;
    /**
     * Bytes of free blocks that are offered: the kernel may take them, or has.
     */
    uint64_t pool_offered_bytes;
    /**
     * Bytes of addresses of free blocks that are returned: they have no memory.
     */
    uint64_t pool_returned_bytes;
    /**
     * Blocks that the pool handed out.
     */
    uint64_t total_pool_allocs;
    /**
     * Those of them whose pages were resident from an earlier use, or offered.
     */
    uint64_t total_pool_reuses;
    /**
     * Bytes of those pages: page faults avoided.
     */
    uint64_t total_pool_reused_bytes;
    /**
     * Bytes of free blocks that were offered to the kernel.
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
     * Those of them that callers tore down, because too much was waiting or because they asked.
     */
    uint64_t total_retire_helped_bytes;
    /**
     * The longest step of a teardown in nanoseconds. Another thread may have waited for it.
     */
    uint64_t retire_longest_slice_ns;
    /**
     * Bytes of ranges that the same pin has had for at least thirty times the wait for an offer, 15 s by default.
     */
    uint64_t pinned_long_bytes;
    /**
     * Reads that copied bytes of an offered range and left it offered: gets of caches while memory is short.
     */
    uint64_t total_offered_reads;
};

/**
 * Written by tenure_survey.
 */
struct tenure_survey {
    /**
     * Bytes that were offered when the survey looked.
     */
    uint64_t offered_bytes;
    /**
     * Those of them that the kernel has purged. The next pin or unmark reports them to the
     * program.
     */
    uint64_t gone_bytes;
};

/**
 * The settings for volatile memory. Start from the settings in force: tenure_settings(&s, sizeof
 * s).
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
     * How many bytes may be marked and not offered. Beyond that the oldest marked ranges are
     * offered at once. TENURE_AUTOMATIC (unless set): a quarter of the free memory, at least 16
     * MiB.
     */
    uint64_t unoffered_max;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes `[addr, addr + len)` volatile: from now on the worker may offer the pages to the kernel.
 * Marking a marked range again changes nothing. The range is page-aligned; it may have been marked
 * in other pieces before.
 *
 * While a range is marked the program must not unmap it, replace it by another mapping, make it
 * read-only or inaccessible, or lock it: call tenure_mnovolatile or tenure_forget before. A touch
 * of a page that is gone raises SIGBUS. Where tenure_detection() is TENURE_DETECTION_WORDS the
 * page reads as zeros instead, and the program must not write to a marked range.
 *
 * Cost: no system call for a range that was marked before (about 30 ns, whatever its size). The
 * first mark of a range checks it, which takes about 3 us.
 *
 * Errors: EINVAL: empty, unaligned or wrapping; shared memory or a file's; locked; not readable and
 * writable. ENOMEM: part of it is not mapped, or there are 33 million ranges already. EOPNOTSUPP:
 * the kernel refuses MADV_FREE. EAGAIN: the worker's thread could not be started. Nothing is marked
 * then.
 */
int tenure_mvolatile(void *addr, size_t len);

/**
 * As tenure_mvolatile, with a priority from 0 (the kernel takes it first) to 7 (last). The
 * priority holds until the range is marked with another.
 *
 * Errors: as tenure_mvolatile; EINVAL also for a priority above 7.
 */
int tenure_mvolatile_priority(void *addr, size_t len, unsigned int priority);

/**
 * Makes `[addr, addr + len)` non-volatile. Returns 0 if all of it is still there, and 1 if at
 * least one page is gone. Pages that are gone read as zeros and can be written. Every other byte
 * is as it was. Parts that were never marked count as there.
 *
 * Cost: no system call for a range that was not offered to the kernel (about 30 ns, whatever its
 * size). Offered: 0.5 us for a 2 MiB huge page, 140 ns for a 4 KiB page, and 1.2 us. Purged: a
 * look at the page map (4 ns a page) as well.
 *
 * Errors: EINVAL: empty, unaligned or wrapping; or no longer writable. ENOMEM: part of it is not
 * mapped, or there is no memory for pages that a fork shares. After an error each part is either
 * volatile as before or the program's again. No loss is forgotten: the next call for that part
 * reports it.
 */
TENURE_MUST_USE int tenure_mnovolatile(void *addr, size_t len);

/**
 * As tenure_mnovolatile, and reports the purged extents. It calls `gone` for each extent that is
 * gone, with the offset from `addr`, in order, before it returns. `gone` may be NULL.
 *
 * Errors: as tenure_mnovolatile.
 */
TENURE_MUST_USE int tenure_mnovolatile_map(void *addr, size_t len, tenure_gone_fn gone, void *arg);

/**
 * Offers the marked part of the range to the kernel now, without the usual wait.
 *
 * Errors: EINVAL: nothing in the range is marked, the range is empty, unaligned or wrapping, or
 * the program has locked, protected or replaced the memory meanwhile. ENOMEM: part of it is not
 * mapped any more, or the process has too many mappings. EBUSY: a process made by fork shares the
 * pages.
 */
int tenure_offer_now(void *addr, size_t len);

/**
 * Offers the marked part of the range, and makes the kernel discard it by its own reclaim. It is
 * for tests, and to give memory back at once. The kernel may leave a page that is in use
 * elsewhere. tenure_mnovolatile_map reports the purged extents.
 *
 * Errors: as tenure_offer_now.
 */
int tenure_purge_now(void *addr, size_t len);

/**
 * Makes the range non-volatile and forgets its state in tenure, so that the program may unmap it
 * or use it for something else. The next tenure_mvolatile checks it anew.
 *
 * Errors: as tenure_mnovolatile.
 */
int tenure_forget(void *addr, size_t len);

/**
 * Returns 1 if any page of the range is marked and not unmarked since, and 0 if none is: the memory
 * of objects (tenure_volatile_new, caches) does not count. Returns 0, too, if the range is empty,
 * unaligned or wrapping, because no such range can be marked.
 */
int tenure_is_volatile(const void *addr, size_t len);

/**
 * Returns how this process finds purges: TENURE_DETECTION_USERFAULTFD, or TENURE_DETECTION_WORDS
 * where userfaultfd is refused (many container profiles). `tenure doctor` prints why.
 */
int tenure_detection(void);

/**
 * Calls `handler` on the thread that touches a purged page of a volatile range. If the handler
 * unmarks the range, makes its contents and returns 1, the access is tried again. If it returns 0,
 * the signal goes to the SIGBUS handler that was installed before this call (by default the
 * process dies of it). A second call replaces the handler. After a call with NULL every signal
 * goes on.
 *
 * The handler runs inside a signal handler, at the instruction that touched the page. It may call
 * tenure, and everything else that the touching code could call at that point.
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
 * From 2 MiB on it is made of huge pages, where the kernel has them, because they are much cheaper
 * to offer and to take back (`tenure bench volatile`).
 *
 * Errors (NULL): EINVAL: the length is 0. ENOMEM: no address space, too many mappings. EOPNOTSUPP:
 * the kernel refuses MADV_FREE. EAGAIN: the worker's thread could not be started.
 */
TENURE_MUST_USE struct tenure_volatile *tenure_volatile_new(size_t len);

/**
 * As tenure_volatile_new, with options. NULL stands for the defaults.
 *
 * Errors (NULL): as tenure_volatile_new; EINVAL also for a wrong size, priority or refill_scope.
 * E2BIG: something is set that this version does not know. After an error arg stays the caller's.
 */
TENURE_MUST_USE
struct tenure_volatile *tenure_volatile_new_with(size_t len,
                                                 const struct tenure_volatile_opts *opts);

/**
 * Frees a buffer. NULL does nothing. The program must not touch the bytes afterwards, pinned or
 * not.
 */
void tenure_volatile_free(struct tenure_volatile *v);

/**
 * Pins the buffer: its bytes stay. Returns 0 if every byte is the last one written, and 1 if some
 * bytes are gone and read as zeros. `*bytes` is then their address, which is always the same;
 * `bytes` may be NULL. A refill callback makes lost bytes again, and the call returns 0.
 *
 * Pins are counted: each needs its tenure_volatile_unpin, on any thread, and the buffer is
 * volatile again after the last. After a loss every pin returns 1, nested pins too, until the
 * program calls tenure_volatile_restored.
 *
 * The bytes may be written while they are pinned. Threads that have them pinned at once must agree
 * among themselves.
 *
 * Cost: if the buffer is not offered, one atomic instruction each for the pin and the unpin,
 * whatever the size. If it is offered, as tenure_mnovolatile.
 *
 * Errors: EINVAL: NULL. EIO: the refill callback failed; the bytes are as before, and the next pin
 * tries again. EIO, too, if there are 500,000 pins. EDEADLK: the refill callback pins the buffer
 * that it makes, or waits for a thread that does. ENOMEM: no memory for pages that a fork shares.
 * After an error the buffer is not pinned by this call, and nothing is lost.
 */
TENURE_MUST_USE int tenure_volatile_pin(struct tenure_volatile *v, void **bytes);

/**
 * Removes a pin: call it exactly once for each tenure_volatile_pin that did not fail.
 *
 * Errors: EINVAL: NULL, or it is not pinned.
 */
int tenure_volatile_unpin(struct tenure_volatile *v);

/**
 * Reports the bytes that are lost and not restored: it calls `gone` (which may be NULL) for each
 * extent, with its offset in the buffer, in order. Returns 0 if nothing is lost, and 1 otherwise.
 * Call it while the buffer is pinned: the result holds as long as the pin.
 *
 * Errors: as tenure_volatile_pin.
 */
int tenure_volatile_lost(struct tenure_volatile *v, tenure_gone_fn gone, void *arg);

/**
 * Declares the contents good again after they were lost. Call it while pinned.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_volatile_restored(struct tenure_volatile *v);

/**
 * Changes when the kernel takes the buffer, compared with other volatile memory of the process:
 * from 0 (first) to 7 (last).
 *
 * Errors: EINVAL: NULL, or a priority above 7.
 */
int tenure_volatile_set_priority(struct tenure_volatile *v, unsigned int priority);

/**
 * Returns the buffer's length in bytes; 0 for NULL.
 */
size_t tenure_volatile_len(const struct tenure_volatile *v);

/**
 * Returns the address of the first byte, for code that touches the bytes without a pin; NULL for
 * NULL. A touch of a page that is gone raises SIGBUS, or the page is refilled while the thread
 * waits; if the refill fails, it raises SIGBUS. Where tenure_detection() is TENURE_DETECTION_WORDS
 * such a page reads as zeros, so there the bytes may be read only while they are pinned. The
 * program must not write the bytes without a pin.
 */
void *tenure_volatile_address(const struct tenure_volatile *v);

/**
 * Offers the bytes to the kernel now, without the usual wait.
 *
 * Errors: EINVAL: NULL, or pinned. Others as tenure_offer_now.
 */
int tenure_volatile_offer_now(struct tenure_volatile *v);

/**
 * As tenure_volatile_offer_now, and makes the kernel discard the bytes by its own reclaim. `*gone`
 * (`gone` may be NULL) is then the number of bytes that are gone.
 *
 * Errors: as tenure_volatile_offer_now.
 */
int tenure_volatile_purge_now(struct tenure_volatile *v, size_t *gone);

/**
 * Makes a cache. It takes no memory before the first insert. `opts` may be NULL. Free it with
 * tenure_cache_free.
 *
 * Errors (NULL): EINVAL: a wrong size or priority. E2BIG: something is set that this version does not
 * know. EOPNOTSUPP: the kernel refuses MADV_FREE. EAGAIN: the worker's thread could not be started.
 */
TENURE_MUST_USE
struct tenure_cache *tenure_cache_new(const struct tenure_cache_opts *opts);

/**
 * Frees a cache. NULL does nothing. No other thread may be in a call on the cache. Values that a
 * get has returned stay valid until the program releases them, and the memory goes with the last
 * of them.
 */
void tenure_cache_free(struct tenure_cache *c);

/**
 * Puts a copy of the value under a copy of the key, in the place of the value before. Both may be of
 * length 0, and then NULL.
 *
 * Errors: EINVAL: NULL with a length; a value longer than 4 GiB. ENOMEM: the kernel or the ceiling
 * has no room for it, even after evictions. The key has no value then.
 */
int tenure_cache_insert(struct tenure_cache *c,
                        const void *key,
                        size_t key_len,
                        const void *value,
                        size_t value_len);

/**
 * As tenure_cache_insert, for a value with a time to live of its own: `ttl_ms` milliseconds,
 * shorter or longer than the cache's. 0: the cache's.
 *
 * Errors: as tenure_cache_insert.
 */
int tenure_cache_insert_ttl(struct tenure_cache *c,
                            const void *key,
                            size_t key_len,
                            const void *value,
                            size_t value_len,
                            uint64_t ttl_ms);

/**
 * Returns the value under a key, pinned. Its bytes are at `*bytes`, and there are `*len` of them
 * (`bytes` and `len` may be NULL). Release it soon with tenure_value_release: while the program
 * holds it, the kernel cannot take the 2 MiB segment that it lies in. While the program holds very
 * many values, the bytes are a copy.
 *
 * Returns NULL with errno ENOENT, and leaves tenure_last_error() as it was, if there is no value:
 * it was never there, it was evicted or purged, or its time is over.
 *
 * Cost: a pin and an unpin, two atomic instructions for the index, and a small allocation. If the
 * segment was offered to the kernel, taking it back: 0.6 us (huge page) or 70 us.
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
 * As tenure_cache_get, and makes a missing value: it calls `make` with `arg` on the calling
 * thread, once, even if many threads ask for the key meanwhile. They wait. If the cache has no
 * room for the value, the call returns the value all the same (see tenure_value_is_cached). If
 * `make` fails, a thread that waited calls its own.
 *
 * Errors (NULL): EINVAL: NULL with a length, or `make` is NULL; the value made is longer than 4
 * GiB. EIO: `make` failed. EDEADLK: this thread makes the value already, or its maker waits for
 * this thread, for another value or for a buffer's refill.
 *
 * An insert, a removal or a clear of the key that comes while `make` runs wins: the call returns
 * the value of `make`, and the cache does not keep it.
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
 * Returns room for the value that a make callback is making: `len` bytes, zeroed where they are
 * new. The callback may call it again, to grow or to shrink: the written bytes stay, but may lie
 * elsewhere. Call it only inside the callback.
 *
 * Errors (NULL): EINVAL: NULL. ENOMEM: no memory; the bytes from before stay.
 */
TENURE_MUST_USE void *tenure_made_resize(struct tenure_made *into, size_t len);

/**
 * Returns 1 if the value is in the cache. Returns 0 if tenure_cache_get_or_insert made it and
 * found no room, or the key was changed meanwhile, and for NULL.
 */
int tenure_value_is_cached(const struct tenure_value *value);

/**
 * Returns a second handle to a value, for another owner: another thread, or a response that is
 * still being sent. It copies no byte. The bytes stay until the program releases both handles,
 * each once, on any thread. (Both may be the same pointer.)
 *
 * Errors (NULL): EINVAL: NULL.
 */
TENURE_MUST_USE struct tenure_value *tenure_value_clone(const struct tenure_value *value);

/**
 * Returns the address of a value's bytes, and writes their number to `*len` (which may be NULL).
 *
 * Errors (NULL): EINVAL: NULL.
 */
TENURE_MUST_USE const void *tenure_value_bytes(const struct tenure_value *value, size_t *len);

/**
 * Releases a handle to a value, on any thread. NULL does nothing. The program must not touch its bytes
 * through this handle afterwards.
 */
void tenure_value_release(struct tenure_value *value);

/**
 * Removes a key and its value. Returns 1, or 0 if there was none. The space is free when the last
 * value of its segment is released.
 *
 * Errors: EINVAL: NULL with a length.
 */
int tenure_cache_remove(struct tenure_cache *c, const void *key, size_t key_len);

/**
 * Removes everything.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_cache_clear(struct tenure_cache *c);

/**
 * Writes the statistics of the cache to `*out`, which has `size` bytes, as tenure_stats does.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_cache_stats(struct tenure_cache *c, struct tenure_cache_stats *out, size_t size);

/**
 * Calls `each` with all keys and their values, in no order, until it returns another number than 0. Returns
 * that number, or 0 at the end. A callback that stops should return a positive number: -1 is a failure of
 * this call.
 *
 * Not atomic: the call may show or miss a value that is inserted or removed meanwhile. It leaves
 * out purged values, and values whose time is over. To show a value is no use of it. Do not keep a
 * value beyond the callback: copy it, or get it under its key.
 *
 * Cost: about 0.2 us a value beside the callback, and a copy of each key. It takes all segments
 * back from the kernel, as gets do.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_cache_each(struct tenure_cache *c,
                      tenure_each_fn each,
                      void *arg);

/**
 * Calls `each` with all keys, in no order, until it returns another number than 0. Returns that number, or 0
 * at the end. A callback that stops should return a positive number: -1 is a failure of this call.
 *
 * Not atomic, as tenure_cache_each. A key may lead to a value that was purged, or whose time is over.
 *
 * Cost: about 10 ns a key beside the callback and a copy of the key. No value is touched.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_cache_each_key(struct tenure_cache *c,
                          tenure_each_key_fn each,
                          void *arg);

/**
 * Keeps the values for which `keep` returns another number than 0, and removes the others. `keep` may be called
 * a second time for a value that the cache moved meanwhile.
 *
 * Not atomic: a value that another thread inserts meanwhile stays, or `keep` gets it. `keep` gets
 * no purged values and no values whose time is over, and their keys are gone afterwards.
 *
 * Cost: as tenure_cache_each.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_cache_retain(struct tenure_cache *c,
                        tenure_each_fn keep,
                        void *arg);

/**
 * Makes shared volatile memory of `len` bytes, rounded up to whole chunks, for this process, its
 * children, and every process that gets the descriptor. `opts` may be NULL. It takes no memory
 * before the first chunk is made, but 128 bytes for each chunk. Free it with tenure_shared_free.
 *
 * Errors (NULL): EINVAL: a wrong size. E2BIG: something is set that this version does not know.
 * EMFILE, ENFILE, ENOMEM: no descriptor, no address space. ENOENT: there is no /proc. EAGAIN: no
 * thread.
 */
TENURE_MUST_USE
struct tenure_shared *tenure_shared_new(size_t len,
                                        const struct tenure_shared_opts *opts);

/**
 * Opens memory that another process has made, by its descriptor: inherited, or received. The
 * caller keeps the descriptor, and may close it afterwards. No process can crash this one by a
 * write to the memory's header.
 *
 * Errors (NULL): EBADF: no descriptor. EPROTO: it is no shared volatile memory of this version, or
 * it is damaged. EUSERS: as many processes have it open as its maker allowed. EACCES, EPERM: the
 * descriptor is open for reading only, or sealed. EOPNOTSUPP: refill callbacks make it, and this
 * process may not use userfaultfd. EAGAIN: no thread, or another thread replaces the userfaultfds.
 * ENOENT: there is no /proc. ENOMEM, EMFILE.
 */
TENURE_MUST_USE struct tenure_shared *tenure_shared_open(int fd);

/**
 * As tenure_shared_open, to pin and read only: a chunk that is gone stays gone for this process,
 * and a write to the bytes ends it. The descriptor is open for writing all the same, because a pin
 * is written.
 *
 * Errors (NULL): as tenure_shared_open.
 */
TENURE_MUST_USE struct tenure_shared *tenure_shared_open_read_only(int fd);

/**
 * Ends this process's use of the memory, with its pins. NULL does nothing. No other thread may be
 * in a call on it, and its addresses are invalid afterwards. Other processes keep the memory.
 */
void tenure_shared_free(struct tenure_shared *s);

/**
 * Returns the memory's descriptor, to pass to another process. It stays tenure's: do not close it. It
 * closes at exec, unless the program clears FD_CLOEXEC of a copy.
 *
 * Errors (-1): EINVAL: NULL.
 */
int tenure_shared_fd(const struct tenure_shared *s);

/**
 * Sends the memory's descriptor over a Unix socket, to a process that calls tenure_shared_receive.
 *
 * Errors: EINVAL: NULL. Those of sendmsg(2): EAGAIN, EPIPE, EBADF.
 */
int tenure_shared_send(const struct tenure_shared *s, int socket);

/**
 * Receives a descriptor that tenure_shared_send has sent, and returns it. It is the caller's, and
 * closes at exec. Pass it to tenure_shared_open.
 *
 * Errors (-1): those of recvmsg(2). EPROTO: no descriptor came with the message.
 */
TENURE_MUST_USE int tenure_shared_receive(int socket);

/**
 * Returns the length in bytes, whole chunks. 0 for NULL.
 */
size_t tenure_shared_len(const struct tenure_shared *s);

/**
 * Returns the number of chunks. 0 for NULL.
 */
size_t tenure_shared_chunks(const struct tenure_shared *s);

/**
 * Returns the size of a chunk in bytes. 0 for NULL.
 */
size_t tenure_shared_chunk_size(const struct tenure_shared *s);

/**
 * Returns the address of a chunk's first byte. It stays the same until tenure_shared_free;
 * neighbouring chunks lie side by side. If tenure_shared_is_watched, a touch of a purged chunk
 * without a pin raises SIGBUS, or makes the chunk (refill of struct tenure_shared_opts); otherwise
 * it may read zeros.
 *
 * Errors (NULL): EINVAL: NULL; there is no such chunk.
 */
void *tenure_shared_addr(const struct tenure_shared *s, size_t chunk);

/**
 * Returns 1 if a touch of a purged chunk without a pin raises SIGBUS in this process
 * (userfaultfd), and 0 if it may read zeros: this process, or another one that had the memory open,
 * may not use userfaultfd. The touch of such a process puts zeros there for all, so the result may
 * change to 0 when one opens the memory.
 *
 * Errors (-1): EINVAL: NULL.
 */
int tenure_shared_is_watched(const struct tenure_shared *s);

/**
 * Pins `count` chunks from `first` on, and reports in the same step the state of each. If many
 * threads and processes pin a purged chunk, exactly one of them gets it to make.
 *
 * Returns 0 if all are intact; 1 if the caller makes at least one of them; 2 if it makes none, and
 * others are making some (tenure_shared_wait). `states` has room for `count` values, and the call
 * writes each chunk's state there, TENURE_SHARED_INTACT to TENURE_SHARED_BEING_MADE; NULL is
 * allowed for one chunk.
 *
 * A chunk that the caller makes has its memory, all zeros. The caller writes its bytes, and then calls
 * tenure_shared_finish, or tenure_shared_abandon if it cannot make them. It does so before it waits
 * for chunks that others make: they may wait for it. If it unpins the chunk without either, the chunk
 * is abandoned when no other thread of the process has it pinned, and until then it stays being made.
 *
 * Pins are counted. Each process's pins are its own, and end with it. A child made by fork has its
 * parent's pins as its own.
 *
 * Cost: no system call for chunks that are intact, about 30 ns each.
 *
 * With a refill callback the caller makes no chunk: a chunk is intact or being made, or the call
 * fails.
 *
 * Errors: EINVAL: NULL; there are no such chunks. EACCES: a chunk is gone, and the memory is open
 * to read only, or made by refill callbacks, of which this process has none. EIO: the refill
 * callback failed. EDEADLK: a chunk's own refill callback pins it. ENOMEM: no memory for a chunk.
 * EUSERS: this process has a chunk pinned 32,000 times. EPROTO: another process has overwritten
 * the header. EOPNOTSUPP: refill callbacks make the memory, and this process is a child that got no
 * userfaultfd. None is pinned then. Chunks that the caller would have made are gone, and the next
 * call reports them as half made.
 */
TENURE_MUST_USE
int tenure_shared_pin(struct tenure_shared *s,
                      size_t first,
                      size_t count,
                      unsigned char *states);

/**
 * Takes back a pin of each of `count` chunks from `first` on. The program must no longer touch the
 * bytes through it.
 *
 * Errors: EINVAL: NULL; there are no such chunks; this process does not have one of them pinned (the
 * others are unpinned all the same).
 */
int tenure_shared_unpin(struct tenure_shared *s,
                        size_t first,
                        size_t count);

/**
 * Pins a chunk if it is intact. Returns 0, or 1 if it is gone or being made: then it is not
 * pinned, and its report stays for the next pin.
 *
 * Errors: as tenure_shared_pin, but for ENOMEM and EACCES.
 */
TENURE_MUST_USE int tenure_shared_read(struct tenure_shared *s, size_t chunk);

/**
 * Declares a chunk that the caller makes complete: from now on others find its bytes. It wakes the
 * threads that wait for the chunk. The pin stays.
 *
 * Errors: EINVAL: NULL; there is no such chunk; this process does not make it.
 */
int tenure_shared_finish(struct tenure_shared *s, size_t chunk);

/**
 * Gives up the making of a chunk. Its bytes are gone, and the next pin gets it to make
 * (TENURE_SHARED_HALF_MADE). The caller's pin stays until it unpins the chunk.
 *
 * Errors: as tenure_shared_finish.
 */
int tenure_shared_abandon(struct tenure_shared *s, size_t chunk);

/**
 * Waits until another thread or process has made a chunk that the caller has pinned, at most
 * `timeout_ms` milliseconds. Less than 0: without a limit. Returns 0 if it is intact, and 1 if its
 * maker has died or given up: then the caller makes it. The caller keeps its one pin, after an
 * error, too.
 *
 * Errors: ETIMEDOUT. Those of tenure_shared_pin. If the waiting thread is itself the maker, a wait
 * without an end never ends.
 */
TENURE_MUST_USE int tenure_shared_wait(struct tenure_shared *s, size_t chunk, int timeout_ms);

/**
 * Pins an intact chunk to change it in place, if it has no other pin. Until tenure_shared_finish
 * others find the chunk being made; after tenure_shared_abandon it is gone.
 *
 * Errors: EINVAL: NULL; there is no such chunk. EBUSY: it has another pin, or it is not intact.
 * EACCES: open to read only. EOPNOTSUPP: a refill callback makes it. Others as tenure_shared_pin.
 * The chunk is not pinned then.
 */
TENURE_MUST_USE int tenure_shared_remake(struct tenure_shared *s, size_t chunk);

/**
 * Sets when a chunk is purged, compared with the others: from 0 (first) to 7 (last). It holds for all
 * processes.
 *
 * Errors: EINVAL: NULL; there is no such chunk; a priority above 7.
 */
int tenure_shared_set_priority(struct tenure_shared *s,
                               size_t chunk,
                               unsigned int priority);

/**
 * Returns a chunk's priority.
 *
 * Errors (-1): EINVAL: NULL; there is no such chunk.
 */
int tenure_shared_priority(const struct tenure_shared *s, size_t chunk);

/**
 * Purges those of `count` chunks from `first` on that have no pin, as the worker does when memory
 * is short. Returns their number.
 *
 * Errors (-1): EINVAL: NULL; there are no such chunks. EUSERS: as tenure_shared_pin.
 */
ptrdiff_t tenure_shared_purge_now(struct tenure_shared *s, size_t first, size_t count);

/**
 * Sets the callback by which this process makes chunks, of memory that it has opened: see refill of
 * struct tenure_shared_opts. `free_arg` may be NULL; it is not called if this call fails. A child made
 * by fork has its parent's callback.
 *
 * Errors: EINVAL: NULL. EOPNOTSUPP: the memory was made without a callback. EBUSY: it has one. EACCES:
 * open to read only. Those of sigaction(2).
 */
int tenure_shared_set_refill(struct tenure_shared *s,
                             tenure_shared_refill_fn refill,
                             void *arg,
                             tenure_free_fn free_arg);

/**
 * Writes the statistics of the memory to `*out`, which has `size` bytes, as tenure_stats does. It
 * first removes the pins of dead processes.
 *
 * Cost: a look at each chunk (about 20 ns), and three system calls for each process that has it open.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_shared_stats(struct tenure_shared *s,
                        struct tenure_shared_stats *out,
                        size_t size);

/**
 * Starts the background thread of this process, which purges shared memory when little is left
 * under this process's limits, and removes the pins of dead processes. A process that makes or
 * opens memory has one. A forked child that goes on after its parent's end (a daemon), or that has
 * a memory cgroup of its own, calls this after the fork, and before it closes descriptors that are
 * not its own (tenure's userfaultfd is one of them). Nothing starts a thread in a child by itself.
 *
 * Errors: EAGAIN: no thread could be created. EMFILE, ENFILE, ENOMEM: this process got no
 * userfaultfd; call again when it may open files.
 */
int tenure_shared_start_worker(void);

/**
 * Makes a region of `size` bytes, all zeros and pinned, and returns its descriptor, which the
 * program maps itself and closes. The name is for /proc/self/maps, and may be NULL.
 * tenure_ashmem.h has this and the next calls under their old names, and lists the differences
 * from ashmem's.
 *
 * Errors (-1): EINVAL: the size is 0 or too large. EMFILE, ENFILE, ENOMEM: no descriptor, no address
 * space. ENOENT: there is no /proc. EAGAIN: no thread.
 */
TENURE_MUST_USE
int tenure_ashmem_create_region(const char *name,
                                size_t size);

/**
 * Returns 1 if the descriptor is a region's, and 0 if not.
 */
int tenure_ashmem_valid(int fd);

/**
 * Returns the size for which a region was made.
 *
 * Errors (-1): EBADF; ENOTTY: the descriptor is not a region's. EOVERFLOW: more than INT_MAX.
 */
int tenure_ashmem_get_size_region(int fd);

/**
 * Sets how the descriptor may be mapped from now on: PROT_READ alone takes the right to write
 * away, and no call gives it back.
 *
 * Errors: EBADF; ENOTTY: the descriptor is not a region's. EINVAL: `prot` has no PROT_READ, or has
 * PROT_WRITE after that was taken away. Those of opening a file.
 */
int tenure_ashmem_set_prot_region(int fd, int prot);

/**
 * Pins pages of a region, for all processes: they stay until the next unpin. Pins are not counted.
 * A `len` of 0 means all pages from `offset` on. Returns 0 if all are as they were, and 1 if some
 * were purged since they were pinned last: those read zeros now, and no other call reports them.
 *
 * Errors: EBADF; ENOTTY: the descriptor is not a region's. EINVAL: no whole pages, or past the
 * end. EUSERS: 24 other processes use the region's pins. EPROTO: another process has overwritten
 * the header. Those of opening and mapping a file, at the process's first call for a region. The
 * next call reports the purges that this call found.
 */
TENURE_MUST_USE int tenure_ashmem_pin_region(int fd, size_t offset, size_t len);

/**
 * Unpins pages of a region, for all processes: they may be purged when memory is short. A `len` of 0
 * means all pages from `offset` on.
 *
 * Errors: as tenure_ashmem_pin_region.
 */
int tenure_ashmem_unpin_region(int fd,
                               size_t offset,
                               size_t len);

/**
 * Purges the unpinned pages of a region, as the processes do when memory is short. Returns their
 * number.
 *
 * Errors (-1): as tenure_ashmem_pin_region.
 */
ptrdiff_t tenure_ashmem_purge_now(int fd);

/**
 * Locks the pages that [addr, addr + len) touches. TENURE_MLOCK_LOCKED makes all of them resident
 * and keeps them so. TENURE_MLOCK_ONFAULT keeps each page from its first touch on. Pass exactly
 * one of the two. The whole length is charged against RLIMIT_MEMLOCK either way, once.
 *
 * Unlike the kernel's mlock2 it changes nothing when it fails, and a lock on fault does not weaken
 * a full lock. Memory that the kernel only pretends to lock (MAP_DROPPABLE) is an error. The two
 * kinds are kept apart: see tenure_munlock2. The lock is not counted: a second call adds nothing.
 *
 * Cost: on fault about 7 us for a mapping of any size with nothing locked in it.
 *
 * Errors: EINVAL: empty or wrapping; flags are not exactly one kind; part of it is volatile;
 * MAP_DROPPABLE. ENOMEM: over the limit; a hole; too many mappings. With TENURE_MLOCK_LOCKED also
 * a page past the end of its file, a guard page, a page without access, a full tmpfs:
 * tenure_last_error() names the page, and a remedy. EPERM: the limit is 0. EAGAIN: no memory to
 * make all of it resident.
 */
int tenure_mlock2(const void *addr, size_t len, unsigned int flags);

/**
 * Clears the kinds of lock named from the pages that [addr, addr + len) touches, and no others. A
 * range that was locked in both ways and is cleared of TENURE_MLOCK_LOCKED stays locked on fault.
 * Pages that stay locked are not unlocked for an instant.
 *
 * Cost: one system call where nothing is locked. Otherwise a reading of /proc/self/smaps (10 ns
 * for each resident page of the process).
 *
 * Errors: EINVAL: empty or wrapping; no kind, or an unknown kind. ENOMEM: part of it is not
 * mapped; too many mappings; the limit is now below the locked bytes. Others: /proc/self/smaps could
 * not be read. Nothing is changed then.
 */
int tenure_munlock2(const void *addr,
                    size_t len,
                    unsigned int flags);

/**
 * Locks everything that is mapped (MCL_CURRENT), everything that will be mapped (MCL_FUTURE), or
 * both. With MCL_ONFAULT each page is locked from its first touch on. A call without MCL_FUTURE
 * ends an earlier future lock. The flags are those of <sys/mman.h>. Unlike the kernel's call it
 * does not weaken a full lock.
 *
 * Errors: EINVAL: neither MCL_CURRENT nor MCL_FUTURE, or an unknown flag; memory is volatile (with
 * MCL_CURRENT). ENOMEM: the mappings are larger than the limit. EPERM: the limit is 0. Others:
 * /proc/self/smaps could not be read. Nothing is changed then.
 */
int tenure_mlockall(int flags);

/**
 * Clears the locks of tenure_mlockall. MCL_CURRENT: full locks of present mappings. MCL_ONFAULT:
 * locks on fault of present mappings, and future ones. MCL_FUTURE: the lock of future mappings.
 * Pages that stay locked are not unlocked for an instant.
 *
 * Errors: EINVAL: no flag, or an unknown one. ENOMEM: a future lock ends while something stays
 * locked, and the mappings are larger than the limit. Others: /proc/self/smaps could not be read.
 * Nothing is changed then.
 */
int tenure_munlockall2(int flags);

/**
 * As mmap(2). With TENURE_MAP_LOCKONFAULT among the flags the mapping is locked on fault from the
 * start: no page that is ever touched is paged out, and no page is resident yet. With MAP_FIXED as
 * well, the old mapping is replaced only when the new one is locked. Returns MAP_FAILED (not NULL)
 * on failure.
 *
 * Errors: mmap's. With TENURE_MAP_LOCKONFAULT also EAGAIN: over RLIMIT_MEMLOCK; EPERM: the limit
 * is 0; EINVAL: MAP_LOCKED as well, or MAP_DROPPABLE. The call maps nothing then, and keeps the
 * old mapping.
 */
void *tenure_mmap(void *addr, size_t len, int prot, int flags, int fd, int64_t off);

/**
 * Makes the pages that `[addr, addr + len)` touches resident, for reading or for writing (`how`),
 * in as many threads as are useful. `addr` is a multiple of the page size. The contents of the
 * pages do not change. `opts` may be NULL, and so may `result`. The result is written also on
 * failure, unless its own size is wrong: everything before result->first_missing is populated.
 *
 * Where MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14) are missing, tenure makes the
 * kernel touch each page, with the same results. The call never raises a signal.
 *
 * Errors: EINVAL: addr is NULL or unaligned; empty; a volatile range; a special mapping (device or
 * secret memory); options that make no sense. ENOMEM: not mapped, or no memory. EACCES: the
 * mapping's protection does not allow it. EFAULT: past the end of the file, a guard region, or a
 * missing page that a userfaultfd watches for SIGBUS or for faults of user code only (with any
 * other userfaultfd the call waits until its handler fills the page, also past the deadline and
 * after the callback cancels). ENOSPC: the file system, tmpfs or pool of huge pages is full.
 * EHWPOISON: the hardware lost the page. ETIMEDOUT: the deadline passed. ECANCELED: the callback
 * cancelled it. EBADF: fd is not open. E2BIG: opts has a field that tenure does not know, or a
 * wrong size. EAGAIN: no thread could be started beside the callback.
 *
 * Cost: up to 4 MiB one system call. Beyond that a microsecond for each piece of a few
 * milliseconds, beside the kernel's own work.
 */
int tenure_populate(const void *addr,
                    size_t len,
                    int how,
                    const struct tenure_populate_opts *opts,
                    struct tenure_populate_result *result);

/**
 * Begins to populate in the background, in threads that take no signals. Pass the handle to
 * tenure_populate_end or tenure_populate_detach. In a forked child the populate counts as over.
 * Returns NULL on failure.
 *
 * Errors: as tenure_populate, as far as they are known beforehand. EAGAIN: no thread could be
 * started. EINVAL also: opts->progress is set.
 */
struct tenure_populating *tenure_populate_start(const void *addr,
                                                size_t len,
                                                int how,
                                                const struct tenure_populate_opts *opts);

/**
 * Writes how far the populate has come to `*out`, which has `size` bytes.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_populate_progress(const struct tenure_populating *p,
                             struct tenure_populate_progress *out,
                             size_t size);

/**
 * Ends the populate at its next piece, a few milliseconds later. The call does not wait for that.
 * A piece that waits for the handler of a userfaultfd of the program's own ends when the handler
 * has filled its pages.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_populate_cancel(const struct tenure_populating *p);

/**
 * Waits until the populate is over, at most `timeout_ms`. Less than 0: for as long as it takes.
 * Returns 0 if it is over, and 1 if it is not.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_populate_wait(const struct tenure_populating *p, int timeout_ms);

/**
 * Waits until the populate is over, frees the handle, and returns the result that tenure_populate
 * would return. `result` may be NULL. Call tenure_populate_cancel before to end it sooner. Whatever
 * the call returns, the handle is freed.
 *
 * Errors: as tenure_populate. ECANCELED also: in a child made by fork.
 */
int tenure_populate_end(struct tenure_populating *p, struct tenure_populate_result *result);

/**
 * Frees the handle and lets the populate go on. The range should stay mapped until it is done.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_populate_detach(struct tenure_populating *p);

/**
 * Gives the pages of `[addr, addr + len)` back. The range stays mapped. Anonymous memory then
 * reads as zeros, locked or not. A private mapping of a file, memfd or hugetlbfs reads as the file
 * does. Shared memory, memfds, tmpfs and hugetlbfs lose the contents for every process that maps
 * them. The call refuses a shared mapping of a file on disk, because the file would lose its data.
 *
 * The call discards all of it or nothing: tenure asks the kernel beforehand. In a range of several
 * mappings the kernel cannot say four things beforehand. After such an error other parts of the
 * range may be discarded. 1. It refuses one of several shared files, and tenure cannot ask with a
 * copy of its mapping (RLIMIT_AS, a filter, hugetlbfs, before Linux 5.14, a file that is 1 TiB
 * longer). 2. It refuses a private mapping of a device whose node lies outside a devtmpfs. 3. A protection
 * key keeps a sealed mapping from being written. 4. Another thread changes something meanwhile (a
 * lock, a seal, a mapping).
 *
 * Errors: EINVAL: unaligned or empty; a volatile range; a file on disk mapped shared; in a tmpfs,
 * a device's node, or a shared file without a name of which tenure cannot tell that it is none
 * (under a small RLIMIT_AS, a length of 1 TiB, a userfaultfd); a special mapping; part of a huge
 * page of hugetlbfs; locked shared memory, or any locked memory before Linux 5.18. EACCES: shared
 * memory mapped read-only. ENOMEM: part of it is not mapped. EPERM: anonymous memory that is
 * sealed (mseal) and not writable; shared memory whose file is sealed (F_SEAL_FUTURE_WRITE) or
 * immutable; a filter that refuses madvise. An error of reading /proc/self/maps; or of
 * /proc/self/smaps, if a part of anonymous memory that is not writable may be sealed, and Linux 6.12
 * to 6.16 or a filter does not tell otherwise.
 */
int tenure_discard(void *addr,
                   size_t len);

/**
 * Locks the pages that [addr, addr + len) touches, as tenure_mlock2 does, until tenure_unlock.
 * Locks count: where two overlap and one ends, the pages of the other stay locked. tenure_unlock
 * also leaves the locks of tenure_mlock2 and tenure_mlockall. Returns NULL on failure.
 *
 * Errors: as tenure_mlock2. Others: part of the range is locked already, or not mapped, and
 * /proc/self/smaps could not be read. Nothing is locked then.
 */
struct tenure_held *tenure_lock(const void *addr, size_t len, unsigned int flags);

/**
 * Ends a lock and frees the handle. NULL does nothing. The call may come before or after the unmap
 * of the memory. It must come before, if other code than tenure, or a future lock of tenure_mlockall,
 * will lock the next mapping at this place. It unlocks the range that was locked: pages that mremap
 * has moved away stay locked. A part that the kernel does not unlock (the process has too many
 * mappings to split one more) stays locked until a later lock call for the part, which tries again.
 * In a forked child it unlocks nothing, because a child inherits no locks.
 */
void tenure_unlock(struct tenure_held *l);

/**
 * Writes the locks of [addr, addr + len), as the kernel reports them, mapping by mapping in order
 * of address: at most `room` parts of `part_size` bytes each (sizeof(struct tenure_lock_part)).
 * Between two parts that do not touch nothing is mapped. Returns the number of parts, which may be
 * more than `room`. `parts` may be NULL with a `room` of 0.
 *
 * Cost: a reading of /proc/self/smaps up to the end of the range (10 ns for each resident page).
 *
 * Errors: EINVAL: empty or wrapping; NULL with a room. E2BIG: part_size is more than
 * 4096. Others: /proc/self/smaps or /proc/self/pagemap could not be read.
 */
int tenure_lock_receipt(const void *addr,
                        size_t len,
                        struct tenure_lock_part *parts,
                        size_t part_size,
                        size_t room);

/**
 * Returns 0 if `bytes` more could be locked, and 1 if not, without locking anything. After 1
 * tenure_last_error() names the missing limit, and the lines that raise it for a shell, systemd,
 * Docker and Kubernetes. `out` may be NULL; otherwise it has `size` bytes
 * (sizeof(struct tenure_lock_answer)), and no byte beyond them is written. Cost: about 200 us.
 *
 * Errors: E2BIG: `size` is more than 4096. Others: /proc is not mounted.
 */
int tenure_lock_explain(uint64_t bytes, struct tenure_lock_answer *out, size_t size);

/**
 * Locks the pages that [addr, addr + len) touches on fault now, and prefaults them in the
 * background. The program may use them at once. Each page is locked from the moment it is
 * resident. Files on disk, and private mappings of tmpfs files and memfds, are populated for
 * reading, so that no private copy is made; other memory for writing. Returns NULL on failure.
 * The caller waits 0.1 to 0.2 ms for the start of two threads.
 *
 * Errors: as tenure_lock with TENURE_MLOCK_ONFAULT; EAGAIN: no thread could be started. Others:
 * /proc/self/maps could not be read (ENOENT: no /proc is mounted; EMFILE, ENFILE: no file can be
 * opened). Nothing is locked then.
 */
struct tenure_gradual *tenure_lock_gradually(const void *addr, size_t len);

/**
 * Writes how far the background threads have come to `*out`, which has `size` bytes.
 * In a forked child, which has no locks, it writes zeros.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_gradual_progress(const struct tenure_gradual *g,
                            struct tenure_populate_progress *out,
                            size_t size);

/**
 * Waits until all pages are resident, at most `timeout_ms`. Less than 0: for as long as it takes.
 * Returns 0 if they are, and 1 if they are not. `result` may be NULL. It is written when the work
 * is over. A second call returns the same result.
 *
 * Errors: as tenure_populate, if a page could not be made resident. The lock stays. ECANCELED: in a
 * forked child, which has no locks.
 */
int tenure_gradual_wait(const struct tenure_gradual *g,
                        int timeout_ms,
                        struct tenure_populate_result *result);

/**
 * Ends the background threads, unlocks, and frees the handle. NULL does nothing. In a forked child
 * it only frees the handle.
 */
void tenure_gradual_end(struct tenure_gradual *g);

/**
 * Keeps the last used pages of [addr, addr + len) locked, `budget` bytes at most. The kernel may
 * page out the rest. It is for a range that is larger than RLIMIT_MEMLOCK allows. A page that was
 * touched is locked some 20 ms later. Returns NULL on failure. Costs 24 bytes for each window that
 * has a resident page (a 16th to a quarter of the budget, 2 MiB or a thousandth of large ones).
 *
 * Until tenure_within_end the range must stay mapped as it is. tenure takes pages of shared
 * mappings out of the page table, to see whether they are used again: if private memory were
 * mapped there instead, its contents could be lost.
 *
 * Errors: EINVAL: empty or wrapping; volatile; a budget below 16 pages. ENOMEM, EPERM: the
 * budget is more than may still be locked. ENOMEM: part of it is not mapped. EAGAIN: no thread could
 * be started. Others: /proc/self/smaps or /proc/self/pagemap could not be read (EACCES: after setuid).
 */
struct tenure_within *tenure_lock_within(const void *addr,
                                         size_t len,
                                         size_t budget);

/**
 * Writes the bytes that are locked now, and the counters so far, to `*out`, which has `size`
 * bytes. In a forked child, which has no locks, it writes zeros.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_within_status(const struct tenure_within *w,
                         struct tenure_within_status *out,
                         size_t size);

/**
 * Unlocks the whole range and frees the handle. NULL does nothing. In a forked child it only frees
 * the handle.
 */
void tenure_within_end(struct tenure_within *w);

/**
 * Makes room for `len` bytes, all zeros, and writes their address to *bytes. They are not paged out
 * (locked on fault, as by tenure_lock), not in a core dump (MADV_DONTDUMP), and zeros in a forked
 * child (MADV_WIPEONFORK), which makes a secret of its own. tenure_secret_free overwrites them.
 * Hibernation writes all of memory to the disk, locked or not. Whole pages are charged against
 * RLIMIT_MEMLOCK. Not for signal handlers.
 *
 * Errors (NULL): EINVAL: `len` is 0, or `bytes` is NULL. ENOMEM: over the limit of locked memory, or
 * no memory. EPERM: the limit is 0. The errno of madvise, if a filter refuses one of the protections.
 * Then there is no secret.
 */
struct tenure_secret *tenure_secret_new(size_t len,
                                        void **bytes);

/**
 * Overwrites the bytes with zeros, unmaps them, and frees the handle. NULL does nothing.
 */
void tenure_secret_free(struct tenure_secret *s);

/**
 * Returns a block of `size` bytes, page-aligned. Its contents are the former user's, and a page of
 * it may change by itself until the program first writes it. The smallest block has 64 KiB; ask
 * malloc for less. Returns NULL on failure.
 *
 * The first call starts the worker, the thread that gives free blocks to the kernel. A program
 * whose malloc uses this call should call tenure_pool_prepare at a safe moment before.
 *
 * Cost: 50 to 100 ns for a block that is warm or offered.
 *
 * Errors: ENOMEM: more than the largest block (128 GiB where addresses are not limited), or the kernel
 * refuses to map more. After it has refused the pool's addresses, the pool asks again 10 ms later.
 */
void *tenure_alloc(size_t size);

/**
 * Returns a block of `count` times `size` bytes that holds zeros. In a block that was used before
 * only the pages that are resident are zeroed.
 *
 * Errors: as tenure_alloc; ENOMEM also where the product overflows.
 */
void *tenure_calloc(size_t count, size_t size);

/**
 * Returns a block as tenure_alloc does, at a multiple of `align`, a power of two.
 *
 * Errors: as tenure_alloc; EINVAL: not a power of two.
 */
void *tenure_aligned_alloc(size_t align, size_t size);

/**
 * Makes a block hold `size` bytes, as realloc does: at its place or at another, with its contents.
 * Large blocks move without a copy. A block that is locked is copied, and a block at another place
 * is not locked. With NULL for `p` it acts as tenure_alloc. Returns NULL on failure, and the block
 * is then unchanged.
 *
 * Errors: as tenure_alloc.
 */
void *tenure_realloc(void *p, size_t size);

/**
 * Gives a block back. NULL does nothing. errno stays as it is. If tenure has locked the block, it is
 * unlocked, except where all memory is locked (mlockall). A pointer that is not a block's start, or
 * was freed before, ends the process with a message on standard error.
 */
void tenure_free(void *p);

/**
 * Returns how many bytes of the block the program may use, as malloc_usable_size does: the
 * requested size, in whole pages. 0: NULL, or not a block that is in use. The block is the
 * caller's: no other thread resizes or frees it meanwhile.
 */
size_t tenure_usable_size(const void *p);

/**
 * Returns 1 if the address lies in the pool, and 0 if it does not. One comparison.
 */
int tenure_pool_owns(const void *p);

/**
 * Gives the memory of all free blocks of the pool back to the kernel at once, as malloc_trim does.
 * Returns 1 if there was some, and 0 if there was none.
 */
int tenure_pool_trim(void);

/**
 * Starts the worker for the pool. It is for programs in which tenure_alloc must not create a
 * thread.
 *
 * Errors: EAGAIN: no thread could be created. ENOMEM: no addresses could be reserved.
 */
int tenure_pool_prepare(void);

/**
 * Sets how the pool works. NULL restores the defaults.
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
 * Unmaps as munmap does, and a large mapping in some 10 us, and 0.2 ms for each GiB at most. When the call returns, the
 * addresses are free: a touch raises SIGSEGV, and a new mapping may take them. The worker gives
 * the memory back in the background, and other threads can map, unmap and fault meanwhile. As with
 * munmap the range may hold any mappings and holes, and the length is rounded up to pages.
 *
 * The first call of a process (or of a forked child) for a large range creates the background
 * thread, which allocates. Allocators call tenure_munmap_raw. If it cannot create a thread, it
 * unmaps the range in slices: the caller waits, and other threads do not. Memory that waits counts
 * as the process's: see tenure_munmap_drain.
 *
 * Errors: munmap's. EINVAL: empty, unaligned, past the end of the address space, or its ends cut a
 * huge page of hugetlbfs. EPERM: sealed. ENOMEM: it would cut a mapping in two, and there are
 * vm.max_map_count already. EDEADLK: a signal handler calls it in the middle of a call of its thread
 * for memory that is marked volatile; unmap it later. Nothing is changed then.
 *
 * A large range goes in parts. If the kernel refuses a part late (a filter that fails munmap), the
 * other parts are gone. Sometimes tenure cannot find out before whether the kernel will refuse: with
 * such a filter; for a sealed mapping where mremap is refused; without /proc; with too many mappings,
 * for memory with both MADV_DONTDUMP and MADV_DONTFORK. Memory that stays then is no longer marked,
 * and counts as purged. From then on each unmark of memory that is not marked says so, too. If another
 * thread has used locks meanwhile, guards no longer end the locks of this memory.
 */
int tenure_munmap(void *addr,
                  size_t len);

/**
 * As tenure_munmap, for an allocator: it neither allocates nor creates a thread, and a signal
 * handler may call it. Until tenure_munmap_prepare (or tenure_munmap of a large range) was called
 * in the process it works in slices, which take the caller as long as munmap takes or longer.
 *
 * Errors: as tenure_munmap. It leaves tenure_last_error() as it was, because a message would take
 * memory.
 */
int tenure_munmap_raw(void *addr, size_t len);

/**
 * Registers the fork handlers and starts the background thread, for tenure_munmap_raw. Call it
 * once in a process, and again in a forked child, where memory may be allocated. Later calls cost
 * a few loads. tenure_munmap does it by itself.
 *
 * Errors: EAGAIN: no thread could be created.
 */
int tenure_munmap_prepare(void);

/**
 * Waits until all memory that tenure_munmap has taken is back, at most `timeout_ms`. Less than 0:
 * for as long as it takes. The caller helps. Returns 0 if it is back, and 1 if it is not.
 */
int tenure_munmap_drain(int timeout_ms);

/**
 * Writes the settings of tenure_munmap in force to `*out`, which has `size` bytes.
 *
 * Errors: EINVAL: NULL, or no room for the size field.
 */
int tenure_retire_settings(struct tenure_retire_settings *out, size_t size);

/**
 * Sets how tenure_munmap works, for the whole process and from the next call on.
 *
 * Errors: EINVAL: NULL, the size field is too small, or an unknown value of files. E2BIG: something is set
 * that this version does not know.
 */
int tenure_retire_configure(const struct tenure_retire_settings *settings);

/**
 * Writes the statistics of the process to `*out`, which has `size` bytes: pass sizeof *out. An
 * older program gets the fields that it knows. A newer program gets zeros in the fields that the
 * library does not know.
 *
 * Cost: one look at each tracked range (about 3 ns); no system call.
 *
 * Errors: EINVAL: NULL.
 */
int tenure_stats(struct tenure_stats *out, size_t size);

/**
 * Counts the offered pages that are still there, without touching them, and writes the numbers to
 * `*out`, which has `size` bytes.
 *
 * Cost: 4 ns a page (PAGEMAP_SCAN, Linux 6.7; before, a read of /proc/self/pagemap).
 *
 * Errors: EINVAL: NULL. Others: /proc/self/pagemap could not be read.
 */
int tenure_survey(struct tenure_survey *out, size_t size);

/**
 * Writes the settings for volatile memory in force to `*out`, which has `size` bytes. Its own size
 * field has the number of bytes that count.
 *
 * Errors: EINVAL: NULL, or no room for the size field.
 */
int tenure_settings(struct tenure_settings *out, size_t size);

/**
 * Sets the settings for volatile memory, for the whole process. They take effect at the worker's
 * next scan, at once if it sleeps.
 *
 * Errors: EINVAL: NULL, or the size field is too small. E2BIG: something is set that this version
 * does not know.
 */
int tenure_configure(const struct tenure_settings *settings);

/**
 * Ends tenure's background threads, does their remaining teardowns, and waits until the kernel no
 * longer counts them. Call it before unshare, setns, capset, a seccomp filter, Landlock, and other
 * calls that the kernel allows only to a process with one thread, or that take effect for the
 * calling thread alone. The next call that needs a thread starts it anew, with the rights of its
 * caller. Until then marked ranges stay marked. The threads of tenure_populate_start,
 * tenure_lock_gradually and tenure_lock_within are not among them: end those calls first.
 *
 * Returns 0 if they have ended. Returns 1 if they have not: an object has a refill callback, and a
 * thread that touches its purged pages waits for these threads (none was ended; free such objects
 * first), a thread is in a long system call for a second, the kernel takes half a minute to end it,
 * or the thread that listens for memory pressure cannot be told to end (Linux before 5.9, or
 * close_range is refused).
 */
int tenure_end_background_threads(void);

/**
 * Returns this thread's last failure in a sentence: the call, the range, the cause and a remedy.
 * Never NULL; empty if no call of this thread has failed. A sentence of more than 2,047 bytes is
 * cut, and ends with "...". Valid until the thread's next call that fails, or its end.
 */
const char *tenure_last_error(void);

/**
 * Returns the version of the library, such as "0.1.0".
 */
const char *tenure_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TENURE_H */

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
