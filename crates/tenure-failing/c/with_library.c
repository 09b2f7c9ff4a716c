/* A program that uses each part of the C library's ABI, and checks every byte. Errors are allowed while calls are made to
 * fail: -1 or NULL, with an errno that the header names and a sentence. */
#include "failing.h"

#include "tenure.h"

#include <stdarg.h>

/* `errno` is one of these, which end with 0, or the injected one; and there is a sentence. */
static int fails_with(int first, ...)
{
    if (!is_failing || injected() == 0 || tenure_last_error()[0] == '\0')
        return 0;
    int found = errno == injected();
    /* A page that is said to be gone, and is there, cannot be refilled. */
    if (injected() == EFAULT || injected() == EHWPOISON)
        found |= errno == ENOENT;
    va_list numbers;
    va_start(numbers, first);
    for (int number = first; number != 0; number = va_arg(numbers, int))
        found |= errno == number;
    va_end(numbers);
    return found;
}

static void allowed(int is_allowed, int line)
{
    if (!is_allowed)
        fprintf(stderr, "line %d, errno %d: %s\n", line, errno, tenure_last_error());
    CHECK(is_allowed);
}

/* Whether the call worked; if not, its error is allowed. */
#define WORKS(call, ...) ((call) == 0 || (allowed(fails_with(__VA_ARGS__, 0), __LINE__), 0))

static int fill_page(void *arg, size_t offset, void *bytes, size_t len)
{
    (void)offset, (void)arg;
    memset(bytes, 5, len);
    return 0;
}

static void buffers(void)
{
    struct tenure_volatile *plain = tenure_volatile_new(8 * PAGE);
    if (plain == NULL) {
        CHECK(fails_with(ENOMEM, EAGAIN, EOPNOTSUPP, EINVAL, 0));
        return;
    }
    void *bytes;
    int outcome = tenure_volatile_pin(plain, &bytes);
    if (outcome >= 0) {
        memset(bytes, 3, 8 * PAGE);
        CHECK(tenure_volatile_unpin(plain) == 0);
        size_t gone;
        (void)WORKS(tenure_volatile_purge_now(plain, &gone), EINVAL, EBUSY, ENOMEM);
        outcome = tenure_volatile_pin(plain, &bytes);
        if (outcome == 0)
            CHECK(all_are(bytes, 8 * PAGE, 3));
        else if (outcome < 0)
            CHECK(fails_with(ENOMEM, EIO, 0));
        if (outcome >= 0)
            CHECK(tenure_volatile_unpin(plain) == 0);
    } else {
        CHECK(fails_with(ENOMEM, EIO, 0));
    }
    tenure_volatile_free(plain);

    struct tenure_volatile_opts opts = {.size = sizeof opts, .refill = fill_page, .priority = 4};
    struct tenure_volatile *made = tenure_volatile_new_with(8 * PAGE, &opts);
    if (made == NULL) {
        CHECK(fails_with(ENOMEM, EAGAIN, EOPNOTSUPP, EINVAL, 0));
        return;
    }
    for (int round = 0; round < 2; round++) {
        if (tenure_volatile_pin(made, &bytes) < 0) {
            CHECK(fails_with(ENOMEM, EIO, 0));
            continue;
        }
        if (round == 0)
            memset(bytes, 5, 8 * PAGE);
        else
            CHECK(all_are(bytes, 8 * PAGE, 5) || all_are(bytes, 8 * PAGE, 0));
        CHECK(tenure_volatile_unpin(made) == 0);
        (void)WORKS(tenure_volatile_purge_now(made, NULL), EINVAL, EBUSY, ENOMEM);
    }
    tenure_volatile_free(made);
}

static void ranges(void)
{
    unsigned char *at =
        mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        CHECK(may_fail());
        return;
    }
    memset(at, 7, 16 * PAGE);
    if (WORKS(tenure_mvolatile(at, 16 * PAGE), EINVAL, ENOMEM, EOPNOTSUPP, EAGAIN)) {
        (void)WORKS(tenure_purge_now(at, 4 * PAGE) >= 0 ? 0 : -1, EINVAL, EBUSY, ENOMEM);
        int outcome = -1;
        for (int i = 0; i < 3 && outcome < 0; i++) {
            outcome = tenure_mnovolatile(at, 16 * PAGE);
            CHECK(outcome >= 0 || fails_with(EINVAL, ENOMEM, 0));
        }
        if (outcome == 0)
            CHECK(all_are(at, 16 * PAGE, 7));
        if (outcome == 1)
            CHECK(all_are(at + 4 * PAGE, 12 * PAGE, 7) || injected() == EFAULT ||
                  injected() == EHWPOISON);
    } else {
        CHECK(all_are(at, 16 * PAGE, 7));
    }
    if (tenure_munmap(at, 16 * PAGE) < 0)
        CHECK(fails_with(EINVAL, EPERM, ENOMEM, 0));
}

