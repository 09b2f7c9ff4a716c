/* Locked memory counts as it would without the library, and only the program's own memory is
 * resident. */
#include "check.h"

/* Afterwards the worker runs, and the pool has free runs. */
static void warm_up(void) {
    for (int n = 0; n < 3; n++) {
        char *at = map(66 * MIB);
        fill(at, 66 * MIB, n);
        CHECK(munmap(at, 66 * MIB) == 0);
        free(malloc(400000));
    }
}

/* VmLck is the memory that the program has locked, as soon as munmap returns. */
static void unmapped(void) {
    size_t len = 60000000 / 4096 * 4096;
    warm_up();
    for (int n = 0; n < sweep(4, 12); n++) {
        char *at;
        if (n % 2) {
            at = mmap(NULL, len, RW, ANON | MAP_LOCKED, -1, 0);
            CHECK(at != MAP_FAILED);
        } else {
            at = map(len);
            CHECK(syscall(SYS_mlock2, at, len, n % 4 ? MLOCK_ONFAULT : 0) == 0);
            fill(at, len, n);
        }
        CHECK(status_kib("VmLck:") == (long)len / 1024);
        CHECK(munmap(at + 4096, len - 4096) == 0);
        CHECK(status_kib("VmLck:") == 4);
        CHECK(munmap(at, 4096) == 0);
        CHECK(status_kib("VmLck:") == 0);
    }
}

static int by_number;

static int lock_all(int flags) {
    return by_number ? (int)syscall(SYS_mlockall, flags) : mlockall(flags);
}

/* Free blocks, a block in use, and memory that was just unmapped. Only the block in use becomes
 * resident, and memory that is freed later is unmapped. */
static void everything(int flags) {
    warm_up();
    for (int n = 0; n < 8; n++) {
        size_t len = (size_t)(300 + n) << (n + 10);
        char *at = malloc(len);
        CHECK(at != NULL);
        at[0] = at[len - 1] = 1;
        free(at);
    }
    char *sparse = malloc(976249138);
    CHECK(sparse != NULL);
    for (size_t byte = 0; byte < 976249138; byte += 2 * MIB)
        sparse[byte] = 1;
    free(sparse);
    size_t len = 150 * MIB;
    char *held = malloc(len), *away = map(200 * MIB), *grown = malloc(40 * MIB);
    grown = realloc(grown, 70 * MIB);
    fill(held, len, 1), fill(grown, 70 * MIB, 3), fill(away, 200 * MIB, 2);
    CHECK(munmap(away, 200 * MIB) == 0);

    CHECK(lock_all(0) == -1 && errno == EINVAL);
    CHECK(lock_all(MCL_ONFAULT) == -1 && errno == EINVAL);
    CHECK(lock_all(1 << 20) == -1 && errno == EINVAL);
    errno = 7;
    CHECK(lock_all(flags) == 0 && errno == 7);
    /* The blocks in use, and the program's own text, stacks and heap. */
    CHECK(status_kib("VmRSS:") < 256 * 1024);
    /* No reservation counts. For a block in use the rest of its run counts. */
    if (flags & MCL_CURRENT)
        CHECK(status_kib("VmLck:") < 512 * 1024);
    CHECK(is_filled(held, len, 1) && is_filled(grown, 70 * MIB, 3));
    /* All bytes that malloc_usable_size reports are accessible. */
    CHECK(malloc_usable_size(held) >= len);
    memset(held + len, 1, malloc_usable_size(held) - len);
    held = realloc(held, len + 5 * MIB);
    CHECK(held != NULL && is_filled(held, len, 1));
    fill(held, len + 5 * MIB, 4);
    CHECK(is_filled(held, len + 5 * MIB, 4));
    long before = status_kib("VmRSS:");
    free(held), free(grown);
    CHECK(status_kib("VmRSS:") + 200 * 1024 < before);
    if (flags & MCL_CURRENT)
        CHECK(status_kib("VmLck:") < 256 * 1024);
    /* All of it once more. */
    CHECK(lock_all(flags) == 0);
    char *again = malloc(20 * MIB);
    fill(again, 20 * MIB, 5);
    free(again);
    CHECK(munlockall() == 0 && status_kib("VmLck:") == 0);
    CHECK(status_kib("VmRSS:") < 128 * 1024);
}

/* A call that fails changes nothing. */
static void refused(int flags) {
    struct rlimit limit;
    char *held = malloc(80 * MIB);
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (limit.rlim_cur > 64 * MIB)
        limit.rlim_cur = limit.rlim_max = 64 * MIB;
    warm_up();
    fill(held, 80 * MIB, 1);
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    CHECK(geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
    CHECK(lock_all(flags) == -1 && errno == ENOMEM);
    CHECK(status_kib("VmLck:") == 0);
    CHECK(is_filled(held, 80 * MIB, 1));
    free(held);
    warm_up();
}

/* Free memory does not count against the limit. */
static void within_the_limit(int flags) {
    struct rlimit limit = {512 * MIB, 512 * MIB};
    warm_up();
    char *free_soon = malloc(900 * MIB);
    free_soon[0] = 1;
    free(free_soon);
    /* Only a privileged process may raise it. */
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    CHECK(geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
    CHECK(lock_all(flags) == 0);
}

static void in_a_child(void (*part)(int), int flags) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        part(flags);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    int may_lock = geteuid() == 0 || limit.rlim_cur == RLIM_INFINITY;
    for (by_number = 0; by_number < 2; by_number++) {
        in_a_child(refused, MCL_CURRENT);
        in_a_child(within_the_limit, MCL_CURRENT);
        /* A short sweep makes two rounds: by number with lock on fault, and by the C library's
         * call without. */
        for (int n = sweep(by_number, 0); may_lock && n < sweep(by_number + 1, 2); n++) {
            int more = n * MCL_ONFAULT;
            in_a_child(everything, MCL_CURRENT | more);
            in_a_child(everything, MCL_FUTURE | more);
            in_a_child(everything, MCL_CURRENT | MCL_FUTURE | more);
        }
    }
    if (may_lock)
        unmapped();
    puts(may_lock ? "locked" : "may not lock");
    return 0;
}
