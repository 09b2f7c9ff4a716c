/* The cache: it returns whole values or none, and a value outlives its key and its cache. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static void value_of(unsigned key, unsigned char *to, size_t len)
{
    uint64_t state = key * UINT64_C(0x9E3779B97F4A7C15) + len;
    for (size_t i = 0; i < len; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        to[i] = (unsigned char)(state >> 56);
    }
}

static int is_value_of(unsigned key, const void *bytes, size_t len)
{
    unsigned char *wanted = malloc(len + 1);
    CHECK(wanted != NULL);
    value_of(key, wanted, len);
    int same = memcmp(bytes, wanted, len) == 0;
    free(wanted);
    return same;
}

static void put(struct tenure_cache *c, unsigned key, size_t len)
{
    unsigned char *value = malloc(len + 1);
    CHECK(value != NULL);
    value_of(key, value, len);
    CHECK(tenure_cache_insert(c, &key, sizeof key, value, len) == 0);
    free(value);
}

static void come_back(struct tenure_cache *c)
{
    static const size_t lengths[] = {0, 1, 100, 4096, 70000, 3 * MIB};
    const unsigned count = sizeof lengths / sizeof *lengths;
    for (unsigned key = 0; key < count; key++)
        put(c, key, lengths[key]);
    for (unsigned key = 0; key < count; key++) {
        const void *bytes;
        size_t len;
        struct tenure_value *value = tenure_cache_get(c, &key, sizeof key, &bytes, &len);
        CHECK(value != NULL && len == lengths[key] && is_value_of(key, bytes, len));
        CHECK(tenure_value_is_cached(value) == 1);
        tenure_value_release(value);
    }
    /* A miss is not an error. */
    FAILS(tenure_cache_insert(c, NULL, 5, "", 0), EINVAL, "key is 5 bytes");
    unsigned missing = 99;
    errno = 0;
    CHECK(tenure_cache_get(c, &missing, sizeof missing, NULL, NULL) == NULL && errno == ENOENT);
    CHECK(strstr(tenure_last_error(), "key is 5 bytes") != NULL);
    /* Keys are bytes of any length, also zero bytes and no bytes. */
    CHECK(tenure_cache_insert(c, "a\0b", 3, "first", 5) == 0);
    CHECK(tenure_cache_insert(c, "a\0c", 3, "second", 6) == 0);
    CHECK(tenure_cache_insert(c, NULL, 0, "none", 4) == 0);
    const void *bytes;
    size_t len;
    struct tenure_value *value = tenure_cache_get(c, "a\0b", 3, &bytes, &len);
    CHECK(value != NULL && len == 5 && memcmp(bytes, "first", 5) == 0);
    tenure_value_release(value);
    value = tenure_cache_get(c, NULL, 0, &bytes, &len);
    CHECK(value != NULL && len == 4 && memcmp(bytes, "none", 4) == 0);
    tenure_value_release(value);
}

/* A value does not change while it is held, even if its key or the cache goes. */
static void outlive(void)
{
    struct tenure_cache *c = tenure_cache_new(NULL);
    CHECK(c != NULL);
    CHECK(tenure_cache_insert(c, "k", 1, "before", 6) == 0);
    const void *bytes, *other;
    size_t len;
    struct tenure_value *held = tenure_cache_get(c, "k", 1, &bytes, &len);
    CHECK(held != NULL);
    CHECK(tenure_cache_insert(c, "k", 1, "after", 5) == 0);
    struct tenure_value *newer = tenure_cache_get(c, "k", 1, &other, &len);
    CHECK(newer != NULL && len == 5 && memcmp(other, "after", 5) == 0);
    tenure_value_release(newer);
    CHECK(tenure_cache_remove(c, "k", 1) == 1);
    CHECK(tenure_cache_remove(c, "k", 1) == 0);
    CHECK(tenure_cache_get(c, "k", 1, NULL, NULL) == NULL);
    CHECK(tenure_cache_clear(c) == 0);
    tenure_cache_free(c);
    CHECK(memcmp(bytes, "before", 6) == 0);
    tenure_value_release(held);
}

