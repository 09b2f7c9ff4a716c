/* Threads are cancelled while they are inside tenure, in every kind of call that can wait or
 * that opens files. Each call finishes first, so no state breaks and no thread waits for one
 * that has gone. One pass uses the usual type of cancellation, and one the asynchronous type.
 * The first argument is the number of rounds for each. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#define LEN (64 * PAGE)
#define PATIENCE 60 /* seconds until a wait counts as one for ever */

static struct tenure_cache *cache;
static struct tenure_volatile *buffer, *refilled;
static unsigned char *ranges[3], *locked, *populated;
static _Thread_local int me = 2;
static unsigned char value[200000];
static atomic_int state_in_callback;

static void nap(long us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* A callback that waits at a cancellation point. */
static void wait_in_callback(void)
{
    int state;
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0);
    CHECK(pthread_setcancelstate(state, NULL) == 0);
    state_in_callback = state;
    nap(100);
    pthread_testcancel();
}

static int make_value(void *arg, struct tenure_made *into)
{
    (void)arg;
    wait_in_callback();
    void *bytes = tenure_made_resize(into, 5000);
    if (bytes == NULL)
        return 1;
    memset(bytes, 7, 5000);
    return 0;
}

static int make_bytes(void *arg, size_t offset, void *bytes, size_t len)
{
    (void)arg;
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)bytes)[i] = letter((offset + i) / PAGE);
    return 0;
}

static int see_progress(const struct tenure_populate_progress *progress, void *arg)
{
    (void)progress, (void)arg;
    wait_in_callback();
    return 0;
}

static void see_gone(size_t offset, size_t len, void *arg)
{
    (void)offset, (void)len, (void)arg;
    wait_in_callback();
}

/* The work of the threads. A thread that is cancelled after a call may lose its result, so the
 * jobs leave at most a pin or some memory behind. */

static void mark(void)
{
    CHECK(tenure_mvolatile(ranges[me], LEN) == 0);
    CHECK(tenure_mnovolatile(ranges[me], LEN) >= 0);
}

static void mark_and_purge(void)
{
    CHECK(tenure_mvolatile(ranges[me], LEN) == 0);
    (void)tenure_purge_now(ranges[me], LEN);
    CHECK(tenure_mnovolatile_map(ranges[me], LEN, see_gone, NULL) >= 0);
    memset(ranges[me], 1, LEN);
}

static void offer(void)
{
    CHECK(tenure_mvolatile(ranges[me], LEN) == 0);
    (void)tenure_offer_now(ranges[me], LEN);
}

static void first_mark(void)
{
    unsigned char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_is_volatile(p, LEN) == 1);
    CHECK(tenure_munmap(p, LEN) == 0);
}

static void pin(void)
{
    CHECK(tenure_volatile_pin(buffer, NULL) >= 0);
    CHECK(tenure_volatile_unpin(buffer) == 0);
}

static void pin_refilled(void)
{
    CHECK(tenure_volatile_pin(refilled, NULL) == 0);
    CHECK(tenure_volatile_unpin(refilled) == 0);
    (void)tenure_volatile_purge_now(refilled, NULL);
}

static void purge_buffer(void)
{
    (void)tenure_volatile_offer_now(buffer);
    (void)tenure_volatile_purge_now(buffer, NULL);
    CHECK(tenure_volatile_lost(buffer, see_gone, NULL) >= 0);
    (void)tenure_volatile_restored(buffer);
}

static void new_buffer(void)
{
    struct tenure_volatile *v = tenure_volatile_new(LEN);
    CHECK(v != NULL);
    tenure_volatile_free(v);
}

static void insert(void)
{
    static atomic_long key;
    long k = key++ % 500;
    CHECK(tenure_cache_insert(cache, &k, sizeof k, value, sizeof value) == 0);
}

static void get_or_insert(void)
{
    static atomic_long key;
    long k = 1000 + key++ / 2 % 500; /* two threads ask for the same one */
    struct tenure_value *v =
        tenure_cache_get_or_insert(cache, &k, sizeof k, make_value, NULL, NULL, NULL);
    CHECK(v != NULL);
    tenure_value_release(v);
}

