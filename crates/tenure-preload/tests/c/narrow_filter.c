/* The program allows itself only the calls that the C library makes for one purpose: to free large
 * blocks, to change their size, to limit its memory, or to lock it. */
#include "confine.h"

static void filter(int also) {
    ALLOW_ONLY(SYS_munmap, also, SYS_write, SYS_exit_group);
}

enum { BLOCKS = 8 };
static char *blocks[BLOCKS];

static size_t len_of(int n) { return MIB + n * 300 * KIB; }

static void resize(int n, size_t from, size_t to) {
    char *block = realloc(blocks[n], to);
    CHECK(block && (uintptr_t)block % 16 == 0);
    CHECK(malloc_usable_size(block) >= to);
    CHECK(is_filled(block, from < to ? from : to, n));
    fill(block, to, n);
    blocks[n] = block;
}

int main(int count, char **arguments) {
    int frees = count > 1 && !strcmp(arguments[1], "free");
    for (int n = 0; n < BLOCKS; n++) {
        blocks[n] = malloc(len_of(n));
        CHECK(blocks[n]);
        fill(blocks[n], len_of(n), n);
    }
    printf("filtered\n");
    fflush(stdout);
    if (count > 1 && !strcmp(arguments[1], "limit")) {
        struct rlimit large = {(rlim_t)1 << 40, RLIM_INFINITY};
        filter(SYS_prlimit64);
        CHECK(setrlimit(RLIMIT_DATA, &large) == 0);
        CHECK(write(1, "limited\n", 8) == 8);
        _exit(0);
    }
    if (count > 1 && !strcmp(arguments[1], "lock")) {
        filter(SYS_mlockall);
        /* The kernel may refuse it. */
        (void)mlockall(MCL_FUTURE);
        CHECK(write(1, "asked\n", 6) == 6);
        _exit(0);
    }
    if (count > 1 && !strcmp(arguments[1], "same")) {
        resize(2, len_of(2), len_of(2) + 1);
        filter(SYS_munmap);
        resize(1, len_of(1), len_of(1));
        resize(1, len_of(1), len_of(1) - 8);
        /* With the two words before it, it still needs that page. */
        resize(2, len_of(2) + 1, len_of(2));
        CHECK(write(1, "same\n", 5) == 5);
        _exit(0);
    }
    filter(frees ? SYS_munmap : SYS_mremap);
    for (int n = 0; n < BLOCKS && !frees; n++) {
        size_t len = len_of(n);
        size_t larger = 2 * len, smaller = len / 2 + n * 8, last = 40 * MIB + n * KIB;
        if (n % 2) {
            resize(n, len, smaller);
            resize(n, smaller, larger);
        } else {
            resize(n, len, larger);
            resize(n, larger, smaller);
        }
        resize(n, n % 2 ? larger : smaller, last);
        CHECK(is_filled(blocks[n], last, n));
        for (int other = n + 1; other < BLOCKS; other++)
            CHECK(is_filled(blocks[other], len_of(other), other));
    }
    for (int n = 0; n < BLOCKS; n++)
        free(blocks[n]);
    CHECK(write(1, "done\n", 5) == 5);
    _exit(0);
}