struct making {
    struct tenure_cache *cache;
    atomic_int calls;
    int fail;
    size_t len;
};

static int make(void *arg, struct tenure_made *into)
{
    struct making *making = arg;
    making->calls++;
    nanosleep(&(struct timespec){0, 20000000}, NULL); /* time for the others to ask as well */
    if (making->fail)
        return making->fail;
    /* The value grows in two steps and keeps its bytes. */
    unsigned char *room = tenure_made_resize(into, 3);
    if (room == NULL)
        return 1;
    memcpy(room, "abc", 3);
    room = tenure_made_resize(into, making->len);
    if (room == NULL || memcmp(room, "abc", 3) != 0 || room[making->len - 1] != 0)
        return 2;
    memset(room, 'm', making->len);
    return 0;
}

static void *ask(void *arg)
{
    struct making *making = arg;
    const void *bytes;
    size_t len;
    struct tenure_value *value =
        tenure_cache_get_or_insert(making->cache, "made", 4, make, making, &bytes, &len);
    void *wrong = value == NULL || len != making->len || *(const char *)bytes != 'm' ? arg : NULL;
    tenure_value_release(value);
    return wrong;
}

static void made(struct tenure_cache *c)
{
    struct making making = {c, 0, 7, 5000};
    FAILS(tenure_cache_get_or_insert(c, "made", 4, make, &making, NULL, NULL) ? 0 : -1, EIO, "7");
    CHECK(making.calls == 1);
    making.fail = 0;
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, ask, &making) == 0);
    for (int i = 0; i < 8; i++) {
        void *wrong;
        CHECK(pthread_join(threads[i], &wrong) == 0 && wrong == NULL);
    }
    CHECK(making.calls == 2); /* once failed, once made, for eight threads */
    FAILS(tenure_cache_get_or_insert(c, "x", 1, NULL, NULL, NULL, NULL) ? 0 : -1, EINVAL, "make");
    FAILS_NULL(tenure_made_resize(NULL, 1), EINVAL, "NULL");
}

static int huge(void *arg, struct tenure_made *into)
{
    (void)arg;
    if (tenure_made_resize(into, (size_t)1 << 46) != NULL)
        return 1;
    return errno == ENOMEM ? 33 : 2;
}

static void options(void)
{
    struct tenure_cache_opts opts = TENURE_CACHE_OPTS_INIT;
    opts.ceiling = 16 * MIB;
    opts.ttl_ms = 200;
    opts.priority = TENURE_PRIORITY_HIGHEST;
    struct tenure_cache *c = tenure_cache_new(&opts);
    CHECK(c != NULL);
    CHECK(tenure_cache_insert(c, "short", 5, "lived", 5) == 0);
    CHECK(tenure_cache_remove(c, "short", 5) == 1);
    CHECK(tenure_cache_insert(c, "short", 5, "lived", 5) == 0);
    CHECK(tenure_cache_insert_ttl(c, "own", 3, "lives", 5, 3600 * 1000) == 0);
    CHECK(tenure_cache_insert_ttl(c, "shorter", 7, "lived", 5, 1) == 0);
    CHECK(tenure_cache_insert_ttl(c, "the cache's", 11, "lived", 5, 0) == 0);
    FAILS(tenure_cache_insert_ttl(c, "k", 1, NULL, 3, 1), EINVAL, "the value is 3 bytes");
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    CHECK(tenure_cache_get(c, "short", 5, NULL, NULL) == NULL);
    CHECK(tenure_cache_get(c, "shorter", 7, NULL, NULL) == NULL);
    CHECK(tenure_cache_get(c, "the cache's", 11, NULL, NULL) == NULL);
    struct tenure_value *own = tenure_cache_get(c, "own", 3, NULL, NULL);
    CHECK(own != NULL);
    tenure_value_release(own);
    CHECK(tenure_cache_get_or_insert(c, "huge", 4, huge, NULL, NULL, NULL) == NULL);
    CHECK(strstr(tenure_last_error(), "33") != NULL);
    struct tenure_cache_stats stats;
    for (unsigned key = 0; key < 16000; key++)
        put(c, key, 4000);
    CHECK(tenure_cache_stats(c, &stats, sizeof stats) == 0);
    CHECK(stats.footprint_bytes > 0 && stats.footprint_bytes <= 20 * MIB);
    CHECK(stats.insertions == 16005 && stats.evictions > 0);
    tenure_cache_free(c);

    opts.priority = 8;
    FAILS_NULL(tenure_cache_new(&opts), EINVAL, "priority 8");
    opts.priority = 4;
    opts.reserved = 1;
    FAILS_NULL(tenure_cache_new(&opts), E2BIG, "reserved");
}

