/* Functions that the test programs share: checks that print the failure, pages with known
 * contents, and a function that finds resident pages. */

#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tenure.h"

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)
#define SKIPPED 77

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            fprintf(stderr, "%s:%d: not true: %s (errno %d, %s)\n", __FILE__, __LINE__, #what,   \
                    errno, tenure_last_error());                                                 \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

/* `call` fails with this errno, and the sentence contains this text. */
#define FAILS(call, number, text)                                                                \
    do {                                                                                         \
        errno = 0;                                                                               \
        CHECK((call) == -1);                                                                     \
        CHECK(errno == (number));                                                                \
        CHECK(strstr(tenure_last_error(), (text)) != NULL);                                      \
    } while (0)

#define FAILS_NULL(call, number, text)                                                           \
    do {                                                                                         \
        errno = 0;                                                                               \
        CHECK((call) == NULL);                                                                   \
        CHECK(errno == (number));                                                                \
        CHECK(strstr(tenure_last_error(), (text)) != NULL);                                      \
    } while (0)

#define SKIP(reason)                                                                             \
    do {                                                                                         \
        fprintf(stderr, "%s\n", reason);                                                         \
        exit(SKIPPED);                                                                           \
    } while (0)

#define NEED_SIGBUS()                                                                            \
    do {                                                                                         \
        if (tenure_detection() != TENURE_DETECTION_USERFAULTFD)                                  \
            SKIP("userfaultfd is refused, so purged pages raise no SIGBUS");                     \
    } while (0)

/* Ends tenure's threads. A call does not end a thread that the kernel keeps for a second, as it may
 * on a busy machine; a later call does. */
static inline int ends(void)
{
    for (int call = 0; call < 60; call++) {
        struct timespec began, ended;
        clock_gettime(CLOCK_MONOTONIC, &began);
        if (tenure_end_background_threads() == 0)
            return 1;
        clock_gettime(CLOCK_MONOTONIC, &ended);
        long took_ms = (ended.tv_sec - began.tv_sec) * 1000 + (ended.tv_nsec - began.tv_nsec) / 1000000;
        if (took_ms < 950)
            return 0;
    }
    return 0;
}

static inline unsigned char *map(size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    /* Only some tests are about huge pages, so the kernel must not make them by itself. */
    madvise(at, len, MADV_NOHUGEPAGE);
    return (unsigned char *)at;
}

/* Not 0, so that a zero page is a lost one. Each of 251 pages has another letter. */
static inline unsigned char letter(size_t page)
{
    return (unsigned char)(page % 251 + 1);
}

static inline void fill(unsigned char *at, size_t from, size_t to)
{
    for (size_t page = from; page < to; page++)
        memset(at + page * PAGE, letter(page), PAGE);
}

static inline int page_is(const unsigned char *page, unsigned char byte)
{
    for (size_t i = 0; i < PAGE; i++)
        if (page[i] != byte)
            return 0;
    return 1;
}

/* How many pages of [at, at + len) are resident, by their page-table entries. */
static inline size_t present(const void *at, size_t len)
{
    int fd = open("/proc/thread-self/pagemap", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    size_t count = 0;
    for (size_t page = (uintptr_t)at / PAGE; page < ((uintptr_t)at + len) / PAGE; page++) {
        uint64_t entry;
        CHECK(pread(fd, &entry, sizeof entry, (off_t)(page * sizeof entry)) == sizeof entry);
        /* Present (bit 63), or in swap (bit 62). A page that the kernel just moves, to compact
         * memory for any process, looks as if it were in swap. */
        count += entry >> 62 != 0;
    }
    close(fd);
    return count;
}

/* How a child of fork ended: its exit status, or 128 and the signal that killed it. */
static inline int ending(pid_t child)
{
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

#endif
