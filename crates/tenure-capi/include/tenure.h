/* tenure: control over how long a page of memory stays, for Linux from 5.10 on.
 *
 * A volatile page is kept while nobody needs the room; when somebody does, the kernel's own reclaim
 * discards it, and the program is told exactly which pages went.
 *
 *  - tenure_mvolatile and what follows it: ranges of memory that the program has mapped itself;
 *  - struct tenure_volatile: one buffer, pinned while it is used, refilled by a callback if wanted;
 *  - struct tenure_cache: values under keys, with no size to configure.
 *
 * Functions return 0 (or what they say) on success and -1 with errno set on failure; those that
 * return a pointer return NULL. tenure_last_error() then gives the reason and a remedy in a
 * sentence. On success errno is left at any value. Unless it says otherwise, every function may be
 * called by any number of threads at once.
 *
 * A pointer that is NULL where one is needed is refused with EINVAL. A bug inside tenure that would
 * end a Rust program with a panic is returned as EIO. Callbacks must return: no longjmp and no C++
 * exception may leave them.
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
 * For tenure_settings.unoffered_max: found from the limits that hold for the process.
 */
#define TENURE_AUTOMATIC UINT64_MAX

/**
 * A cache that needs no size: it grows while nobody needs the room and shrinks when somebody does. A
 * get returns the bytes that were put in, or nothing: never wrong or partial ones.
 */
struct tenure_cache;

/**
 * Where a make callback puts the value that it makes.
 */
struct tenure_made;

/**
 * A value that a get has found. Its bytes stay as they are until it is released, whatever happens to
 * its key and its cache meanwhile.
 */
struct tenure_value;

/**
 * A buffer that the kernel may take while nobody has it pinned.
 */
struct tenure_volatile;

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
     * It must not touch purged pages of a buffer that has a refill callback without a pin: one
     * thread serves them all.
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
     * Their bytes: what the kernel cannot take although nobody needs it.
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
     * Rounds of the keeper, the background thread that offers.
     */
    uint64_t total_keeper_rounds;
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
     * How long a range stays marked before it is offered to the kernel when nobody needs the room,
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
 * the kernel refuses MADV_FREE. EAGAIN: the keeper's thread could not be started. Nothing is marked
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
 * mapped, or there is no memory for pages that a fork shares. The range is as volatile as before
 * then, and nothing is lost by it.
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
 * the kernel refuses MADV_FREE. EAGAIN: the keeper's thread could not be started.
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
 * tries again. ENOMEM: no memory for pages that a fork shares. The buffer is not pinned by this call
 * then, and nothing is lost.
 */
TENURE_MUST_USE
int tenure_volatile_pin(struct tenure_volatile *v,
                        void **bytes);

/**
 * Takes a pin away: exactly one for each tenure_volatile_pin that did not fail.
 *
 * Errors: EINVAL: NULL, or nobody has it pinned.
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
 * know. EOPNOTSUPP: the kernel refuses MADV_FREE. EAGAIN: the keeper's thread could not be started.
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
 * that it lies in.
 *
 * NULL with errno ENOENT, and tenure_last_error() as it was, if there is no value: it was never there,
 * was evicted or purged, or its time is over.
 *
 * Cost: a pin and an unpin, the lock of a part of the index for reading, and a small allocation.
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
 * once however many threads ask for the key meanwhile; they wait. It must not ask for the same key. If
 * the cache has no room for the value it is returned all the same (see tenure_value_is_cached). If
 * `make` fails, a thread that waited tries itself.
 *
 * Errors (NULL): EINVAL: NULL with a length, or `make` is NULL. EIO: `make` failed.
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
 * Sets them, for the whole process; takes effect at the keeper's next look, at once if it sleeps.
 *
 * Errors: EINVAL: NULL, or the size field is too small. E2BIG: something is set that this version
 * does not know.
 */
int tenure_configure(const struct tenure_settings *settings);

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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TENURE_H */

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
