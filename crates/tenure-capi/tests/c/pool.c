/* The pool from C. */

#include "check.h"
#include <stdint.h>
#include <string.h>

static int all(const unsigned char *p, size_t n, unsigned char value) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != value) return 0;
    return 1;
}

int main(void) {
    CHECK(tenure_pool_prepare() == 0);
    struct tenure_pool_opts opts = TENURE_POOL_OPTS_INIT;
    opts.offer_after_ms = 50;
    CHECK(tenure_pool_configure(&opts) == 0);
    opts.size = 3;
    CHECK(tenure_pool_configure(&opts) == -1 && errno == EINVAL);

    unsigned char *p = tenure_alloc(300000);
    CHECK(p != NULL && tenure_pool_owns(p) == 1 && tenure_pool_owns(&opts) == 0);
    CHECK(tenure_usable_size(p) >= 300000 && tenure_usable_size(NULL) == 0);
    memset(p, 7, 300000);
    errno = 42;
    tenure_free(p);
    tenure_free(NULL);
    CHECK(errno == 42);
    CHECK(tenure_usable_size(p) == 0);

    unsigned char *q = tenure_calloc(3, 100000);
    CHECK(q == p && all(q, 300000, 0));
    memset(q, 5, 300000);
    q = tenure_realloc(q, 6 << 20);
    CHECK(q != NULL && all(q, 300000, 5));
    memset(q, 6, 6 << 20);
    q = tenure_realloc(q, 20 << 20);
    CHECK(q != NULL && all(q, 6 << 20, 6));
    q = tenure_realloc(q, 100000);
    CHECK(q != NULL && all(q, 100000, 6));
    tenure_free(q);

    for (size_t align = 1; align <= (64u << 20); align *= 2) {
        void *a = tenure_aligned_alloc(align, 100000);
        CHECK(a != NULL && (uintptr_t)a % align == 0);
        tenure_free(a);
    }
    CHECK(tenure_aligned_alloc(24, 100000) == NULL && errno == EINVAL);
    CHECK(strstr(tenure_last_error(), "power of two") != NULL);
    CHECK(tenure_alloc(SIZE_MAX / 2) == NULL && errno == ENOMEM);
    CHECK(strstr(tenure_last_error(), "largest block") != NULL);
    CHECK(tenure_calloc(SIZE_MAX / 2, 4) == NULL && errno == ENOMEM);

    struct tenure_pool_stats s;
    CHECK(tenure_pool_stats(&s, sizeof s) == 0);
    CHECK(s.in_use == 0 && s.in_use_bytes == 0 && s.total_allocs > 10);
    CHECK(s.total_warm_reuses + s.total_offered_reuses > 0 && s.total_zeroed_bytes >= 300000);
    CHECK(tenure_pool_stats(NULL, sizeof s) == -1 && errno == EINVAL);
    struct tenure_stats t;
    CHECK(tenure_stats(&t, sizeof t) == 0);
    CHECK(t.total_pool_allocs == s.total_allocs && t.pool_in_use_bytes == 0);
    return 0;
}
