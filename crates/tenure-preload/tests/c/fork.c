/* Children of every kind, made while other threads allocate, map and free. */
#include "check.h"
#include <spawn.h>

extern char **environ;
static volatile int stop;

static void work(unsigned seed, int rounds) {
    for (int n = 0; n < rounds; n++) {
        size_t len = (64 * KIB + (seed = seed * 1103515245 + 12345) / 5 % (2 * MIB)) & ~(size_t)4095;
        char *block = malloc(len), *mapped = map(len);
        fill(block, len, seed);
        fill(mapped, len, seed + 1);
        CHECK(is_filled(block, len, seed) && is_filled(mapped, len, seed + 1));
        free(block);
        CHECK(munmap(mapped, len) == 0);
    }
}

static void *busy(void *number) {
    for (unsigned seed = (uintptr_t)number; !stop; seed += 17)
        work(seed, 4);
    return NULL;
}

static void ended_well(pid_t child) {
    int status = -1;
    CHECK(child > 0);
    while (waitpid(child, &status, 0) < 0)
        CHECK(errno == EINTR);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int count, char **arguments) {
    if (count > 1) { /* the arguments that exec passes */
        work(99, 4);
        return 0;
    }
    pthread_t threads[3];
    size_t len = 3 * MIB;
    char *kept = malloc(len), *mapped = map(len);
    fill(kept, len, 1);
    fill(mapped, len, 2);
    for (uintptr_t n = 0; n < 3; n++)
        CHECK(pthread_create(&threads[n], NULL, busy, (void *)n) == 0);
    for (int n = 0; n < sweep(16, 40); n++) {
        pid_t child = fork();
        if (!child) {
            CHECK(is_filled(kept, len, 1) && is_filled(mapped, len, 2));
            fill(kept, len, 3);
            work(n, 3);
            free(kept);
            CHECK(munmap(mapped, len) == 0);
            pid_t grandchild = fork();
            if (!grandchild) {
                work(n, 2);
                _exit(0);
            }
            ended_well(grandchild);
            exit(0);
        }
        ended_well(child);
        CHECK(is_filled(kept, len, 1) && is_filled(mapped, len, 2));
        char *again[] = {arguments[0], "again", NULL};
        if (n % 4 == 0) {
            child = vfork();
            if (!child) {
                execv(again[0], again);
                _exit(1);
            }
            ended_well(child);
        } else if (n % 4 == 1) {
            CHECK(posix_spawn(&child, again[0], NULL, NULL, again, environ) == 0);
            ended_well(child);
        } else if (n % 4 == 2) {
            /* A raw clone runs no fork handlers. */
            child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
            if (!child) {
                int ok = is_filled(kept, len, 1) && is_filled(mapped, len, 2);
                ok = ok && munmap(mapped, len) == 0;
                syscall(SYS_exit_group, !ok);
            }
            ended_well(child);
        }
    }
    stop = 1;
    for (int n = 0; n < 3; n++)
        pthread_join(threads[n], NULL);
    free(kept);
    munmap(mapped, len);
    puts("children");
    return 0;
}
