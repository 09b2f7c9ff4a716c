/* Populating and discarding, with a check of the effect of each call. */
#include "check.h"

#include <pthread.h>

static void simple(void)
{
    unsigned char *p = map(64 * PAGE);
    struct tenure_populate_result result = TENURE_POPULATE_RESULT_INIT;
    CHECK(present(p, 64 * PAGE) == 0);
    CHECK(tenure_populate(p, 64 * PAGE, TENURE_POPULATE_WRITE, NULL, NULL) == 0);
    CHECK(present(p, 64 * PAGE) == 64);
    memset(p, 7, 64 * PAGE);
    CHECK(tenure_populate(p, 64 * PAGE, TENURE_POPULATE_WRITE, NULL, &result) == 0);
    CHECK(result.bytes == 64 * PAGE && result.populated == 64 * PAGE);
    CHECK(result.first_missing == NULL && result.threads == 1 && result.elapsed_ns > 0);
    for (size_t page = 0; page < 64; page++)
        CHECK(page_is(p + page * PAGE, 7));
    CHECK(tenure_discard(p + 16 * PAGE, 16 * PAGE) == 0);
    CHECK(present(p, 64 * PAGE) == 48);
    CHECK(page_is(p + 15 * PAGE, 7) && page_is(p + 16 * PAGE, 0) && page_is(p + 32 * PAGE, 7));
    CHECK(munmap(p, 64 * PAGE) == 0);
}

static void failures(void)
{
    unsigned char *p = map(64 * PAGE);
    struct tenure_populate_result result = TENURE_POPULATE_RESULT_INIT;
    CHECK(mprotect(p + 40 * PAGE, PAGE, PROT_READ) == 0);
    FAILS(tenure_populate(p, 64 * PAGE, TENURE_POPULATE_WRITE, NULL, &result), EACCES, "PROT_WRITE");
    CHECK(result.first_missing == p + 40 * PAGE && result.populated == 40 * PAGE);
    CHECK(present(p, 64 * PAGE) >= 40);
    CHECK(tenure_populate(p, 64 * PAGE, TENURE_POPULATE_READ, NULL, &result) == 0);
    CHECK(result.first_missing == NULL);
    FAILS(tenure_populate(p, 64 * PAGE, 3, NULL, NULL), EINVAL, "TENURE_POPULATE_READ");
    FAILS(tenure_populate(p + 1, PAGE, TENURE_POPULATE_READ, NULL, NULL), EINVAL, "page size");
    FAILS(tenure_populate(NULL, PAGE, TENURE_POPULATE_READ, NULL, NULL), EINVAL, "address");
    FAILS(tenure_discard(p, 1), EINVAL, "page size");

    struct tenure_populate_opts opts = TENURE_POPULATE_OPTS_INIT;
    opts.fd = 9999;
    FAILS(tenure_populate(p, PAGE, TENURE_POPULATE_READ, &opts, NULL), EBADF, "fcntl");
    opts.fd = -1;
    opts.flags = 1u << 31;
    FAILS(tenure_populate(p, PAGE, TENURE_POPULATE_READ, &opts, NULL), EINVAL, "flags");
    opts.flags = TENURE_POPULATE_ALLOCATE | TENURE_POPULATE_NO_ALLOCATE;
    FAILS(tenure_populate(p, PAGE, TENURE_POPULATE_READ, &opts, NULL), EINVAL, "ALLOCATE");
    opts.flags = 0;
    opts.size = 4;
    FAILS(tenure_populate(p, PAGE, TENURE_POPULATE_READ, &opts, NULL), EINVAL, "size");
    result.size = 4;
    FAILS(tenure_populate(p, PAGE, TENURE_POPULATE_READ, NULL, &result), EINVAL, "size");

    /* A newer program's structures: fields that this library does not know must be zero, and the
     * library writes zeros to them. */
    struct { struct tenure_populate_opts known; uint64_t more; } newer = {
        .known = TENURE_POPULATE_OPTS_INIT, .more = 1 };
    newer.known.size = sizeof newer;
    FAILS(tenure_populate(p, PAGE, TENURE_POPULATE_READ, &newer.known, NULL), E2BIG, "newer");
    newer.more = 0;
    struct { struct tenure_populate_result known; uint64_t more; } told = {
        .known = TENURE_POPULATE_RESULT_INIT, .more = 5 };
    told.known.size = sizeof told;
    CHECK(tenure_populate(p, PAGE, TENURE_POPULATE_READ, &newer.known, &told.known) == 0);
    CHECK(told.known.size == sizeof told && told.known.populated == PAGE && told.more == 0);
    /* Structures that were not initialised: the library must not trust a size in them. */
    memset(&result, 0x7f, sizeof result);
    FAILS(tenure_populate(p, PAGE, TENURE_POPULATE_READ, NULL, &result), E2BIG, "sizeof");
    result = (struct tenure_populate_result)TENURE_POPULATE_RESULT_INIT;
    newer.known.size = SIZE_MAX / 2;
    FAILS(tenure_populate(p, PAGE, TENURE_POPULATE_READ, &newer.known, NULL), E2BIG, "sizeof");
    newer.known.size = sizeof newer;

    /* Populate must not take volatile memory back behind tenure's back. */
    fill(p, 0, 16);
    CHECK(tenure_mvolatile(p, 16 * PAGE) == 0);
    FAILS(tenure_populate(p, PAGE, TENURE_POPULATE_WRITE, NULL, NULL), EINVAL, "volatile");
    FAILS(tenure_discard(p, PAGE), EINVAL, "volatile");
    CHECK(tenure_mnovolatile(p, 16 * PAGE) == 0);
    CHECK(tenure_forget(p, 16 * PAGE) == 0);
    CHECK(munmap(p, 64 * PAGE) == 0);
}

