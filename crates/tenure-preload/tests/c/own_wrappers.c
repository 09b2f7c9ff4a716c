/* A program defines functions by others of the C library that do the same. Its own ones are not called
 * by the others. */
#include "check.h"
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/shm.h>

#define UFFDIO_REGISTER 0xc020aa00UL

int mlockall(int flags) { return syscall(SYS_mlockall, flags); }

void *shmat(int id, const void *at, int flags) { return (void *)syscall(SYS_shmat, id, at, flags); }

int ioctl(int fd, unsigned long what, ...) {
    va_list more;
    va_start(more, what);
    void *argument = va_arg(more, void *);
    va_end(more);
    return syscall(SYS_ioctl, fd, what, argument);
}

void *mmap(void *at, size_t len, int rights, int flags, int fd, off_t from) {
    return mmap64(at, len, rights, flags, fd, from);
}

int main(void) {
    CHECK(mlockall(0) == -1 && errno == EINVAL);
    CHECK(shmat(-1, NULL, 0) == (void *)-1 && errno == EINVAL);
    CHECK(ioctl(-1, UFFDIO_REGISTER, NULL) == -1 && errno == EBADF);
    for (size_t len = 64 * KIB; len <= 16 * MIB; len *= 4) {
        char *at = mmap(NULL, len, RW, ANON, -1, 0);
        CHECK(at != MAP_FAILED && is_zero(at, len));
        memset(at, 1, len);
        CHECK(munmap(at, len) == 0);
    }
    puts("wrapped");
    return 0;
}