static void get_and_remove(void)
{
    long k = 3;
    tenure_value_release(tenure_cache_get(cache, &k, sizeof k, NULL, NULL));
    CHECK(tenure_cache_remove(cache, &k, sizeof k) >= 0);
    CHECK(tenure_cache_clear(cache) == 0);
}

static void lock_pages(void)
{
    CHECK(tenure_mlock2(locked, LEN, TENURE_MLOCK_ONFAULT) == 0);
    CHECK(tenure_munlock2(locked, LEN, TENURE_MLOCK_ONFAULT) == 0);
}

static void lock_counted(void)
{
    struct tenure_held *held = tenure_lock(locked, LEN, TENURE_MLOCK_LOCKED);
    CHECK(held != NULL);
    struct tenure_lock_part part;
    CHECK(tenure_lock_receipt(locked, LEN, &part, sizeof part, 1) >= 1);
    CHECK(tenure_lock_explain(LEN, NULL, 0) >= 0);
    tenure_unlock(held);
}

static void lock_in_background(void)
{
    struct tenure_gradual *gradual = tenure_lock_gradually(locked, LEN);
    CHECK(gradual != NULL);
    CHECK(tenure_gradual_wait(gradual, -1, NULL) == 0);
    tenure_gradual_end(gradual);
    struct tenure_within *within = tenure_lock_within(locked, LEN, 32 * PAGE);
    CHECK(within != NULL);
    tenure_within_end(within);
}

static void populate(void)
{
    struct tenure_populate_opts opts = TENURE_POPULATE_OPTS_INIT;
    opts.threads = 2;
    opts.progress = see_progress;
    CHECK(tenure_populate(populated, 4 * MIB, TENURE_POPULATE_WRITE, &opts, NULL) == 0);
    CHECK(tenure_discard(populated, 4 * MIB) == 0);
}

static void populate_in_background(void)
{
    struct tenure_populating *p =
        tenure_populate_start(populated, 4 * MIB, TENURE_POPULATE_WRITE, NULL);
    CHECK(p != NULL);
    CHECK(tenure_populate_wait(p, -1) == 0);
    CHECK(tenure_populate_end(p, NULL) == 0);
}

static void unmap(void)
{
    void *p = tenure_mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    memset(p, 1, MIB);
    CHECK(tenure_munmap(p, 8 * MIB) == 0);
    CHECK(tenure_munmap_drain(-1) == 0);
}

static void allocate(void)
{
    void *p = tenure_alloc(MIB);
    CHECK(p != NULL && tenure_usable_size(p) >= MIB && tenure_pool_owns(p));
    p = tenure_realloc(p, 3 * MIB);
    CHECK(p != NULL);
    tenure_free(p);
}

static void ask(void)
{
    struct tenure_stats stats;
    struct tenure_survey survey;
    CHECK(tenure_stats(&stats, sizeof stats) == 0);
    CHECK(tenure_survey(&survey, sizeof survey) == 0);
    CHECK(strlen(tenure_last_error()) < 4096 && tenure_version()[0] != 0);
    CHECK(tenure_volatile_len(buffer) == LEN && tenure_volatile_address(buffer) != NULL);
}

static const struct {
    const char *name;
    void (*work)(void);
    int locks;
} jobs[] = {
    {"mark", mark, 0},
    {"mark and purge", mark_and_purge, 0},
    {"offer", offer, 0},
    {"first mark", first_mark, 0},
    {"pin", pin, 0},
    {"pin with refill", pin_refilled, 0},
    {"purge of a buffer", purge_buffer, 0},
    {"new buffer", new_buffer, 0},
    {"insert", insert, 0},
    {"get or insert", get_or_insert, 0},
    {"get and remove", get_and_remove, 0},
    {"lock", lock_pages, 1},
    {"counted lock", lock_counted, 1},
    {"lock in the background", lock_in_background, 1},
    {"populate", populate, 0},
    {"populate in the background", populate_in_background, 0},
    {"unmap", unmap, 0},
    {"allocate", allocate, 0},
    {"ask", ask, 0},
};
#define JOBS (sizeof jobs / sizeof jobs[0])