/* The result is written also if the populate did not begin. */
static void failures_before_the_beginning(void)
{
    unsigned char *p = map(PAGE);
    struct tenure_populate_opts wrong[5] = { TENURE_POPULATE_OPTS_INIT, TENURE_POPULATE_OPTS_INIT,
        TENURE_POPULATE_OPTS_INIT, TENURE_POPULATE_OPTS_INIT, TENURE_POPULATE_OPTS_INIT };
    wrong[0].fd = 9999;
    wrong[1].flags = 1u << 31;
    wrong[2].size = 4;
    wrong[3].size = SIZE_MAX / 2;
    for (int i = 0; i < 5; i++) {
        struct tenure_populate_result result = { sizeof result, 77, 77, 77, 77, NULL };
        int how = i == 4 ? 3 : TENURE_POPULATE_READ;
        CHECK(tenure_populate(p, PAGE, how, &wrong[i], &result) == -1);
        CHECK(result.size == sizeof result && result.bytes == 0 && result.populated == 0);
        CHECK(result.elapsed_ns == 0 && result.threads == 0 && result.first_missing == p);
    }
    CHECK(munmap(p, PAGE) == 0);
}

/* A discard of several mappings discards all or nothing. */
static void discards_all_or_nothing(void)
{
    unsigned char *p = map(16 * PAGE);
    int fd = memfd_create("sealed", MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)(8 * PAGE)) == 0);
    CHECK(mmap(p + 8 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0)
          == p + 8 * PAGE);
    memset(p, 7, 16 * PAGE);
    CHECK(fcntl(fd, F_ADD_SEALS, 0x10 /* F_SEAL_FUTURE_WRITE */) == 0);
    FAILS(tenure_discard(p, 16 * PAGE), EPERM, "sealed");
    for (size_t page = 0; page < 16; page++)
        CHECK(page_is(p + page * PAGE, 7));
    CHECK(munmap(p, 16 * PAGE) == 0 && close(fd) == 0);
}

static void files(void)
{
    char name[] = "/tmp/tenure-populate-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0 && ftruncate(fd, (off_t)(64 * PAGE)) == 0);
    unsigned char *p = (unsigned char *)mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED);
    struct tenure_populate_opts opts = TENURE_POPULATE_OPTS_INIT;
    opts.fd = fd;
    CHECK(tenure_populate(p, 64 * PAGE, TENURE_POPULATE_WRITE, &opts, NULL) == 0);
    CHECK(present(p, 64 * PAGE) == 64);
    /* The file is truncated while it is mapped: an error, where a touch would kill the process. */
    struct tenure_populate_result result = TENURE_POPULATE_RESULT_INIT;
    CHECK(ftruncate(fd, (off_t)(10 * PAGE)) == 0);
    FAILS(tenure_populate(p, 64 * PAGE, TENURE_POPULATE_READ, &opts, &result), EFAULT, "past the end");
    CHECK(result.first_missing == p + 10 * PAGE);
    CHECK(munmap(p, 64 * PAGE) == 0 && close(fd) == 0);
}

struct seen {
    unsigned calls;
    uint64_t last;
    pthread_t thread;
    int answer;
};

static int watch(const struct tenure_populate_progress *progress, void *arg)
{
    struct seen *seen = (struct seen *)arg;
    CHECK(progress->populated >= seen->last && progress->populated <= progress->bytes);
    CHECK(pthread_equal(seen->thread, pthread_self()));
    seen->last = progress->populated;
    seen->calls++;
    return seen->answer;
}

