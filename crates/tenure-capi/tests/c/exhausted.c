/* Calls that fail while malloc has nothing left: errno and a sentence, and no abort. */
#include "check.h"

#include <pthread.h>
#include <sys/resource.h>

#define LEN (8 * PAGE)

/* Takes all that malloc has, down to the smallest block. */
static void exhaust(void)
{
    struct rlimit limit = {0, 0};
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = PAGE;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    for (size_t size = MIB; size >= 16; size /= 2) {
        void *block;
        while ((block = malloc(size)) != NULL)
            *(void *volatile *)block = block;
    }
}

static int exhausts_and_fails(void *arg, size_t offset, void *bytes, size_t len)
{
    (void)arg, (void)offset, (void)bytes, (void)len;
    exhaust();
    return 5;
}

/* Its first failure, so whatever the failure of a thread needs is not there before. */
static void *fails_for_the_first_time(void *arg)
{
    FAILS(tenure_volatile_pin(arg, NULL), EIO, "tenure_volatile_pin: ");
    CHECK(malloc(16) == NULL);
    FAILS(tenure_mvolatile((void *)PAGE, 0), EINVAL, "tenure_mvolatile: ");
    return NULL;
}

int main(void)
{
    struct tenure_volatile_opts opts = TENURE_VOLATILE_OPTS_INIT;
    opts.refill = exhausts_and_fails;
    struct tenure_volatile *refilled = tenure_volatile_new_with(LEN, &opts);
    CHECK(refilled != NULL);
    CHECK(tenure_volatile_pin(refilled, NULL) == 0);
    memset(tenure_volatile_address(refilled), 7, LEN);
    CHECK(tenure_volatile_unpin(refilled) == 0);
    CHECK(tenure_volatile_purge_now(refilled, NULL) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fails_for_the_first_time, refilled) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}
