/* More unpins than pins, from several threads at the same time: as many succeed as there were
 * pins. The others fail, and the buffer still works. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4
#define ROUNDS 20000
#define PINS 2

static struct tenure_volatile *buffer;
static pthread_barrier_t barrier;
static atomic_int taken, refused;

static void *unpin(void *arg)
{
    (void)arg;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        errno = 0;
        if (tenure_volatile_unpin(buffer) == 0)
            taken++;
        else if (errno == EINVAL)
            refused++;
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(void)
{
    buffer = tenure_volatile_new(PAGE);
    CHECK(buffer != NULL);
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS + 1) == 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, unpin, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        taken = refused = 0;
        for (int i = 0; i < PINS; i++)
            CHECK(tenure_volatile_pin(buffer, NULL) == 0);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        CHECK(taken == PINS && refused == THREADS - PINS);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    FAILS(tenure_volatile_unpin(buffer), EINVAL, "not pinned");
    struct tenure_stats stats;
    CHECK(tenure_stats(&stats, sizeof stats) == 0 && stats.pinned == 0);
    CHECK(tenure_volatile_pin(buffer, NULL) == 0);
    CHECK(tenure_volatile_offer_now(buffer) == -1 && errno == EINVAL);
    CHECK(tenure_volatile_unpin(buffer) == 0);
    CHECK(tenure_volatile_offer_now(buffer) == 0);
    tenure_volatile_free(buffer);
    return 0;
}
