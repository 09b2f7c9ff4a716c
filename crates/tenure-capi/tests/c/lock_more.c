/* Locks that prefault in the background, and locks within a budget. */

#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tenure.h"

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
        for (int i = 0; i < 12000; i++) {
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

struct handles {
    struct tenure_gradual *g;
    struct tenure_within *w;
};

/* Looks at both, as a thread that shows the progress does. */
static void look(struct handles h, struct tenure_populate_progress *progress,
                 struct tenure_within_status *status)
{
    CHECK(tenure_gradual_progress(h.g, progress, sizeof *progress) == 0);
    CHECK(tenure_within_status(h.w, status, sizeof *status) == 0);
}

static void *look_for_ever(void *handles)
{
    struct tenure_populate_progress progress;
    struct tenure_within_status status;
    for (;;) {
        look(*(struct handles *)handles, &progress, &status);
        tenure_gradual_wait(((struct handles *)handles)->g, 0, NULL);
        pthread_testcancel();
    }
    return NULL;
}

/* Has none of the locks, and does not wait for a thread of its parent's. */
static void child(struct handles h, char *p)
{
    struct tenure_populate_progress progress;
    struct tenure_within_status status;
    look(h, &progress, &status);
    CHECK(progress.bytes == 0 && progress.populated == 0 && progress.elapsed_ns == 0);
    CHECK(status.locked_bytes == 0 && status.moved_in_bytes == 0 && status.looks == 0);
    struct tenure_populate_result result = TENURE_POPULATE_RESULT_INIT;
    FAILS(tenure_gradual_wait(h.g, -1, &result), ECANCELED, "fork");
    CHECK(result.populated == 0 && result.first_missing == p);
    tenure_gradual_end(h.g);
    tenure_within_end(h.w);
    CHECK(locked() == 0);
    _exit(0);
}

static void children(void)
{
    char *p = (char *)map(2 * MIB);
    struct handles h = {tenure_lock_gradually(p, MIB), tenure_lock_within(p + MIB, MIB, MIB / 2)};
    CHECK(h.g != NULL && h.w != NULL);
    CHECK(tenure_gradual_wait(h.g, -1, NULL) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, look_for_ever, &h) == 0);
    for (int i = 0; i < 60; i++) {
        pid_t pid = fork();
        if (pid == 0)
            child(h, p);
        CHECK(ending(pid) == 0);
    }
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(locked() >= MIB);
    tenure_gradual_end(h.g);
    tenure_within_end(h.w);
    CHECK(locked() == 0);
    CHECK(munmap(p, 2 * MIB) == 0);
}

int main(void)
{
    gradually();
    within();
    children();
    return 0;
}
