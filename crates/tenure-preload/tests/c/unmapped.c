/* Addresses that were unmapped have no owner. The result of a call over them, and the contents
 * for their next owner, are as without the library. The test compares the output. */
#include "check.h"

enum { PAGE = 4096 };
static size_t len;

static const char *said(long result) {
    static char text[64];
    if (result == -1)
        snprintf(text, sizeof text, "%s", strerrorname_np(errno));
    else
        snprintf(text, sizeof text, "%s", "done");
    return text;
}
#define SAY(what, call) (errno = 0, printf("%s: %s\n", what, said((long)(call))))

/* The next mappings of that size are as new: writable, not locked, inherited, not wiped, zeros. */
static void next_are_new(const char *what) {
    char *at[3];
    for (int n = 0; n < 3; n++) {
        at[n] = map(len);
        CHECK(is_zero(at[n], len));
        memset(at[n], 1, len);
    }
    CHECK(status_kib("VmLck:") == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        for (int n = 0; n < 3; n++)
            for (size_t page = 0; page < len; page += PAGE)
                if (touch(at[n] + page) || at[n][page] != 1)
                    _exit(1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status)
        fprintf(stderr, "after %s of %zu\n", what, len);
    CHECK(status == 0);
    for (int n = 0; n < 3; n++)
        CHECK(munmap(at[n], len) == 0);
}

static char *gone(void) {
    char *at = map(len);
    memset(at, 7, len);
    CHECK(munmap(at, len) == 0);
    return at;
}

static char *holed(void) {
    char *at = map(len);
    memset(at, 7, len);
    CHECK(munmap(at + len / 2, len / 4) == 0);
    return at;
}

static unsigned char pages[16384];

/* Each call over memory that is unmapped whole, over a hole, and from a mapping inside the hole. */
static void stray(const char *what, int (*call)(char *, size_t)) {
    char *at = gone();
    printf("%zu KiB, %s", len / KIB, what);
    SAY("", call(at, len));
    CHECK(touch(at) == SIGSEGV && touch(at + len - 1) == SIGSEGV);
    next_are_new(what);
    at = gone();
    SAY(" of a part", call(at + PAGE, len / 2));
    next_are_new(what);
    at = holed();
    SAY(" in the hole", call(at + len / 2, PAGE));
    CHECK(touch(at + len / 2) == SIGSEGV);
    SAY(" into the hole", call(at, len));
    printf(" mapped: %d, hole: %d\n", touch(at), touch(at + len / 2));
    CHECK(touch(at + len / 2) == SIGSEGV);
    SAY(" undone", munlock(at, len / 2));
    CHECK(munmap(at, len) == 0);
    next_are_new(what);
}

#define CALL(name, call)                                                                           \
    static int name(char *at, size_t n) {                                                          \
        (void)at, (void)n;                                                                         \
        return (call);                                                                             \
    }
CALL(protect_read, mprotect(at, n, PROT_READ))
CALL(protect_none, mprotect(at, n, PROT_NONE))
CALL(protect_all, mprotect(at, n, RW))
CALL(protect_key, pkey_mprotect(at, n, PROT_READ, -1))
CALL(lock, mlock(at, n))
CALL(lock_on_fault, mlock2(at, n, MLOCK_ONFAULT))
CALL(unlock, munlock(at, n))
CALL(dontfork, madvise(at, n, MADV_DONTFORK))
CALL(wipe, madvise(at, n, MADV_WIPEONFORK))
CALL(dontneed, madvise(at, n, MADV_DONTNEED))
CALL(lazy, madvise(at, n, MADV_FREE))
CALL(huge, madvise(at, n, MADV_HUGEPAGE))
CALL(nohuge, madvise(at, n, MADV_NOHUGEPAGE))
CALL(posix, posix_madvise(at, n, POSIX_MADV_SEQUENTIAL))
CALL(sync_it, msync(at, n, MS_ASYNC))
CALL(invalidate, msync(at, n, MS_SYNC | MS_INVALIDATE))
CALL(core, mincore(at, n, pages))
CALL(remap, mremap(at, n, n, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) == MAP_FAILED ? -1 : 0)
CALL(move, mremap(at, n, 2 * n, MREMAP_MAYMOVE) == MAP_FAILED ? -1 : 0)
CALL(strange, madvise(at, n, 12345))
CALL(name_it, prctl(0x53564d41, 0, at, n, "named"))

static void strays(void) {
    static const struct {
        const char *name;
        int (*call)(char *, size_t);
    } all[] = {
        {"mprotect read", protect_read}, {"mprotect none", protect_none},
        {"mprotect all", protect_all}, {"pkey_mprotect", protect_key}, {"mlock", lock},
        {"mlock2", lock_on_fault}, {"munlock", unlock}, {"DONTFORK", dontfork},
        {"WIPEONFORK", wipe}, {"DONTNEED", dontneed}, {"FREE", lazy}, {"HUGEPAGE", huge},
        {"NOHUGEPAGE", nohuge}, {"posix_madvise", posix}, {"msync", sync_it},
        {"msync invalidate", invalidate}, {"mincore", core}, {"mremap DONTUNMAP", remap},
        {"mremap", move}, {"a strange advice", strange}, {"PR_SET_VMA", name_it},
    };
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        stray(all[n].name, all[n].call);
}

static void free_addresses(void) {
    char *at = gone();
    char *again = mmap(at, len, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
    printf("NOREPLACE over all: %d\n", again == at);
    memset(again, 3, len);
    CHECK(mmap(at, len, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED && errno == EEXIST);
    char *others[20];
    for (int n = 0; n < 20; n++) {
        others[n] = map(len);
        CHECK(others[n] + len <= again || again + len <= others[n]);
        memset(others[n], 4, len);
    }
    for (size_t n = 0; n < len; n++)
        CHECK(again[n] == 3);
    for (int n = 0; n < 20; n++)
        CHECK(munmap(others[n], len) == 0);
    CHECK(munmap(again, len) == 0 && touch(again) == SIGSEGV);

    at = gone();
    again = mmap(at, len, RW, ANON, -1, 0);
    printf("a hint: %d\n", again == at);
    CHECK(is_zero(again, len) && munmap(again, len) == 0);
    /* One that asks for a place, not only for an alignment, as a sanitizer's shadow does. */
    char *place = (char *)(5UL << 40) + 65536;
    again = mmap(place, len, RW, ANON, -1, 0);
    printf("a hint elsewhere: %d\n", again == place);
    CHECK(is_zero(again, len) && munmap(again, len) == 0);

    at = holed();
    again = mmap(at + len / 2, len / 4, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
    printf("NOREPLACE in a hole: %d\n", again == at + len / 2);
    CHECK(is_zero(again, len / 4) && at[len / 2 - 1] == 7 && at[len / 4 * 3] == 7);
    CHECK(munmap(at, len) == 0);

    at = gone();
    again = mmap(at, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, open("/proc/self/exe", O_RDONLY), 0);
    CHECK(again == at && !memcmp(again, "\177ELF", 4));
    next_are_new("a file");
    CHECK(!memcmp(again, "\177ELF", 4) && munmap(again, PAGE) == 0);
}

/* A failing MAP_FIXED leaves the range that it names unchanged, and the pool can use it again. */
static void refused_fixed(void) {
    char *seen[64];
    char *at = map(len);
    memset(at, 5, len);
    SAY("MAP_FIXED of no file", (long)mmap(at, len, RW, MAP_PRIVATE | MAP_FIXED, 12345, 0));
    CHECK(at[0] == 5 && at[len - 1] == 5 && munmap(at, len) == 0);
    at = gone();
    SAY("the same over nothing", (long)mmap(at, len, RW, MAP_PRIVATE | MAP_FIXED, 12345, 0));
    CHECK(touch(at) == SIGSEGV);
    int again = 0;
    for (int n = 0; n < 64; n++) {
        seen[n] = map(len);
        again |= seen[n] == at;
    }
    for (int n = 0; n < 64; n++)
        CHECK(munmap(seen[n], len) == 0);
    fprintf(stderr, "the addresses came back: %d\n", again);
}

static void kernels_own_answers(void) {
    char *at = map(len);
    memset(at, 6, len);
    SAY("an offset of 1", (long)mmap(NULL, len, RW, ANON, -1, 1));
    SAY("an offset of a page", (munmap(at, len), (long)(at = mmap(NULL, len, RW, ANON, -1, PAGE))));
    SAY("mremap to 2^50", (long)mremap(at, len, (size_t)1 << 50, MREMAP_MAYMOVE));
    SAY("mremap with a strange flag", (long)mremap(at, len, len / 2, 0x80));
    SAY("mremap of nothing", (long)mremap(at, 0, len, MREMAP_MAYMOVE));
    SAY("mremap of more than there is", (long)mremap(at, 1000 * len, 1001 * len, MREMAP_MAYMOVE) );
    SAY("HUGEPAGE unaligned", madvise(at + 1, len - 1, MADV_HUGEPAGE));
    SAY("HUGEPAGE of nothing", madvise(at, 0, MADV_HUGEPAGE));
    SAY("HUGEPAGE wrapping", madvise(at, (size_t)-PAGE, MADV_HUGEPAGE));
    SAY("mincore unaligned", mincore(at + 1, PAGE, pages));
    SAY("mincore to nowhere", mincore(at, len, NULL));
    SAY("msync strange", msync(at, len, 77));
    char *down = mmap(NULL, len, RW, ANON | MAP_GROWSDOWN, -1, 0);
    CHECK(down != MAP_FAILED && munmap(down, len) == 0);
    SAY("MAP_SHARED_VALIDATE", (long)mmap(NULL, len, RW, MAP_SHARED_VALIDATE | MAP_ANONYMOUS, -1, 0));
    CHECK(munmap(at, len) == 0);
}

/* Calls that name terabytes, or whose range wraps: they return the kernel's results, at once and
 * without memory. */
static void absurd_lengths(void) {
    static const size_t lengths[] = {-(size_t)5405, -(size_t)4096, (size_t)1 << 46, (size_t)1 << 62};
    long before = status_kib("VmRSS:");
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    char *at = map(len);
    at[0] = 1;
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        CHECK(madvise(at, lengths[n], MADV_COLD) == -1);
        CHECK(msync(at, lengths[n], MS_ASYNC) == -1);
        /* For a range that does not wrap, the call would change the program's code. */
        if (lengths[n] > (size_t)-MIB)
            CHECK(mprotect(at, lengths[n], RW) == -1 && (errno == EINVAL || errno == ENOMEM));
    }
    munmap(at, len);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    CHECK(ended.tv_sec - began.tv_sec < 10);
    CHECK(status_kib("VmRSS:") < before + 16 * 1024);
}

int main(void) {
    static const size_t sizes[] = {64 * KIB, 1 * MIB, 5 * MIB + 16 * KIB};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        len = sizes[n];
        strays();
        free_addresses();
        refused_fixed();
        kernels_own_answers();
        absurd_lengths();
    }
    puts("done");
    return 0;
}
