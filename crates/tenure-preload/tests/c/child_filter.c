/* A child that no fork handler has prepared installs a filter for all calls but those of the C
 * library's malloc. */
#include "confine.h"

static void filter(void) {
    ALLOW_ONLY(SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_write, SYS_exit_group);
}

enum { BLOCKS = 20 };
static char *blocks[BLOCKS];

static size_t len_of(int n) { return MIB + n * 300 * KIB; }

static void child(int uses_first) {
    if (uses_first)
        free(blocks[0]);
    filter();
    for (int n = uses_first; n < BLOCKS; n++) {
        CHECK(is_filled(blocks[n], len_of(n), n));
        free(blocks[n]);
    }
    for (int n = 0; n < 50; n++) {
        char *block = malloc(MIB);
        CHECK(block);
        fill(block, MIB, n);
        block = realloc(block, 3 * MIB);
        CHECK(block && is_filled(block, MIB, n));
        free(block);
        block = calloc(1, 200 * KIB);
        CHECK(block && is_zero(block, 200 * KIB));
        free(block);
    }
    CHECK(munmap(map(64 * MIB), 64 * MIB) == 0);
    CHECK(write(1, "the child is done\n", 18) == 18);
    _exit(0);
}

int main(void) {
    for (int n = 0; n < BLOCKS; n++) {
        blocks[n] = malloc(len_of(n));
        CHECK(blocks[n]);
        fill(blocks[n], len_of(n), n);
    }
    /* The library has free memory, too, and threads. */
    for (int n = 0; n < 50; n++) {
        char *at = malloc(2 * MIB);
        CHECK(at);
        fill(at, 2 * MIB, n);
        free(at);
    }
    sleep_ms(50);
    for (int way = 0; way < 4; way++) {
        int status;
        pid_t pid = way % 2 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        CHECK(pid >= 0);
        if (!pid)
            child(way / 2);
        CHECK(waitpid(pid, &status, 0) == pid);
        printf("%d\n", status);
        fflush(stdout);
    }
    for (int n = 0; n < BLOCKS; n++)
        CHECK(is_filled(blocks[n], len_of(n), n));
    return 0;
}
