/* Impossible calls: each fails with its errno, and a sentence that names the range, the reason
 * and a remedy. A call that fails marks nothing. */
#include "check.h"

#include <pthread.h>

#define LEN (16 * PAGE)

/* The sentence names the function, the range that the caller gave, and a remedy. */
static void names(const char *call, const void *at, size_t len, const char *remedy)
{
    char range[128];
    snprintf(range, sizeof range, "[%#lx, %#lx) (%zu bytes)", (unsigned long)at,
             (unsigned long)at + len, len);
    const char *text = tenure_last_error();
    CHECK(strncmp(text, call, strlen(call)) == 0 && text[strlen(call)] == ':');
    CHECK(strstr(text, range) != NULL);
    CHECK(strstr(text, remedy) != NULL);
}

static void bad_ranges(unsigned char *p)
{
    FAILS(tenure_mvolatile(p, 0), EINVAL, "empty");
    FAILS(tenure_mvolatile(p + 1, PAGE), EINVAL, "not a multiple");
    names("tenure_mvolatile", p + 1, PAGE, "round the address down");
    FAILS(tenure_mvolatile(p, PAGE + 1), EINVAL, "not a multiple");
    names("tenure_mvolatile", p, PAGE + 1, "round the length");
    FAILS(tenure_mvolatile(p, SIZE_MAX & ~(PAGE - 1)), EINVAL, "wraps");
    FAILS(tenure_mvolatile(NULL, PAGE), EINVAL, "address space");
    FAILS(tenure_mvolatile_priority(p, LEN, 8), EINVAL, "priority 8");
    FAILS(tenure_mvolatile_priority(p, LEN, UINT32_MAX), EINVAL, "0 (given up first) to 7 (last)");
    FAILS(tenure_mnovolatile(p + 1, PAGE), EINVAL, "not a multiple");
    FAILS(tenure_mnovolatile_map(p, 0, NULL, NULL), EINVAL, "empty");
    FAILS(tenure_forget(p, 0), EINVAL, "empty");
    FAILS(tenure_offer_now(p, 1), EINVAL, "not a multiple");
    FAILS(tenure_purge_now(p, 0), EINVAL, "empty");
    CHECK(tenure_is_volatile(p + 1, PAGE) == 0 && tenure_is_volatile(p, 0) == 0);
}

static void not_marked(unsigned char *p)
{
    FAILS(tenure_offer_now(p, LEN), EINVAL, "no page of the range is marked volatile");
    names("tenure_offer_now", p, LEN, "mark it first");
    FAILS(tenure_purge_now(p, LEN), EINVAL, "no page of the range is marked volatile");
    CHECK(tenure_mnovolatile(p, LEN) == 0); /* a range without a mark has its pages */
}

