/* One owned buffer: counted pins, purged pages, restoring. */
#include "check.h"

#include <pthread.h>

struct seen {
    size_t first, end, calls;
};

static void gone(size_t offset, size_t len, void *arg)
{
    struct seen *seen = arg;
    if (seen->calls++ == 0)
        seen->first = offset;
    else
        CHECK(offset >= seen->end); /* in order, none twice */
    seen->end = offset + len;
}

static void pins(size_t len)
{
    struct tenure_volatile *v = tenure_volatile_new(len);
    CHECK(v != NULL && tenure_volatile_len(v) == len);
    unsigned char *p = tenure_volatile_address(v);
    void *bytes = NULL;
    CHECK(tenure_volatile_pin(v, &bytes) == 0 && bytes == p);
    CHECK(p[0] == 0 && p[len - 1] == 0);
    memset(p, 'a', len);

    /* Pinned twice: volatile only after the second unpin. */
    CHECK(tenure_volatile_pin(v, NULL) == 0);
    FAILS(tenure_volatile_purge_now(v, NULL), EINVAL, "pinned");
    CHECK(tenure_volatile_unpin(v) == 0);
    FAILS(tenure_volatile_purge_now(v, NULL), EINVAL, "pinned");
    CHECK(tenure_volatile_unpin(v) == 0);

    /* One unpin too many harms nothing. */
    FAILS(tenure_volatile_unpin(v), EINVAL, "not pinned");
    FAILS(tenure_volatile_unpin(v), EINVAL, "not pinned");

    /* Offered, but not purged. */
    CHECK(tenure_volatile_offer_now(v) == 0);
    CHECK(tenure_volatile_pin(v, &bytes) == 0);
    CHECK(tenure_volatile_lost(v, NULL, NULL) == 0);
    for (size_t i = 0; i < len; i++)
        CHECK(p[i] == 'a');
    CHECK(tenure_volatile_unpin(v) == 0);

    size_t taken = 0;
    CHECK(tenure_volatile_purge_now(v, &taken) == 0);
    CHECK(taken >= len && present(p, len & ~(PAGE - 1)) == 0);
    CHECK(tenure_volatile_pin(v, &bytes) == 1 && bytes == p);
    struct seen seen = {0, 0, 0};
    CHECK(tenure_volatile_lost(v, gone, &seen) == 1);
    CHECK(seen.calls >= 1 && seen.first == 0 && seen.end == len);
    for (size_t i = 0; i < len; i++)
        CHECK(p[i] == 0);
    /* Neither a nested pin nor a later one may take the zeros for contents. */
    CHECK(tenure_volatile_pin(v, NULL) == 1);
    CHECK(tenure_volatile_unpin(v) == 0);
    CHECK(tenure_volatile_unpin(v) == 0);
    CHECK(tenure_volatile_pin(v, NULL) == 1);
    memset(p, 'b', len);
    CHECK(tenure_volatile_restored(v) == 0);
    CHECK(tenure_volatile_pin(v, NULL) == 0);
    CHECK(tenure_volatile_lost(v, gone, &seen) == 0);
    CHECK(tenure_volatile_unpin(v) == 0);
    CHECK(tenure_volatile_unpin(v) == 0);
    CHECK(p[0] == 'b' && p[len - 1] == 'b');
    tenure_volatile_free(v);
}

static void *pin_often(void *arg)
{
    struct tenure_volatile *v = arg;
    for (int i = 0; i < 20000; i++) {
        void *bytes;
        if (tenure_volatile_pin(v, &bytes) != 0 || *(unsigned char *)bytes != 'c')
            return "a wrong byte";
        tenure_volatile_unpin(v);
    }
    return NULL;
}

/* Pins of several threads count together. */
static void shared(void)
{
    struct tenure_volatile *v = tenure_volatile_new(MIB);
    void *bytes;
    CHECK(tenure_volatile_pin(v, &bytes) == 0);
    memset(bytes, 'c', MIB);
    tenure_volatile_unpin(v);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, pin_often, v) == 0);
    for (int i = 0; i < 200; i++)
        (void)tenure_volatile_offer_now(v); /* EINVAL while a thread has it pinned */
    for (int i = 0; i < 4; i++) {
        void *wrong;
        CHECK(pthread_join(threads[i], &wrong) == 0 && wrong == NULL);
    }
    CHECK(tenure_volatile_offer_now(v) == 0);
    tenure_volatile_free(v);
}

/* The buffer's memory is freed with it. */
static void freed(void)
{
    struct tenure_stats before, after;
    CHECK(tenure_stats(&before, sizeof before) == 0);
    struct tenure_volatile *v = tenure_volatile_new(4 * MIB);
    unsigned char *p = tenure_volatile_address(v);
    CHECK(tenure_volatile_pin(v, NULL) == 0);
    memset(p, 1, 4 * MIB);
    tenure_volatile_unpin(v);
    CHECK(present(p, 4 * MIB) == 4 * MIB / PAGE);
    tenure_volatile_free(v);
    CHECK(present(p, 4 * MIB) == 0);
    CHECK(tenure_stats(&after, sizeof after) == 0);
    CHECK(after.ranges == before.ranges);
}

int main(void)
{
    pins(64 * PAGE);
    pins(4 * MIB);
    pins(10 * PAGE + 123);
    shared();
    freed();
    return 0;
}
