/* Threads mark, unmark and check their own ranges and one shared buffer, while another thread
 * discards all the memory that it can. No byte may be wrong, and every purge must be reported. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define THREADS 4
#define PAGES ((size_t)16)
#define LEN (PAGES * PAGE)
#define ROUNDS 3000
#define PURGES 100

static unsigned char *ranges[THREADS];
static struct tenure_volatile *common;
static pthread_rwlock_t writing = PTHREAD_RWLOCK_INITIALIZER;
static atomic_int running = THREADS;
static atomic_long purges, checked;

static void own_range(unsigned char *p, int linger)
{
    CHECK(tenure_mvolatile(p, LEN) == 0);
    if (linger) /* give the discarding thread its chance */
        nanosleep(&(struct timespec){0, 100000}, NULL);
    int went = tenure_mnovolatile(p, LEN);
    CHECK(went >= 0);
    size_t lost = 0;
    for (size_t i = 0; i < PAGES; i++) {
        if (page_is(p + i * PAGE, 0))
            lost++;
        else
            CHECK(page_is(p + i * PAGE, letter(i)));
        checked++;
    }
    CHECK((lost > 0) == (went == 1));
    if (went) {
        purges++;
        fill(p, 0, PAGES);
    }
}

static void common_buffer(void)
{
    void *bytes;
    CHECK(pthread_rwlock_rdlock(&writing) == 0);
    int went = tenure_volatile_pin(common, &bytes);
    CHECK(went >= 0);
    unsigned char *p = bytes;
    if (went == 0) {
        for (size_t i = 0; i < PAGES; i++)
            CHECK(page_is(p + i * PAGE, letter(i)));
        checked += PAGES;
    }
    CHECK(pthread_rwlock_unlock(&writing) == 0);
    if (went == 1) {
        /* One of the threads that saw it makes it again. */
        CHECK(pthread_rwlock_wrlock(&writing) == 0);
        if (tenure_volatile_lost(common, NULL, NULL) == 1) {
            purges++;
            fill(p, 0, PAGES);
            CHECK(tenure_volatile_restored(common) == 0);
        }
        CHECK(pthread_rwlock_unlock(&writing) == 0);
    }
    CHECK(tenure_volatile_unpin(common) == 0);
}

static void *work(void *arg)
{
    /* On a busy machine it takes more rounds until enough of them meet the discarding thread. */
    for (int round = 0; round < ROUNDS || (purges < PURGES && round < 100 * ROUNDS); round++) {
        own_range(arg, round % 8 == 0);
        common_buffer();
    }
    running--;
    return NULL;
}

static void *discard(void *arg)
{
    (void)arg;
    while (running > 0) {
        /* Each call may fail because a thread uses its range at that moment. */
        for (int i = 0; i < THREADS; i++)
            (void)tenure_purge_now(ranges[i], LEN);
        (void)tenure_volatile_purge_now(common, NULL);
    }
    return NULL;
}

int main(void)
{
    common = tenure_volatile_new(LEN);
    CHECK(tenure_volatile_pin(common, NULL) == 0);
    fill(tenure_volatile_address(common), 0, PAGES);
    CHECK(tenure_volatile_unpin(common) == 0);
    pthread_t threads[THREADS], discarding;
    for (int i = 0; i < THREADS; i++) {
        ranges[i] = map(LEN);
        fill(ranges[i], 0, PAGES);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, ranges[i]) == 0);
    CHECK(pthread_create(&discarding, NULL, discard, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(pthread_join(discarding, NULL) == 0);
    CHECK(purges >= PURGES && checked > THREADS * ROUNDS * (long)PAGES);
    printf("%ld pages checked, %ld purges\n", (long)checked, (long)purges);
    tenure_volatile_free(common);
    return 0;
}
