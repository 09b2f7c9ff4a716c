/* A program has functions of its own for what the C library also defines. They may need a lock under
 * which it frees, so tenure calls none of them there. */
#include "check.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/ioctl.h>

static __thread int is_freeing;

/* Reads six arguments, also those that the caller does not pass. */
long syscall(long number, ...) {
    CHECK(!is_freeing);
    va_list more;
    va_start(more, number);
    long a[6];
    for (int n = 0; n < 6; n++)
        a[n] = va_arg(more, long);
    va_end(more);
    static long (*next)(long, ...);
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int ioctl(int fd, unsigned long what, ...) {
    va_list more;
    va_start(more, what);
    long argument = va_arg(more, long);
    va_end(more);
    CHECK(!is_freeing);
    return syscall(SYS_ioctl, fd, what, argument);
}

int fcntl(int fd, int what, ...) {
    va_list more;
    va_start(more, what);
    long argument = va_arg(more, long);
    va_end(more);
    CHECK(!is_freeing);
    return syscall(SYS_fcntl, fd, what, argument);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    CHECK(!is_freeing);
    return syscall(SYS_clock_gettime, clock, time);
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *before) {
    CHECK(!is_freeing);
    return syscall(SYS_rt_sigprocmask, how, set, before, 8) ? errno : 0;
}

int main(int count, char **arguments) {
    CHECK(count == 2);
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
        /* tenure looks at new libraries from time to time only. */
        sleep_ms(20);
    }
    puts("freed");
    return 0;
}
