/* A program has functions of its own for what the C library also defines. They may need a lock under
 * which it frees, so tenure calls none of them there. */
#include "check.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/ioctl.h>

static __thread int is_freeing;

/* Reads the arguments behind the last one that has a name, also those that the caller does not pass. */
#define READ_MORE(last, into)                                                                      \
    do {                                                                                           \
        va_list more;                                                                              \
        va_start(more, last);                                                                      \
        for (size_t n = 0; n < sizeof(into) / sizeof *(into); n++)                                 \
            (into)[n] = va_arg(more, long);                                                        \
        va_end(more);                                                                              \
    } while (0)

long syscall(long number, ...) {
    CHECK(!is_freeing);
    long a[6];
    READ_MORE(number, a);
    static long (*next)(long, ...);
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int ioctl(int fd, unsigned long what, ...) {
    long argument[1];
    READ_MORE(what, argument);
    CHECK(!is_freeing);
    return syscall(SYS_ioctl, fd, what, argument[0]);
}

int fcntl(int fd, int what, ...) {
    long argument[1];
    READ_MORE(what, argument);
    CHECK(!is_freeing);
    return syscall(SYS_fcntl, fd, what, argument[0]);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    CHECK(!is_freeing);
    return syscall(SYS_clock_gettime, clock, time);
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *before) {
    CHECK(!is_freeing);
    return syscall(SYS_rt_sigprocmask, how, set, before, 8) ? errno : 0;
}

int prctl(int what, ...) {
    long a[4];
    READ_MORE(what, a);
    CHECK(!is_freeing);
    return syscall(SYS_prctl, what, a[0], a[1], a[2], a[3]);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    CHECK(!is_freeing);
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!next)
        next = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    return next(thread, attributes, body, argument);
}

int mprotect(void *at, size_t len, int rights) {
    CHECK(!is_freeing);
    return syscall(SYS_mprotect, at, len, rights);
}

int msync(void *at, size_t len, int flags) {
    CHECK(!is_freeing);
    return syscall(SYS_msync, at, len, flags);
}

int mincore(void *at, size_t len, unsigned char *there) {
    CHECK(!is_freeing);
    return syscall(SYS_mincore, at, len, there);
}

int madvise(void *at, size_t len, int advice) {
    CHECK(!is_freeing);
    return syscall(SYS_madvise, at, len, advice);
}

ssize_t readlink(const char *path, char *to, size_t len) {
    CHECK(!is_freeing);
    return syscall(SYS_readlinkat, AT_FDCWD, path, to, len);
}

int sched_yield(void) {
    CHECK(!is_freeing);
    return syscall(SYS_sched_yield);
}

int sched_getscheduler(pid_t thread) {
    CHECK(!is_freeing);
    return syscall(SYS_sched_getscheduler, thread);
}

long sysconf(int what) {
    CHECK(!is_freeing);
    static long (*next)(int);
    if (!next)
        next = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return next(what);
}

static void *waits(void *end) {
    char byte;
    CHECK(read(*(int *)end, &byte, 1) == 0);
    return NULL;
}

/* Unmaps memory with a hole, of several mappings, so that tenure asks the kernel about it. */
static void unmap_pieces(void) {
    char *place = mremap(map(4 * MIB), 4 * MIB, 6 * MIB, MREMAP_MAYMOVE);
    CHECK(place != MAP_FAILED);
    fill(place, 6 * MIB, 3);
    CHECK(munmap(place + MIB, MIB) == 0);
    CHECK(mprotect(place + 4 * MIB, MIB, PROT_READ) == 0);
    is_freeing = 1;
    CHECK(munmap(place, 6 * MIB) == 0);
    is_freeing = 0;
    char *whole = map(5 * MIB);
    fill(whole, 5 * MIB, 4);
    is_freeing = 1;
    CHECK(munmap(whole, 5 * MIB) == 0);
    is_freeing = 0;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    /* Beside another thread, tenure starts one of its own early. */
    int pipes[2];
    pthread_t thread;
    CHECK(pipe(pipes) == 0 && pthread_create(&thread, NULL, waits, pipes) == 0);
    for (int n = 0; n < 10; n++) {
        is_freeing = 1;
        char *block = malloc(2 * MIB);
        is_freeing = 0;
        char *mapped = map(2 * MIB);
        CHECK(block);
        fill(block, 2 * MIB, n);
        void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(library);
        is_freeing = 1;
        block = realloc(block, 9 * MIB);
        CHECK(block);
        free(block);
        CHECK(munmap(mapped, 2 * MIB) == 0);
        CHECK(dlclose(library) == 0);
        is_freeing = 0;
        unmap_pieces();
        /* tenure looks at new libraries from time to time only. */
        sleep_ms(20);
    }
    CHECK(close(pipes[1]) == 0 && pthread_join(thread, NULL) == 0);
    puts("freed");
    return 0;
}
