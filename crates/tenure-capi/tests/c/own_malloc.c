/* The program's own malloc aligns its blocks to 8 only. Every block that the library takes from it goes
 * back to it. */
#include "check.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

extern void *__libc_malloc(size_t size);
extern void __libc_free(void *block);

static atomic_long in_use;

/* The word before a block has the C library's block; its lowest bits mark it as one of these. */
static void *place(size_t size, size_t align, size_t rest)
{
    char *whole = __libc_malloc(size + 2 * align + 32);
    if (whole == NULL)
        return NULL;
    char *at = (char *)(((uintptr_t)whole + align + 16) / align * align) + rest;
    ((uintptr_t *)at)[-1] = (uintptr_t)whole | 5;
    in_use++;
    return at;
}

void *malloc(size_t size)
{
    return place(size, 16, 8);
}

void free(void *at)
{
    if (at == NULL)
        return;
    uintptr_t whole = ((uintptr_t *)at)[-1];
    if ((whole & 15) != 5)
        abort();
    ((uintptr_t *)at)[-1] = 0;
    in_use--;
    __libc_free((void *)(whole - 5));
}

void *calloc(size_t count, size_t size)
{
    void *at = malloc(count * size);
    return at == NULL ? NULL : memset(at, 0, count * size);
}

void *realloc(void *at, size_t size)
{
    void *new = malloc(size);
    if (new != NULL && at != NULL) {
        char *whole = (char *)(((uintptr_t *)at)[-1] - 5);
        size_t there = malloc_usable_size(whole) - (size_t)((char *)at - whole);
        memcpy(new, at, size < there ? size : there);
        free(at);
    }
    return new;
}

int posix_memalign(void **at, size_t align, size_t size)
{
    *at = place(size, align, 0);
    return *at == NULL ? ENOMEM : 0;
}

static void *use(void *unused)
{
    (void)unused;
    struct tenure_cache *c = tenure_cache_new(NULL);
    CHECK(c != NULL);
    for (int n = 0; n < 3000; n++) {
        char key[32];
        int len = snprintf(key, sizeof key, "key %d", n);
        CHECK(tenure_cache_insert(c, key, (size_t)len, key, (size_t)len) == 0);
        struct tenure_value *value = tenure_cache_get(c, key, (size_t)len, NULL, NULL);
        if (value != NULL)
            tenure_value_release(value);
    }
    tenure_cache_free(c);
    return NULL;
}

int main(void)
{
    long before = 0;
    for (int round = 0; round < 30; round++) {
        pthread_t threads[2];
        for (int n = 0; n < 2; n++)
            CHECK(pthread_create(&threads[n], NULL, use, NULL) == 0);
        for (int n = 0; n < 2; n++)
            CHECK(pthread_join(threads[n], NULL) == 0);
        unsigned char *p = map(4 * MIB);
        memset(p, 1, 4 * MIB);
        CHECK(tenure_munmap(p, 4 * MIB) == 0);
        CHECK(ends());
        if (round == 4)
            before = in_use;
    }
    /* Nothing grows from round to round. */
    if (in_use > before + 50)
        fprintf(stderr, "%ld blocks, %ld before\n", (long)in_use, before);
    CHECK(in_use <= before + 50);
    return 0;
}
