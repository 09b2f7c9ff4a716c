/* Buffers that make their purged bytes again: page by page, as a whole, and with a failure. */
#include "check.h"

#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#define PAGES ((size_t)32)
#define LEN (PAGES * PAGE)

struct source {
    atomic_int calls, freed;
    atomic_int fail; /* the callback's result */
    size_t last_len;
};

static int make(void *arg, size_t offset, void *bytes, size_t len)
{
    struct source *source = arg;
    source->calls++;
    source->last_len = len;
    /* The callback writes other bytes before a failure: no reader may see them. */
    memset(bytes, 0xEE, len);
    if (source->fail)
        return source->fail;
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)bytes)[i] = letter((offset + i) / PAGE);
    return 0;
}

static void count_free(void *arg)
{
    ((struct source *)arg)->freed++;
}

static struct tenure_volatile *new_buffer(unsigned scope, struct source *source)
{
    struct tenure_volatile_opts opts = TENURE_VOLATILE_OPTS_INIT;
    opts.refill_scope = scope;
    opts.refill = make;
    opts.arg = source;
    opts.free_arg = count_free;
    struct tenure_volatile *v = tenure_volatile_new_with(LEN, &opts);
    CHECK(v != NULL);
    CHECK(tenure_volatile_pin(v, NULL) == 0);
    fill(tenure_volatile_address(v), 0, PAGES);
    CHECK(tenure_volatile_unpin(v) == 0);
    return v;
}

static void free_buffer(struct tenure_volatile *v, struct source *source)
{
    tenure_volatile_free(v);
    /* A refill in progress may hold it for a moment. */
    for (int i = 0; i < 60000 && !source->freed; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK(source->freed == 1);
}

static void all_good(const unsigned char *p)
{
    for (size_t i = 0; i < PAGES; i++)
        CHECK(page_is(p + i * PAGE, letter(i)));
}

static void at_a_pin(unsigned scope)
{
    struct source source = {0};
    struct tenure_volatile *v = new_buffer(scope, &source);
    CHECK(tenure_volatile_purge_now(v, NULL) == 0);
    CHECK(present(tenure_volatile_address(v), LEN) == 0);
    CHECK(tenure_volatile_pin(v, NULL) == 0);
    CHECK(source.calls >= 1);
    CHECK(tenure_volatile_lost(v, NULL, NULL) == 0);
    all_good(tenure_volatile_address(v));
    CHECK(tenure_volatile_unpin(v) == 0);
    CHECK(source.freed == 0);
    free_buffer(v, &source);
}

static void failing_at_a_pin(void)
{
    struct source source = {0};
    struct tenure_volatile *v = new_buffer(TENURE_REFILL_PAGES, &source);
    CHECK(tenure_volatile_purge_now(v, NULL) == 0);
    source.fail = 42;
    FAILS(tenure_volatile_pin(v, NULL), EIO, "42");
    FAILS(tenure_volatile_pin(v, NULL), EIO, "42");
    /* A pin that failed does not count. */
    source.fail = 0;
    CHECK(tenure_volatile_pin(v, NULL) == 0);
    all_good(tenure_volatile_address(v));
    CHECK(tenure_volatile_unpin(v) == 0);
    CHECK(tenure_volatile_purge_now(v, NULL) == 0);
    free_buffer(v, &source);
}

static void at_a_touch(unsigned scope)
{
    struct source source = {0};
    struct tenure_volatile *v = new_buffer(scope, &source);
    const volatile unsigned char *p = tenure_volatile_address(v);
    CHECK(tenure_volatile_purge_now(v, NULL) == 0);
    CHECK(p[5 * PAGE + 9] == letter(5));
    CHECK(source.calls == 1);
    CHECK(source.last_len == (scope == TENURE_REFILL_WHOLE ? LEN : PAGE));
    /* One page is present now, or all of them. The thread that touches a page continues when
     * that page is present. */
    size_t wanted = scope == TENURE_REFILL_WHOLE ? PAGES : 1;
    for (int i = 0; i < 60000 && present((const void *)p, LEN) < wanted; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    CHECK(present((const void *)p, LEN) == wanted);
    for (size_t i = 0; i < PAGES; i++)
        CHECK(p[i * PAGE] == letter(i));
    CHECK(source.calls == (scope == TENURE_REFILL_WHOLE ? 1 : (int)PAGES));
    CHECK(tenure_volatile_pin(v, NULL) == 0);
    all_good((const unsigned char *)p);
    CHECK(tenure_volatile_unpin(v) == 0);
    free_buffer(v, &source);
}

static sigjmp_buf out;

static void on_bus(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

static void failing_at_a_touch(void)
{
    struct source source = {0};
    struct tenure_volatile *v = new_buffer(TENURE_REFILL_PAGES, &source);
    const volatile unsigned char *p = tenure_volatile_address(v);
    CHECK(tenure_volatile_purge_now(v, NULL) == 0);
    source.fail = 1;
    signal(SIGBUS, on_bus);
    if (sigsetjmp(out, 1) == 0) {
        unsigned char byte = p[3 * PAGE];
        fprintf(stderr, "read %d where SIGBUS was due\n", byte);
        exit(1);
    }
    CHECK(source.calls == 1);
    signal(SIGBUS, SIG_DFL);
    source.fail = 0;
    CHECK(tenure_volatile_pin(v, NULL) == 0);
    all_good((const unsigned char *)p);
    CHECK(tenure_volatile_unpin(v) == 0);
    free_buffer(v, &source);
}

static void refused(void)
{
    struct source source = {0};
    struct tenure_volatile_opts opts = TENURE_VOLATILE_OPTS_INIT;
    opts.refill = make;
    opts.arg = &source;
    opts.free_arg = count_free;
    opts.refill_scope = 2;
    FAILS_NULL(tenure_volatile_new_with(LEN, &opts), EINVAL, "refill_scope 2");
    opts.refill_scope = TENURE_REFILL_WHOLE;
    FAILS_NULL(tenure_volatile_new_with(0, &opts), EINVAL, "");
    CHECK(source.freed == 0); /* the argument stays the caller's */
}

int main(void)
{
    refused();
    at_a_pin(TENURE_REFILL_PAGES);
    at_a_pin(TENURE_REFILL_WHOLE);
    failing_at_a_pin();
    NEED_SIGBUS();
    at_a_touch(TENURE_REFILL_PAGES);
    at_a_touch(TENURE_REFILL_WHOLE);
    failing_at_a_touch();
    return 0;
}
