/* A state that a program sets by raw system calls ends with the mapping. */
#include "check.h"

enum { PAGE = 4096 };
static size_t len;

static long raw(long number, long a, long b, long c, long d) {
#if defined(__x86_64__)
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    if (result < 0) {
        errno = -result;
        return -1;
    }
    return result;
#else
    return syscall(number, a, b, c, d);
#endif
}

static void next_are_new(const char *what) {
    for (int n = 0; n < 3; n++) {
        char *at = map(len);
        CHECK(is_zero(at, len));
        memset(at, 1, len);
        CHECK(status_kib("VmLck:") == 0);
        CHECK(madvise(at, len, MADV_DONTNEED) == 0 && is_zero(at, len));
        memset(at, 1, len);
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child)
            _exit(touch(at) || touch(at + len - 1) || at[0] != 1 || at[len - 1] != 1);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(munmap(at, len) == 0);
    }
    printf("%zu: as new after %s\n", len, what);
}

#define AFTER(what, call)                                                                          \
    do {                                                                                           \
        char *at = map(len);                                                                       \
        memset(at, 2, len);                                                                        \
        CHECK((call) == 0);                                                                        \
        CHECK(munmap(at, len) == 0 && touch(at) == SIGSEGV);                                       \
        next_are_new(what);                                                                        \
    } while (0)

int main(void) {
    static const size_t sizes[] = {64 * KIB, 1 * MIB, 4 * MIB};
    for (int n = 0; n < 3; n++) {
        len = sizes[n];
        AFTER("nothing", 0);
        AFTER("mlock2", raw(SYS_mlock2, (long)at, len, 1, 0));
        AFTER("mlock2 of a page", raw(SYS_mlock2, (long)at + PAGE, PAGE, 0, 0));
        AFTER("mprotect", raw(SYS_mprotect, (long)at, len, PROT_READ, 0));
        AFTER("mprotect of a page", raw(SYS_mprotect, (long)at + 2 * PAGE, PAGE, PROT_NONE, 0));
        /* Through the C library, by number. */
        AFTER("MADV_DONTFORK", syscall(SYS_madvise, at, len, MADV_DONTFORK));
        AFTER("MADV_WIPEONFORK", syscall(SYS_madvise, at, PAGE, MADV_WIPEONFORK));
        AFTER("mremap", syscall(SYS_mremap, at, len, len / 2, 0) != (long)at);
        AFTER("a mapping over it", syscall(SYS_mmap, at, PAGE, PROT_NONE, ANON | MAP_FIXED, -1, 0L) != (long)at);
        AFTER("a refused mapping", syscall(SYS_mmap, at, PAGE, RW, MAP_PRIVATE | MAP_FIXED, 12345, 0L) != -1 || errno != EBADF);
        AFTER("munmap by number", syscall(SYS_munmap, at, len));
        AFTER("munmap of a part", raw(SYS_munmap, (long)at + 2 * PAGE, PAGE, 0, 0));
        char *at = map(len);
        memset(at, 3, len);
        if (raw(462, (long)at + PAGE, PAGE, 0, 0) == 0) {
            errno = 0;
            CHECK(munmap(at, len) == -1 && errno == EPERM);
            for (size_t byte = 0; byte < len; byte++)
                CHECK(at[byte] == 3);
            memset(at, 4, len);
        }
        next_are_new("mseal");
    }
    return 0;
}