static void wrong_memory(unsigned char *p)
{
    void *shared = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    FAILS(tenure_mvolatile(shared, LEN), EINVAL, "shared");
    names("tenure_mvolatile", shared, LEN, "MAP_PRIVATE|MAP_ANONYMOUS");

    int self = open("/proc/self/exe", O_RDONLY);
    void *file = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, self, 0);
    CHECK(file != MAP_FAILED);
    FAILS(tenure_mvolatile(file, PAGE), EINVAL, "file");

    CHECK(mlock(p + PAGE, PAGE) == 0);
    FAILS(tenure_mvolatile(p, LEN), EINVAL, "locked");
    names("tenure_mvolatile", p, LEN, "munlock");
    CHECK(munlock(p + PAGE, PAGE) == 0);

    static const int protections[] = {PROT_NONE, PROT_READ};
    for (int i = 0; i < 2; i++) {
        CHECK(mprotect(p + 2 * PAGE, PAGE, protections[i]) == 0);
        FAILS(tenure_mvolatile(p, LEN), EINVAL, "not both readable and writable");
        names("tenure_mvolatile", p, LEN, "mprotect");
        CHECK(mprotect(p + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    }

    unsigned char *holed = map(LEN);
    CHECK(munmap(holed + 3 * PAGE, PAGE) == 0);
    char hole[64];
    snprintf(hole, sizeof hole, "nothing is mapped at %#lx", (unsigned long)(holed + 3 * PAGE));
    FAILS(tenure_mvolatile(holed, LEN), ENOMEM, hole);
    FAILS(tenure_mnovolatile(holed, LEN), ENOMEM, hole);
    names("tenure_mnovolatile", holed, LEN, "only mapped memory");

    CHECK(tenure_is_volatile(p, LEN) == 0 && tenure_is_volatile(holed, LEN) == 0);
    struct tenure_stats stats;
    CHECK(tenure_stats(&stats, sizeof stats) == 0 && stats.ranges == 0);
}

static void null_objects(void)
{
    FAILS_NULL(tenure_volatile_new(0), EINVAL, "");
    FAILS(tenure_volatile_pin(NULL, NULL), EINVAL, "the buffer is NULL");
    FAILS(tenure_volatile_unpin(NULL), EINVAL, "the buffer is NULL");
    FAILS(tenure_volatile_lost(NULL, NULL, NULL), EINVAL, "the buffer is NULL");
    FAILS(tenure_volatile_restored(NULL), EINVAL, "the buffer is NULL");
    FAILS(tenure_volatile_set_priority(NULL, 1), EINVAL, "the buffer is NULL");
    FAILS(tenure_volatile_offer_now(NULL), EINVAL, "the buffer is NULL");
    FAILS(tenure_volatile_purge_now(NULL, NULL), EINVAL, "the buffer is NULL");
    CHECK(tenure_volatile_len(NULL) == 0 && tenure_volatile_address(NULL) == NULL);
    tenure_volatile_free(NULL);
    struct tenure_volatile *v = tenure_volatile_new(PAGE);
    CHECK(tenure_volatile_set_priority(v, 7) == 0);
    FAILS(tenure_volatile_set_priority(v, 9), EINVAL, "priority 9");
    tenure_volatile_free(v);

    FAILS(tenure_cache_insert(NULL, "k", 1, "v", 1), EINVAL, "the cache is NULL");
    FAILS_NULL(tenure_cache_get(NULL, "k", 1, NULL, NULL), EINVAL, "the cache is NULL");
    FAILS_NULL(tenure_cache_get_or_insert(NULL, "k", 1, NULL, NULL, NULL, NULL), EINVAL, "NULL");
    FAILS(tenure_cache_remove(NULL, "k", 1), EINVAL, "the cache is NULL");
    FAILS(tenure_cache_clear(NULL), EINVAL, "the cache is NULL");
    struct tenure_cache_stats stats;
    FAILS(tenure_cache_stats(NULL, &stats, sizeof stats), EINVAL, "the cache is NULL");
    CHECK(tenure_value_is_cached(NULL) == 0);
    tenure_value_release(NULL);
    tenure_cache_free(NULL);
    struct tenure_cache *c = tenure_cache_new(NULL);
    FAILS(tenure_cache_insert(c, "k", 1, NULL, 3), EINVAL, "the value is 3 bytes");
    FAILS(tenure_cache_remove(c, NULL, 3), EINVAL, "the key is 3 bytes");
    FAILS(tenure_cache_insert(c, "k", SIZE_MAX, "v", 1), EINVAL, "the key is");
    /* Longer than a value can be. The call refuses the length before it reads, so the memory
     * need not exist. */
    void *large = mmap(NULL, ((size_t)4 << 30) + PAGE, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(large != MAP_FAILED);
    FAILS(tenure_cache_insert(c, "k", 1, large, (size_t)4 << 30), EINVAL, "4294967296 bytes");
    tenure_cache_free(c);
}

static void *in_thread(void *arg)
{
    if (*tenure_last_error() != '\0')
        return "another thread's sentence";
    if (tenure_mvolatile(arg, 0) != -1 || strstr(tenure_last_error(), "empty") == NULL)
        return "no sentence of its own";
    return NULL;
}

static void sentences(unsigned char *p)
{
    /* Each thread has its own sentence, and a call that succeeds leaves it. */
    FAILS(tenure_mvolatile(p + 1, PAGE), EINVAL, "not a multiple");
    pthread_t thread;
    void *wrong;
    CHECK(pthread_create(&thread, NULL, in_thread, p) == 0);
    CHECK(pthread_join(thread, &wrong) == 0 && wrong == NULL);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(strstr(tenure_last_error(), "not a multiple") != NULL);
}

int main(void)
{
    CHECK(tenure_last_error() != NULL && *tenure_last_error() == '\0');
    CHECK(strchr(tenure_version(), '.') != NULL);
    unsigned char *p = map(LEN);
    fill(p, 0, 16);
    bad_ranges(p);
    not_marked(p);
    wrong_memory(p);
    for (size_t i = 0; i < 16; i++)
        CHECK(page_is(p + i * PAGE, letter(i)));
    null_objects();
    sentences(p);
    return 0;
}
