/* Locks that prefault in the background, and locks within a budget. */

#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tenure.h"

#define MIB ((size_t)1 << 20)

static size_t locked(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    size_t kb = 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmLck: %zu kB", &kb) == 1)
            break;
    fclose(f);
    return kb << 10;
}

static size_t resident(char *p, size_t len)
{
    unsigned char there[1024];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), count = 0;
    CHECK(len / page <= sizeof there);
    CHECK(mincore(p, len, there) == 0);
    for (size_t i = 0; i < len / page; i++)
        count += there[i] & 1;
    return count * page;
}

static void gradually(void)
{
    size_t len = 2 * MIB;
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    struct tenure_gradual *g = tenure_lock_gradually(p, len);
    CHECK(g != NULL);
    CHECK(locked() == len);
    struct tenure_populate_result result = TENURE_POPULATE_RESULT_INIT;
    while (tenure_gradual_wait(g, 1, NULL) == 1)
        ;
    CHECK(tenure_gradual_wait(g, -1, &result) == 0);
    CHECK(result.populated == len && result.first_missing == NULL);
    CHECK(resident(p, len) == len);
    struct tenure_populate_progress progress;
    CHECK(tenure_gradual_progress(g, &progress, sizeof progress) == 0);
    CHECK(progress.populated == len);
    tenure_gradual_end(g);
    CHECK(locked() == 0);

    /* Every wait reports the pages that cannot be prefaulted, and the lock stays. */
    CHECK(mprotect(p + MIB, 4096, PROT_NONE) == 0);
    CHECK(madvise(p, MIB, MADV_DONTNEED) == 0);
    g = tenure_lock_gradually(p, len);
    CHECK(g != NULL);
    for (int i = 0; i < 2; i++) {
        FAILS(tenure_gradual_wait(g, -1, &result), EACCES, "protect");
        CHECK(result.first_missing == p + MIB);
    }
    CHECK(locked() == len);
    tenure_gradual_end(g);
    CHECK(locked() == 0);

    /* As the kernel's own calls, it takes the pages in which the bytes lie. */
    g = tenure_lock_gradually(p + 1, len - 2);
    CHECK(g != NULL && locked() == len);
    tenure_gradual_end(g);
    FAILS_NULL(tenure_lock_gradually(p, 0), EINVAL, "empty");
    struct tenure_within *odd = tenure_lock_within(p + 1, len - 2, MIB);
    CHECK(odd != NULL);
    tenure_within_end(odd);
    FAILS_NULL(tenure_lock_within(p, len, 0), EINVAL, "budget of 0");
    FAILS(tenure_gradual_wait(NULL, 0, NULL), EINVAL, "NULL");
    FAILS(tenure_gradual_progress(NULL, &progress, sizeof progress), EINVAL, "NULL");
    tenure_gradual_end(NULL);
    CHECK(munmap(p, len) == 0);
}

static void within(void)
{
    size_t len = 4 * MIB, budget = MIB;
    int fd = memfd_create("within", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED);
    struct tenure_within *w = tenure_lock_within(p, len, budget);
    CHECK(w != NULL);
    struct tenure_within_status now;
    for (int part = 0; part < 4; part++) {
        /* Windows at the ends of a part may be cut, or belong to the neighbouring part. */
        size_t wanted = (size_t)(part + 1) * budget / 4 * 3;
        memset(p + part * MIB, 40 + part, MIB);
        for (int i = 0; i < 1000; i++) {
            usleep(5000);
            CHECK(tenure_within_status(w, &now, sizeof now) == 0);
            CHECK(now.locked_bytes <= budget);
            if (now.moved_in_bytes >= wanted)
                break;
        }
        CHECK(now.moved_in_bytes >= wanted);
    }
    CHECK(now.moved_out_bytes >= MIB && now.refused == 0 && now.looks > 0);
    for (size_t i = 0; i < len; i += 512)
        CHECK(p[i] == (char)(40 + i / MIB));
    tenure_within_end(w);
    CHECK(locked() == 0);

    FAILS_NULL(tenure_lock_within(p, len, 4096), EINVAL, "budget");
    FAILS(tenure_within_status(NULL, &now, sizeof now), EINVAL, "NULL");
    tenure_within_end(NULL);
    CHECK(munmap(p, len) == 0);
    close(fd);
}

int main(void)
{
    gradually();
    within();
    return 0;
}
