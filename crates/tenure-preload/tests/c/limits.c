/* Under a limit, memory runs out with an error where it would without the library, and freed
 * memory can be allocated again. */
#include "check.h"

static void until_refused(int mapped) {
    enum { MOST = 4096 };
    static char *blocks[MOST];
    size_t len = 8 * MIB;
    for (int round = sweep(2, 5); round > 0; round--) {
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
        /* The limit is 1 GiB: each time the program must get at least half of it. */
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
    /* More than the limit in total: each mapping must be torn down before the next needs its
     * memory. */
    size_t step = sweep(8, 1) * 4096;
    for (int n = sweep(2, 3); n > 0; n--) {
        char *at = map(600 * MIB);
        for (size_t byte = 0; byte < 600 * MIB; byte += step)
            at[byte] = 1;
        CHECK(munmap(at, 600 * MIB) == 0);
    }
}

static void under_a_limit(void) {
    struct rlimit limit = {1 << 30, 1 << 30};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    until_refused(0);
    until_refused(1);
    touched_and_dropped();
}

/* RLIMIT_DATA counts writable memory: freed blocks of one size must make room for blocks of any
 * other. */
static void sizes_one_after_the_other(void) {
    enum { MOST = 256 };
    static char *blocks[MOST];
    for (size_t len = 128 * KIB; len <= 640 * MIB; len *= 5) {
        int count = 0;
        for (; count < MOST; count++) {
            blocks[count] = malloc(len);
            if (!blocks[count])
                break;
            fill(blocks[count], 4096, count);
        }
        /* The program must get at least half of 1 GiB. */
        CHECK(count == MOST || (size_t)count * len >= 512 * MIB);
        while (count--) {
            CHECK(is_filled(blocks[count], 4096, count));
            free(blocks[count]);
        }
    }
}

static void under_a_limit_on_data(void) {
    struct rlimit limit = {1 << 30, 1 << 30};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    sizes_one_after_the_other();
    until_refused(0);
}

/* mlockall counts all mappings, if a limit holds and no capability lifts it. */
static void all_locked(void) {
    struct rlimit limit = {1 << 30, 1 << 30};
    free(malloc(8 * MIB));
    CHECK(munmap(map(8 * MIB), 8 * MIB) == 0);
    if (setrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        CHECK(geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
        CHECK(mlockall(MCL_CURRENT) == 0);
    }
}

/* The kernel's own clone runs no fork handlers. */
static pid_t by_clone(void) { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static void in_a_child(pid_t (*make)(void), void (*part)(void)) {
    int status;
    pid_t child = make();
    CHECK(child >= 0);
    if (child == 0) {
        part();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    in_a_child(fork, under_a_limit);
    in_a_child(fork, all_locked);
    in_a_child(fork, under_a_limit_on_data);
    /* After memory was allocated, freed and used again. */
    char *held = malloc(8 * MIB), *mapped = map(8 * MIB);
    fill(held, 8 * MIB, 1);
    fill(mapped, 8 * MIB, 2);
    free(malloc(8 * MIB));
    in_a_child(by_clone, under_a_limit);
    in_a_child(by_clone, under_a_limit_on_data);
    under_a_limit();
    CHECK(is_filled(held, 8 * MIB, 1) && is_filled(mapped, 8 * MIB, 2));
    free(held);
    CHECK(munmap(mapped, 8 * MIB) == 0);
    puts("within limits");
    return 0;
}