static int type;
static volatile sig_atomic_t now_running;

struct start {
    int me;
    void (*work)(void);
};

static void *thread(void *arg)
{
    const struct start *start = arg;
    void (*work)(void) = start->work;
    me = start->me;
    CHECK(pthread_setcanceltype(type, NULL) == 0);
    for (;;) {
        work();
        pthread_testcancel();
    }
}

static void too_long(int signal)
{
    (void)signal;
    const char *name = jobs[now_running].name;
    (void)!write(2, "nothing moves any more after: ", 30);
    (void)!write(2, name, strlen(name));
    (void)!write(2, "\n", 1);
    _exit(1);
}

/* Two threads at the same time, cancelled at a moment that differs in each round. Then the call
 * is made again. */
static void cancel_one(size_t job, unsigned round)
{
    void (*work)(void) = jobs[job].work;
    pthread_t threads[2];
    struct start starts[2] = {{0, work}, {1, work}};
    now_running = (sig_atomic_t)job;
    alarm(PATIENCE);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, thread, &starts[i]) == 0);
    nap(50 + (round * 173 + job * 37) % 1500);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_cancel(threads[i]) == 0);
    for (int i = 0; i < 2; i++) {
        void *end;
        CHECK(pthread_join(threads[i], &end) == 0);
        CHECK(end == PTHREAD_CANCELED);
    }
    work();
    alarm(0);
}

/* After a call the cancellation state is as it was before. */
static void states_are_restored(void)
{
    const int states[] = {PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_DISABLE};
    for (size_t i = 0; i < 2; i++) {
        int before;
        CHECK(pthread_setcancelstate(states[i], NULL) == 0);
        CHECK(tenure_mvolatile(ranges[me], LEN) == 0 && tenure_mvolatile(ranges[me] + 1, LEN) == -1);
        CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before) == 0);
        CHECK(before == states[i]);
    }
    CHECK(tenure_mnovolatile(ranges[me], LEN) >= 0);
    errno = 77;
    void *p = tenure_alloc(MIB);
    tenure_free(p);
    CHECK(errno == 77);
}

int main(int argc, char **argv)
{
    unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 12;
    CHECK(signal(SIGALRM, too_long) != SIG_ERR);
    struct tenure_cache_opts small = TENURE_CACHE_OPTS_INIT;
    /* Asynchronous cancellation ends a thread at the end of a call, before the caller has the
     * value. The value then stays held for ever, and its 4 MiB segment with it. There is room
     * for one such value per thread. */
    small.ceiling = 512 * MIB;
    cache = tenure_cache_new(&small);
    buffer = tenure_volatile_new(LEN);
    struct tenure_volatile_opts opts = TENURE_VOLATILE_OPTS_INIT;
    opts.refill = make_bytes;
    refilled = tenure_volatile_new_with(LEN, &opts);
    CHECK(cache != NULL && buffer != NULL && refilled != NULL);
    for (int i = 0; i < 3; i++)
        ranges[i] = map(LEN);
    locked = map(LEN);
    populated = map(4 * MIB);
    states_are_restored();
    /* Some users may lock less. */
    int may_lock = tenure_lock_explain(8 * LEN, NULL, 0) == 0;

    const int types[] = {PTHREAD_CANCEL_DEFERRED, PTHREAD_CANCEL_ASYNCHRONOUS};
    for (size_t i = 0; i < 2; i++) {
        type = types[i];
        state_in_callback = PTHREAD_CANCEL_ENABLE;
        for (unsigned round = 0; round < rounds; round++)
            for (size_t job = 0; job < JOBS; job++)
                if (may_lock || !jobs[job].locks)
                    cancel_one(job, round);
        CHECK(state_in_callback == PTHREAD_CANCEL_DISABLE);
    }
    states_are_restored();
    tenure_volatile_free(buffer);
    tenure_volatile_free(refilled);
    tenure_cache_free(cache);
    printf("%u rounds of %zu calls, each with two threads cancelled, twice\n", rounds, JOBS);
    return 0;
}
