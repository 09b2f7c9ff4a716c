/* The cache: values with several owners, a walk over all values, and the callback for values
 * that leave. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

static void put(struct tenure_cache *c, unsigned key, unsigned of)
{
    unsigned char value[1000];
    memset(value, (int)(of % 251), sizeof value);
    CHECK(tenure_cache_insert(c, &key, sizeof key, value, sizeof value) == 0);
}

/* Values with several owners. */

static void *read_and_release(void *arg)
{
    struct tenure_value *value = arg;
    size_t len;
    const unsigned char *bytes = tenure_value_bytes(value, &len);
    intptr_t wrong = bytes == NULL || len != 1000;
    for (size_t i = 0; !wrong && i < len; i++)
        wrong = bytes[i] != 7;
    tenure_value_release(value);
    return (void *)wrong;
}

/* Each owner releases the value once, on its own thread, after the key and the cache have gone. */
static void several_owners(void)
{
    struct tenure_cache *c = tenure_cache_new(NULL);
    CHECK(c != NULL);
    put(c, 1, 7);
    unsigned key = 1;
    const void *bytes;
    size_t len;
    struct tenure_value *value = tenure_cache_get(c, &key, sizeof key, &bytes, &len);
    CHECK(value != NULL && tenure_value_bytes(value, NULL) == bytes);
    struct tenure_value *owners[4];
    for (int i = 0; i < 4; i++) {
        owners[i] = tenure_value_clone(value);
        CHECK(owners[i] != NULL && tenure_value_bytes(owners[i], NULL) == bytes);
    }
    tenure_value_release(value);
    for (unsigned other = 0; other < 5000; other++)
        put(c, other, other);
    CHECK(tenure_cache_clear(c) == 0);
    tenure_cache_free(c);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, read_and_release, owners[i]) == 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        CHECK(pthread_join(threads[i], &wrong) == 0 && wrong == NULL);
    }
    FAILS_NULL(tenure_value_clone(NULL), EINVAL, "NULL");
    FAILS_NULL(tenure_value_bytes(NULL, &len), EINVAL, "NULL");
}

/* A walk over all values. */

struct seen {
    struct tenure_cache *cache;
    unsigned count[100];
    unsigned calls;
    unsigned stop_after;
};

static int see(struct seen *seen, const void *key, size_t key_len)
{
    unsigned number;
    CHECK(key_len == sizeof number);
    memcpy(&number, key, sizeof number);
    CHECK(number < 100);
    seen->count[number]++;
    seen->calls++;
    return seen->calls == seen->stop_after ? 42 : 0;
}

static int each(void *arg, const void *key, size_t key_len, const void *bytes, size_t len)
{
    struct seen *seen = arg;
    unsigned number;
    memcpy(&number, key, sizeof number);
    CHECK(len == 1000);
    for (size_t i = 0; i < len; i++)
        CHECK(((const unsigned char *)bytes)[i] == number);
    /* The function may use the cache. */
    struct tenure_value *value = tenure_cache_get(seen->cache, key, key_len, NULL, NULL);
    CHECK(value != NULL);
    tenure_value_release(value);
    return see(seen, key, key_len);
}

static int each_key(void *arg, const void *key, size_t key_len)
{
    return see(arg, key, key_len);
}

static int keep_even(void *arg, const void *key, size_t key_len, const void *bytes, size_t len)
{
    (void)arg, (void)key, (void)key_len;
    CHECK(len == 1000);
    return *(const unsigned char *)bytes % 2 == 0;
}

static void all_of_it(void)
{
    struct tenure_cache *c = tenure_cache_new(NULL);
    CHECK(c != NULL);
    CHECK(tenure_cache_each(c, each, NULL) == 0); /* of nothing */
    for (unsigned key = 0; key < 100; key++)
        put(c, key, key);
    struct seen values = {.cache = c}, keys = {.cache = c};
    CHECK(tenure_cache_each(c, each, &values) == 0);
    CHECK(tenure_cache_each_key(c, each_key, &keys) == 0);
    for (unsigned key = 0; key < 100; key++)
        CHECK(values.count[key] == 1 && keys.count[key] == 1);
    struct seen some = {.cache = c, .stop_after = 3}, some_keys = some;
    CHECK(tenure_cache_each(c, each, &some) == 42 && some.calls == 3);
    CHECK(tenure_cache_each_key(c, each_key, &some_keys) == 42 && some_keys.calls == 3);

    CHECK(tenure_cache_retain(c, keep_even, NULL) == 0);
    for (unsigned key = 0; key < 100; key++) {
        struct tenure_value *value = tenure_cache_get(c, &key, sizeof key, NULL, NULL);
        CHECK((value != NULL) == (key % 2 == 0));
        tenure_value_release(value);
    }
    FAILS(tenure_cache_each(NULL, each, NULL), EINVAL, "cache is NULL");
    FAILS(tenure_cache_each(c, NULL, NULL), EINVAL, "each is NULL");
    FAILS(tenure_cache_each_key(NULL, each_key, NULL), EINVAL, "cache is NULL");
    FAILS(tenure_cache_each_key(c, NULL, NULL), EINVAL, "each is NULL");
    FAILS(tenure_cache_retain(NULL, keep_even, NULL), EINVAL, "cache is NULL");
    FAILS(tenure_cache_retain(c, NULL, NULL), EINVAL, "keep is NULL");
    tenure_cache_free(c);
}

