/* Under limits, memory runs out where it would, by an error; and what is freed can be had again. */
#include "check.h"

static void until_refused(int mapped) {
    enum { MOST = 4096 };
    static char *blocks[MOST];
    size_t len = 8 * MIB;
    for (int round = 0; round < 5; round++) {
        int count = 0;
        while (count < MOST) {
            errno = 0;
            char *at = mapped ? mmap(NULL, len, RW, ANON, -1, 0) : malloc(len);
            if (!at || at == MAP_FAILED) {
                CHECK(errno == ENOMEM);
                break;
            }
            fill(at, 4096, count);
            blocks[count++] = at;
        }
        /* 1 GiB is the limit: a half of it must be there to be had, each time anew. */
        CHECK(count >= 64 && count < 140);
        while (count--) {
            CHECK(is_filled(blocks[count], 4096, count));
            if (mapped)
                CHECK(munmap(blocks[count], len) == 0);
            else
                free(blocks[count]);
        }
    }
}

static void touched_and_dropped(void) {
    /* More than the limit in all; what went must be back before it is needed. */
    for (int n = 0; n < 12; n++) {
        char *at = map(600 * MIB);
        for (size_t byte = 0; byte < 600 * MIB; byte += 4096)
            at[byte] = 1;
        CHECK(munmap(at, 600 * MIB) == 0);
    }
}

int main(void) {
    struct rlimit limit = {1 << 30, 1 << 30};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    until_refused(0);
    until_refused(1);
    touched_and_dropped();
    puts("within limits");
    return 0;
}
