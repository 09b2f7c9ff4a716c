/* Functions that the programs share. A failed check prints the failure and its place, and exits
 * with 1. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);      \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static inline void *map(size_t len) {
    void *at = mmap(NULL, len, RW, ANON, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* These functions read hundreds of mebibytes: they must be fast in programs that are not
 * optimised, too. */
#if defined __GNUC__ && !defined __clang__
#define OPTIMIZED __attribute__((optimize("O3")))
#else
#define OPTIMIZED
#endif

OPTIMIZED static inline int is_zero(const void *at, size_t len) {
    const uint64_t *word = at;
    for (size_t n = 0; n < len / 8; n++)
        if (word[n])
            return 0;
    return 1;
}

/* Fills memory with a pattern that differs by address and owner, and checks it. */
OPTIMIZED static inline void fill(void *at, size_t len, uint64_t owner) {
    uint64_t *word = at;
    for (size_t n = 0; n < len / 8; n++)
        word[n] = owner * 0x9e3779b97f4a7c15u + n;
}

OPTIMIZED static inline int is_filled(const void *at, size_t len, uint64_t owner) {
    const uint64_t *word = at;
    for (size_t n = 0; n < len / 8; n++)
        if (word[n] != owner * 0x9e3779b97f4a7c15u + n)
            return 0;
    return 1;
}

static inline long ms_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* How many rounds a long sweep has: SWEEPS tells whether all sweeps are whole. */
static inline int sweep(int brief, int whole) {
    const char *sweeps = getenv("SWEEPS");
    return sweeps && !strcmp(sweeps, "whole") ? whole : brief;
}

/* A line of /proc/self/status, in KiB. */
static inline long status_kib(const char *name) {
    char line[256];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)))
            value = atol(line + strlen(name) + 1);
    fclose(file);
    return value;
}

static sigjmp_buf caught_at;
static void on_fault(int signal) { siglongjmp(caught_at, signal); }

/* The signal that a read raises, or a write of the value that is there; 0: none. */
static inline int raised_by(volatile char *at, int writes) {
    struct sigaction action = {.sa_handler = on_fault}, before[2];
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]);
    int raised = sigsetjmp(caught_at, 1);
    if (!raised) {
        char byte = *at;
        if (writes)
            *at = byte;
    }
    sigaction(SIGSEGV, &before[0], NULL);
    sigaction(SIGBUS, &before[1], NULL);
    return raised;
}

static inline int touch(const volatile void *at) { return raised_by((volatile char *)at, 0); }
static inline int store(volatile void *at) { return raised_by(at, 1); }

static inline void sleep_ms(long ms) {
    struct timespec wait = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&wait, &wait)) {
    }
}

/* Returns once the main thread has ended. */
static inline void wait_for_main(void) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", getpid(), getpid());
    while (state != 'Z') {
        FILE *file = fopen(path, "r");
        CHECK(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
        CHECK(fclose(file) == 0);
        sleep_ms(1);
    }
}
