/* What the programs share: the marks, checks, and which errors are allowed. */
#ifndef FAILING_H
#define FAILING_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK 0x54454e55
#define KIB ((size_t)1024)
#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)

/* Set while calls may be made to fail. */
static int is_failing;

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: not true: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* The error that is injected; 0: none. */
static inline int injected(void)
{
    const char *number = getenv("TENURE_FAILING_ERRNO");
    return number == NULL ? 0 : atoi(number);
}

/* A call that may fail only while calls are made to fail, with that error or for want of memory. */
static inline int may_fail(void)
{
    return is_failing && injected() != 0 && (errno == injected() || errno == ENOMEM);
}

static inline int all_are(const unsigned char *at, size_t len, int byte)
{
    for (size_t i = 0; i < len; i++)
        if (at[i] != byte)
            return 0;
    return 1;
}

/* The number behind a name in a file, or how many lines the file has. */
static inline size_t in_file(const char *path, const char *name)
{
    char line[512];
    size_t count = 0;
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (name == NULL)
            count++;
        else if (strncmp(line, name, strlen(name)) == 0)
            count = strtoul(line + strlen(name), NULL, 10);
    }
    if (file != NULL)
        fclose(file);
    return count;
}

static inline void print_stock(void)
{
    size_t descriptors = 0;
    for (int fd = 0; fd < 1024; fd++)
        descriptors += fcntl(fd, F_GETFD) != -1;
    printf("stock: mappings %zu descriptors %zu threads %zu locked %zu\n",
           in_file("/proc/self/maps", NULL), descriptors, in_file("/proc/self/status", "Threads:"),
           in_file("/proc/self/status", "VmLck:"));
}

/* Lives once before failures begin if `warm`, once with them, and once after them. */
static inline int live(void (*life)(void), int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--warm") == 0)
        life();
    is_failing = 1;
    prctl(MARK, 1, 0, 0, 0);
    life();
    prctl(MARK, 2, 0, 0, 0);
    is_failing = 0;
    /* The pool asks for its addresses again 10 ms after the kernel has refused them. */
    usleep(20000);
    life();
    print_stock();
    return 0;
}

#endif
