/* A program has functions of its own for what the C library also defines. They may need a lock under
 * which it frees, so tenure calls none of them there. */
#include "check.h"
#include <dlfcn.h>
#include <stdarg.h>

static __thread int is_freeing;

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
        char *block = malloc(2 * MIB), *mapped = map(2 * MIB);
        CHECK(block);
        fill(block, 2 * MIB, n);
        void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(library);
        is_freeing = 1;
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
