/* The state that a program gives a mapping ends with it: the next mapping of that size has none
 * of it. */
#include "check.h"

enum { LEN = 4 << 20 };

/* Maps until each run was used again, twice. */
static void each_new_one_is_plain(const char *what) {
    long locked = status_kib("VmLck:");
    CHECK(locked == 0);
    for (int n = 0; n < 3; n++) {
        char *at = map(LEN);
        CHECK(is_zero(at, LEN));
        memset(at, 1, LEN); /* writable throughout */
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            /* The page is present, and was not wiped. */
            for (size_t n = 0; n < LEN; n += 4096)
                if (touch(at + n) || at[n] != 1)
                    _exit(1);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0) {
            fprintf(stderr, "after %s: a child does not see new memory\n", what);
            _exit(1);
        }
        CHECK(munmap(at, LEN) == 0);
    }
    printf("plain after %s\n", what);
}

static char *one(void) {
    char *at = map(LEN);
    memset(at, 2, LEN);
    return at;
}

#define AFTER(what, call)                                                                          \
    do {                                                                                           \
        char *at = one();                                                                          \
        CHECK((call) == 0);                                                                        \
        CHECK(munmap(at, LEN) == 0);                                                               \
        char *block = at = malloc(LEN);                                                            \
        CHECK(block);                                                                              \
        memset(block, 2, LEN);                                                                     \
        at = (char *)(((uintptr_t)block + 4095) & ~(uintptr_t)4095);                               \
        (void)at;                                                                                  \
        free(block);                                                                               \
        each_new_one_is_plain(what);                                                               \
    } while (0)

int main(void) {
    AFTER("nothing", 0);
    AFTER("mprotect of all", mprotect(at, LEN, PROT_READ));
    AFTER("mprotect of a page", mprotect(at + 8192, 4096, PROT_NONE));
    AFTER("mlock", mlock(at, 64 * KIB));
    AFTER("mlock2", mlock2(at + 4096, 8192, MLOCK_ONFAULT));
    AFTER("MADV_DONTFORK", madvise(at, LEN, MADV_DONTFORK));
    AFTER("MADV_WIPEONFORK", madvise(at + 4096, 4096, MADV_WIPEONFORK));
    AFTER("MADV_DONTDUMP", madvise(at, LEN, MADV_DONTDUMP));
    AFTER("MADV_NOHUGEPAGE", madvise(at, LEN, MADV_NOHUGEPAGE));
    AFTER("MADV_SEQUENTIAL", posix_madvise(at, LEN, POSIX_MADV_SEQUENTIAL));
    AFTER("MADV_DONTNEED", madvise(at, LEN, MADV_DONTNEED) || !is_zero(at, LEN));
    AFTER("a name", (prctl(0x53564d41, 0, (unsigned long)at, (unsigned long)LEN, "named"), 0));
    AFTER("a file over it", mmap(at, 8192, PROT_READ, MAP_PRIVATE | MAP_FIXED, open("/proc/self/exe", O_RDONLY), 0) != at);
    AFTER("a hole in it", munmap(at + 4096, 4096));
    return 0;
}
