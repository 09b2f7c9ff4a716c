/* A program sets a limit while it forks, and keeps its memory. A limit that the kernel refuses,
 * or that a child of vfork sets for itself, is no limit of the program. */
#include "check.h"

static volatile int over;

static void *forks(void *argument) {
    while (!over) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    }
    return argument;
}

static void can_map(void) {
    for (int n = 0; n < 100; n++) {
        char *at = malloc(MIB), *mapped = map(MIB);
        CHECK(at);
        at[0] = mapped[0] = 1;
        free(at);
        CHECK(munmap(mapped, MIB) == 0);
    }
}

static void limited(int raw) {
    struct rlimit limit = {(rlim_t)8 << 30, (rlim_t)8 << 30};
    pthread_t thread;
    free(malloc(8 * MIB));
    CHECK(pthread_create(&thread, NULL, forks, NULL) == 0);
    sleep_ms(20);
    if (raw)
        CHECK(syscall(SYS_prlimit64, 0, RLIMIT_AS, &limit, NULL) == 0);
    else
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    can_map();
    over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    can_map();
}

static void refused(void) {
    struct rlimit wrong = {2 << 20, 1 << 20};
    char *block = malloc(8 * MIB);
    fill(block, 8 * MIB, 1);
    errno = 0;
    CHECK(setrlimit(RLIMIT_AS, &wrong) == -1 && errno == EINVAL);
    pid_t child = vfork();
    if (child == 0) {
        struct rlimit limit = {1 << 30, 1 << 30};
        setrlimit(RLIMIT_AS, &limit);
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(is_filled(block, 8 * MIB, 1));
    /* More than the child's limit. */
    char *large = mmap(NULL, (size_t)4 << 30, RW, ANON | MAP_NORESERVE, -1, 0);
    CHECK(large != MAP_FAILED);
    free(block);
}

int main(void) {
    for (int round = 0; round < 6; round++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            refused();
            limited(round & 1);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    puts("done");
    return 0;
}