/* The callback for values that leave. */

struct told {
    atomic_uint count[5];
    atomic_uint freed;
    atomic_int last_key;
};

static void removed(void *arg, const void *key, size_t key_len, unsigned cause)
{
    struct told *told = arg;
    unsigned number;
    CHECK(key_len == sizeof number && cause <= TENURE_PURGED);
    memcpy(&number, key, sizeof number);
    told->last_key = (int)number;
    told->count[cause]++;
}

static void argument_freed(void *arg)
{
    struct told *told = arg;
    told->freed++;
}

static void told_of(void)
{
    static struct told told;
    struct tenure_cache_opts opts = TENURE_CACHE_OPTS_INIT;
    opts.ceiling = 16 * MIB;
    opts.removed = removed;
    opts.arg = &told;
    opts.free_arg = argument_freed;
    struct tenure_cache *c = tenure_cache_new(&opts);
    CHECK(c != NULL);
    unsigned key = 5;
    put(c, key, 1);
    CHECK(told.count[TENURE_REPLACED] == 0);
    put(c, key, 2);
    CHECK(told.count[TENURE_REPLACED] == 1 && told.last_key == 5);
    CHECK(tenure_cache_remove(c, &key, sizeof key) == 1 && told.count[TENURE_REMOVED] == 1);
    CHECK(tenure_cache_insert_ttl(c, &key, sizeof key, "v", 1, 1) == 0);
    usleep(5000);
    CHECK(tenure_cache_get(c, &key, sizeof key, NULL, NULL) == NULL);
    CHECK(told.count[TENURE_EXPIRED] == 1);
    for (key = 0; key < 30000; key++)
        put(c, key, key);
    struct tenure_cache_stats stats;
    CHECK(tenure_cache_stats(c, &stats, sizeof stats) == 0 && stats.evictions > 10000);
    /* The callback got each missing value once. */
    unsigned gone = told.count[TENURE_EVICTED] + told.count[TENURE_PURGED];
    CHECK(gone == 30000 - stats.values);

    /* The release of the last value ends the cache, and then the argument is freed. */
    struct tenure_value *held = NULL;
    for (key = 30000; held == NULL && key-- > 0;)
        held = tenure_cache_get(c, &key, sizeof key, NULL, NULL);
    CHECK(held != NULL);
    tenure_cache_free(c);
    CHECK(told.freed == 0);
    tenure_value_release(held);
    CHECK(told.freed == 1);

    /* There is no cache, so the caller keeps the argument. */
    opts.priority = 8;
    FAILS_NULL(tenure_cache_new(&opts), EINVAL, "priority 8");
    CHECK(told.freed == 1);

    /* With one cache the cost of a miss changes nothing. */
    struct tenure_cache_opts costly = TENURE_CACHE_OPTS_INIT;
    costly.miss_cost_ns = 20 * 1000 * 1000;
    c = tenure_cache_new(&costly);
    CHECK(c != NULL);
    put(c, 1, 1);
    tenure_cache_free(c);

    /* A program that was built before the options had a listener. */
    struct tenure_cache_opts older = TENURE_CACHE_OPTS_INIT;
    older.size = (size_t)((char *)&older.removed - (char *)&older);
    older.removed = (tenure_removed_fn)1; /* beyond its size, so never called */
    c = tenure_cache_new(&older);
    CHECK(c != NULL);
    put(c, 1, 1);
    put(c, 1, 2);
    tenure_cache_free(c);
}

int main(void)
{
    several_owners();
    all_of_it();
    told_of();
    return 0;
}
