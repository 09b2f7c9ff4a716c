/* The kernel may still read memory that the program has given up. Its next owner must not write
 * to those pages. */
#include "check.h"
#include <sys/uio.h>

/* The program makes the call by its number. */
static int by_number;

static ssize_t give(int to, struct iovec *part) {
    if (by_number)
        return syscall(SYS_vmsplice, to, part, 1, SPLICE_F_GIFT);
    return vmsplice(to, part, 1, SPLICE_F_GIFT);
}

static void splice_and_give_up(size_t len, int is_mapped) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    char *at = is_mapped ? map(len) : malloc(len);
    CHECK(at);
    memset(at, 'A', len);
    size_t page = 4096, offset = page - ((uintptr_t)at & (page - 1));
    struct iovec part = {at + offset, 8 * page};
    ssize_t spliced = give(ends[1], &part);
    CHECK(spliced > 0);
    if (is_mapped)
        CHECK(munmap(at, len) == 0);
    else
        free(at);
    /* Several next owners of this size, and one that wants zeros. */
    char *next[4];
    for (int n = 0; n < 4; n++) {
        next[n] = is_mapped ? map(len) : n == 3 ? calloc(1, len) : malloc(len);
        memset(next[n], 'B', len);
    }
    char out[8 * 4096];
    CHECK(read(ends[0], out, sizeof out) == spliced);
    for (ssize_t n = 0; n < spliced; n++)
        CHECK(out[n] == 'A');
    for (int n = 0; n < 4; n++) {
        if (is_mapped)
            CHECK(munmap(next[n], len) == 0);
        else
            free(next[n]);
    }
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

int main(int count, char **arguments) {
    by_number = count > 1 && arguments[1];
    /* glibc unmaps blocks of this size when they are freed. */
    for (int n = 0; n < 5; n++)
        free(malloc(48 * MIB));
    splice_and_give_up(48 * MIB, 0);
    splice_and_give_up(2 * MIB, 1);
    splice_and_give_up(64 * MIB, 1);
    puts("read");
    return 0;
}