static void caches(void)
{
    struct tenure_cache_opts opts = {.size = sizeof opts, .priority = 4, .ceiling = 8 << 20};
    struct tenure_cache *cache = tenure_cache_new(&opts);
    if (cache == NULL) {
        CHECK(fails_with(ENOMEM, EAGAIN, EOPNOTSUPP, 0));
        return;
    }
    unsigned char value[3000];
    for (int i = 0; i < 60; i++) {
        const int key = i % 20;
        memset(value, key + 1, sizeof value);
        (void)WORKS(tenure_cache_insert(cache, &key, sizeof key, value, sizeof value), ENOMEM);
        const void *bytes;
        size_t len;
        struct tenure_value *found = tenure_cache_get(cache, &key, sizeof key, &bytes, &len);
        if (found != NULL)
            CHECK(len == sizeof value && all_are(bytes, len, key + 1));
        tenure_value_release(found);
    }
    tenure_cache_free(cache);
}

static void locks(void)
{
    unsigned char *at =
        mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        CHECK(may_fail());
        return;
    }
    memset(at, 2, 8 * PAGE);
    struct tenure_held *held = tenure_lock(at, 4 * PAGE, TENURE_MLOCK_ONFAULT);
    if (held == NULL)
        CHECK(fails_with(EINVAL, ENOMEM, EPERM, 0));
    tenure_unlock(held);
    if (WORKS(tenure_mlock2(at, 2 * PAGE, TENURE_MLOCK_ONFAULT), EINVAL, ENOMEM, EPERM))
        (void)WORKS(tenure_munlock2(at, 2 * PAGE, TENURE_MLOCK_ONFAULT), EINVAL, ENOMEM, EPERM);
    struct tenure_populate_result result = {.size = sizeof result};
    CHECK(tenure_populate(at, 8 * PAGE, TENURE_POPULATE_WRITE, NULL, &result) == 0 ||
          fails_with(EINVAL, ENOMEM, EACCES, EFAULT, EHWPOISON, 0));
    CHECK(all_are(at, 8 * PAGE, 2));
    if (munmap(at, 8 * PAGE) != 0)
        CHECK(may_fail());
}

static void pool(void)
{
    unsigned char *held[4] = {NULL};
    for (int i = 0; i < 12; i++) {
        const size_t size = (size_t)(i % 3 + 1) * 300 * KIB;
        unsigned char **place = &held[i % 4];
        if (*place != NULL) {
            CHECK(all_are(*place, 300 * KIB, i % 4 + 1));
            unsigned char *grown = tenure_realloc(*place, 2 * MIB);
            if (grown != NULL) {
                CHECK(all_are(grown, 300 * KIB, i % 4 + 1));
                *place = grown;
            } else {
                CHECK(is_failing && injected() != 0 && errno == ENOMEM);
            }
            tenure_free(*place);
        }
        *place = i % 2 == 0 ? tenure_alloc(size) : tenure_calloc(1, size);
        if (*place == NULL) {
            CHECK(is_failing && injected() != 0 && errno == ENOMEM);
            continue;
        }
        if (i % 2 != 0)
            CHECK(all_are(*place, size, 0));
        memset(*place, i % 4 + 1, size);
    }
    for (int i = 0; i < 4; i++)
        tenure_free(held[i]);
    tenure_pool_trim();
}

static void shared(void)
{
    struct tenure_shared *memory = tenure_shared_new(256 * KIB, NULL);
    if (memory == NULL) {
        CHECK(fails_with(EUSERS, EACCES, EPERM, ENOENT, ENOMEM, EMFILE, ENFILE, EINVAL, EOPNOTSUPP,
                         EPROTO, EAGAIN, 0));
        return;
    }
    for (int round = 0; round < 2; round++) {
        for (size_t chunk = 0; chunk < tenure_shared_chunks(memory); chunk++) {
            size_t len = tenure_shared_chunk_size(memory);
            unsigned char *bytes = (unsigned char *)tenure_shared_addr(memory, chunk);
            const int outcome = tenure_shared_pin(memory, chunk, 1, NULL);
            if (outcome < 0) {
                CHECK(fails_with(ENOMEM, EUSERS, EBUSY, 0));
                continue;
            }
            if (outcome == 1) {
                CHECK(all_are(bytes, len, 0));
                memset(bytes, (int)chunk + 1, len);
                CHECK(tenure_shared_finish(memory, chunk) == 0);
            } else {
                CHECK(outcome == 0 && all_are(bytes, len, (int)chunk + 1));
            }
            CHECK(tenure_shared_unpin(memory, chunk, 1) == 0);
        }
        CHECK(tenure_shared_purge_now(memory, 0, 1) >= 0 || fails_with(EUSERS, 0));
    }
    tenure_shared_free(memory);
}

static void life(void)
{
    buffers();
    ranges();
    caches();
    locks();
    pool();
    shared();
}

int main(int argc, char **argv)
{
    return live(life, argc, argv);
}
