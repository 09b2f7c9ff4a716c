/* Threads that are cancelled at whatever point they are: the process lives, and the cache with it. */
#include "check.h"

#include <pthread.h>

static struct tenure_cache *cache;

static void *work(void *unused)
{
    static unsigned char value[200000];
    (void)unused;
    for (long key = 0;; key++) {
        int before;
        CHECK(tenure_cache_insert(cache, &key, sizeof key, value, sizeof value) == 0);
        /* No lock of this program's own is held here. */
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
        pthread_testcancel();
    }
    return NULL;
}

int main(void)
{
    struct tenure_cache_opts opts = TENURE_CACHE_OPTS_INIT;
    opts.ceiling = 64 * MIB;
    cache = tenure_cache_new(&opts);
    CHECK(cache != NULL);
    /* A hang is a failure. */
    alarm(20);
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
        usleep(1000 + 173 * (useconds_t)i);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(tenure_cache_insert(cache, "x", 1, "y", 1) == 0);
    }
    tenure_cache_free(cache);
    return 0;
}