/* A purged value is missing afterwards, and a value that is found has the right bytes. */
static void purged(void)
{
    struct tenure_cache *c = tenure_cache_new(NULL);
    const unsigned keys = 20000; /* 80 MB */
    for (unsigned key = 0; key < keys; key++)
        put(c, key, 4000);
    /* Makes the worker offer every segment, and then purges the segments through their
     * addresses. */
    struct tenure_settings settings;
    CHECK(tenure_settings(&settings, sizeof settings) == 0);
    settings.offer_after_us = 1000;
    CHECK(tenure_configure(&settings) == 0);
    struct tenure_stats now;
    for (int i = 0; i < 60000; i++) {
        CHECK(tenure_stats(&now, sizeof now) == 0);
        if (now.offered_bytes >= 60 * MIB)
            break;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    CHECK(now.offered_bytes >= 60 * MIB);
    /* Some values are held: their segments must stay. */
    const void *held_bytes;
    size_t held_len;
    unsigned first = 0;
    struct tenure_value *held = tenure_cache_get(c, &first, sizeof first, &held_bytes, &held_len);
    CHECK(held != NULL);
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    char line[512];
    size_t taken = 0;
    while (fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        if (sscanf(line, "%lx-%lx rw", &start, &end) != 2 || strchr(line, '/') || strchr(line, '['))
            continue;
        /* PAGEOUT discards offered pages. Without swap it keeps all other pages. */
        for (uintptr_t at = start; at < end; at += 2 * MIB) {
            size_t len = end - at < 2 * MIB ? end - at : 2 * MIB;
            size_t before = present((void *)at, len);
            madvise((void *)at, len, 21 /* MADV_PAGEOUT */);
            taken += before - present((void *)at, len);
        }
    }
    fclose(maps);
    CHECK(taken * PAGE >= 50 * MIB);
    CHECK(held_len == 4000 && is_value_of(first, held_bytes, held_len));
    tenure_value_release(held);
    unsigned hits = 0;
    for (unsigned key = 0; key < keys; key++) {
        const void *bytes;
        size_t len;
        struct tenure_value *value = tenure_cache_get(c, &key, sizeof key, &bytes, &len);
        if (value == NULL)
            continue;
        hits++;
        CHECK(len == 4000 && is_value_of(key, bytes, len));
        tenure_value_release(value);
    }
    struct tenure_cache_stats stats;
    CHECK(tenure_cache_stats(c, &stats, sizeof stats) == 0);
    CHECK(hits < keys / 2 && stats.purged_bytes >= 40 * MIB);
    CHECK(stats.hits == hits + 1 && stats.misses == keys - hits);
    tenure_cache_free(c);
}

/* With swap the kernel could swap other pages out, and the counts would take that for a purge. */
static int has_swap(void)
{
    char line[256];
    int lines = 0;
    FILE *swaps = fopen("/proc/swaps", "r");
    while (swaps && fgets(line, sizeof line, swaps))
        lines++;
    if (swaps)
        fclose(swaps);
    return lines > 1;
}

int main(void)
{
    struct tenure_cache *c = tenure_cache_new(NULL);
    CHECK(c != NULL);
    come_back(c);
    made(c);
    tenure_cache_free(c);
    outlive();
    options();
    if (!has_swap())
        purged();
    return 0;
}