static void watched(void)
{
    size_t len = 256 * MIB;
    unsigned char *p = map(len);
    struct seen seen = { 0, 0, pthread_self(), 0 };
    struct tenure_populate_opts opts = TENURE_POPULATE_OPTS_INIT;
    opts.threads = 2;
    opts.flags = TENURE_POPULATE_NO_HUGE_PAGES;
    opts.every_ms = 1;
    opts.progress = watch;
    opts.arg = &seen;
    struct tenure_populate_result result = TENURE_POPULATE_RESULT_INIT;
    /* On a busy machine this thread may not run for the whole of a populate. */
    for (int tries = 0; seen.calls < 2; tries++) {
        CHECK(tries < 100);
        CHECK(tenure_discard(p, len) == 0 && present(p, len) == 0);
        seen.last = seen.calls = 0;
        CHECK(tenure_populate(p, len, TENURE_POPULATE_WRITE, &opts, &result) == 0);
        CHECK(seen.last == len && result.threads == 2);
    }

    /* The callback ends it. */
    seen.answer = 1;
    int done = 0;
    for (int tries = 0; done == 0; tries++) {
        CHECK(tries < 100);
        CHECK(tenure_discard(p, len) == 0 && present(p, len) == 0);
        seen.last = 0;
        done = tenure_populate(p, len, TENURE_POPULATE_WRITE, &opts, &result);
    }
    CHECK(done == -1 && errno == ECANCELED && strstr(tenure_last_error(), "cancelled"));
    CHECK(result.populated < len && result.first_missing != NULL);
    CHECK(present(p, len) * PAGE == result.populated);
    CHECK((unsigned char *)result.first_missing == p + result.populated);

    /* A deadline ends it, too. */
    CHECK(tenure_discard(p, len) == 0);
    opts.progress = NULL;
    opts.deadline_ms = 1;
    opts.threads = 1;
    FAILS(tenure_populate(p, len, TENURE_POPULATE_WRITE, &opts, &result), ETIMEDOUT, "deadline");
    CHECK(present(p, len) * PAGE == result.populated && result.populated < len);
    CHECK(munmap(p, len) == 0);
}

static void background(void)
{
    size_t len = 128 * MIB;
    unsigned char *p = map(len);
    struct tenure_populate_opts opts = TENURE_POPULATE_OPTS_INIT;
    opts.flags = TENURE_POPULATE_NO_HUGE_PAGES;
    struct tenure_populate_result result = TENURE_POPULATE_RESULT_INIT;
    struct tenure_populate_progress progress;
    struct tenure_populating *b = tenure_populate_start(p, len, TENURE_POPULATE_WRITE, &opts);
    CHECK(b != NULL);
    CHECK(tenure_populate_progress(b, &progress, sizeof progress) == 0 && progress.bytes == len);
    CHECK(tenure_populate_wait(b, -1) == 0);
    CHECK(tenure_populate_end(b, &result) == 0 && result.populated == len);
    CHECK(present(p, len) == len / PAGE);

    int done = 0;
    for (int tries = 0; done == 0; tries++) {
        CHECK(tries < 100);
        CHECK(tenure_discard(p, len) == 0);
        b = tenure_populate_start(p, len, TENURE_POPULATE_WRITE, &opts);
        CHECK(b != NULL && tenure_populate_cancel(b) == 0);
        CHECK(tenure_populate_wait(b, 100000) == 0);
        done = tenure_populate_end(b, &result);
    }
    CHECK(done == -1 && errno == ECANCELED && strstr(tenure_last_error(), "cancelled"));
    CHECK(present(p, len) * PAGE == result.populated && result.populated < len);

    /* A result that is no structure: the call waits all the same, and frees the handle. */
    size_t *longer = (void *)map(2 * PAGE);
    longer[0] = 2 * PAGE;
    CHECK(tenure_discard(p, len) == 0);
    b = tenure_populate_start(p, len, TENURE_POPULATE_WRITE, &opts);
    CHECK(b != NULL);
    FAILS(tenure_populate_end(b, (void *)longer), E2BIG, "size");
    CHECK(present(p, len) == len / PAGE);

    CHECK(tenure_discard(p, len) == 0);
    b = tenure_populate_start(p, MIB, TENURE_POPULATE_WRITE, NULL);
    CHECK(b != NULL && tenure_populate_detach(b) == 0);
    while (present(p, MIB) < MIB / PAGE)
        usleep(1000);

    /* A child has none of the threads. */
    CHECK(tenure_discard(p, len) == 0);
    b = tenure_populate_start(p, len, TENURE_POPULATE_WRITE, &opts);
    CHECK(b != NULL);
    pid_t child = fork();
    if (child == 0) {
        int over = tenure_populate_wait(b, -1) == 0;
        int answer = tenure_populate_end(b, NULL);
        _exit(over && (answer == 0 || errno == ECANCELED) ? 0 : 1);
    }
    CHECK(ending(child) == 0);
    CHECK(tenure_populate_end(b, NULL) == 0);

    opts.progress = watch;
    FAILS_NULL(tenure_populate_start(p, len, TENURE_POPULATE_WRITE, &opts), EINVAL, "progress");
    FAILS(tenure_populate_end(NULL, NULL), EINVAL, "NULL");
    FAILS(tenure_populate_cancel(NULL), EINVAL, "NULL");
    FAILS(tenure_populate_wait(NULL, 0), EINVAL, "NULL");
    FAILS(tenure_populate_detach(NULL), EINVAL, "NULL");
    FAILS(tenure_populate_progress(NULL, &progress, sizeof progress), EINVAL, "NULL");
    CHECK(munmap(p, len) == 0);
}

int main(void)
{
    simple();
    failures();
    failures_before_the_beginning();
    discards_all_or_nothing();
    files();
    watched();
    background();
    struct tenure_stats stats;
    CHECK(tenure_stats(&stats, sizeof stats) == 0);
    CHECK(stats.total_populated_bytes > 512 * MIB && stats.total_populate_failures > 5);
    return 0;
}
