/* A program that allocates, maps, moves, unmaps, forks and starts threads, and checks every byte. Calls of its own may
 * fail: it goes on without what it did not get. */
#include "failing.h"

#include <pthread.h>

static void heap(int seed)
{
    unsigned char *held[6] = {NULL};
    size_t sizes[6] = {0};
    for (int i = 0; i < 30; i++) {
        const int at = i % 6;
        if (held[at] != NULL) {
            CHECK(all_are(held[at], sizes[at], seed + at));
            if (i % 4 == 0) {
                const size_t size = sizes[at] * 2 + 100;
                unsigned char *grown = realloc(held[at], size);
                if (grown == NULL) {
                    CHECK(may_fail());
                } else {
                    CHECK(all_are(grown, sizes[at], seed + at));
                    held[at] = grown;
                    sizes[at] = size;
                    memset(grown, seed + at, size);
                }
                continue;
            }
            free(held[at]);
        }
        static const size_t of[5] = {90 * KIB, 200 * KIB, 700 * KIB, MIB + 5000, 2 * MIB};
        sizes[at] = of[i % 5];
        held[at] = i % 3 == 0 ? calloc(1, sizes[at]) : malloc(sizes[at]);
        if (held[at] == NULL) {
            CHECK(may_fail());
            continue;
        }
        if (i % 3 == 0)
            CHECK(all_are(held[at], sizes[at], 0));
        memset(held[at], seed + at, sizes[at]);
    }
    for (int at = 0; at < 6; at++) {
        if (held[at] != NULL)
            CHECK(all_are(held[at], sizes[at], seed + at));
        free(held[at]);
    }
}

/* While another thread runs, its malloc may map there at once. */
static int has_other_thread;

static void unmap(unsigned char *at, size_t len)
{
    if (munmap(at, len) != 0) {
        CHECK(may_fail());
        return;
    }
    /* A touch would raise a signal: the kernel cannot read it either. */
    int ends[2];
    if (pipe(ends) != 0)
        return;
    const int can_be_read = write(ends[1], at, 1) == 1 || write(ends[1], at + len - 1, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    CHECK(!can_be_read || has_other_thread);
}

static void mappings(int seed)
{
    static const size_t of[4] = {128 * KIB, 600 * KIB, MIB, 3 * MIB};
    for (int i = 0; i < 8; i++) {
        size_t len = of[i % 4];
        unsigned char *at =
            mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) {
            CHECK(may_fail());
            continue;
        }
        CHECK(all_are(at, len, 0));
        memset(at, seed, len);
        if (i % 4 == 1) {
            unsigned char *moved = mremap(at, len, len * 2, MREMAP_MAYMOVE);
            if (moved == MAP_FAILED) {
                CHECK(may_fail());
            } else {
                at = moved;
                CHECK(all_are(at, len, seed) && all_are(at + len, len, 0));
                len *= 2;
                memset(at, seed, len);
            }
        }
        if (i % 4 == 2) {
            if (mprotect(at + 4 * PAGE, 2 * PAGE, PROT_READ) != 0)
                CHECK(may_fail());
            if (madvise(at + 8 * PAGE, 2 * PAGE, MADV_DONTNEED) != 0)
                CHECK(may_fail());
            else
                CHECK(all_are(at + 8 * PAGE, 2 * PAGE, 0));
            if (munmap(at + 20 * PAGE, 5 * PAGE) != 0)
                CHECK(may_fail());
        }
        CHECK(all_are(at, 8 * PAGE, seed));
        if (i % 4 == 2)
            munmap(at, len);
        else
            unmap(at, len);
    }
}

static void *thread(void *arg)
{
    heap(100);
    mappings(101);
    return arg;
}

static void child(void)
{
    unsigned char *before = malloc(300 * KIB);
    if (before == NULL) {
        CHECK(may_fail());
        return;
    }
    memset(before, 9, 300 * KIB);
    const pid_t pid = fork();
    if (pid == 0) {
        CHECK(all_are(before, 300 * KIB, 9));
        free(before);
        heap(50);
        mappings(51);
        _exit(0);
    }
    if (pid < 0) {
        CHECK(may_fail());
    } else {
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    CHECK(all_are(before, 300 * KIB, 9));
    free(before);
}

static void life(void)
{
    heap(1);
    mappings(2);
    child();
    pthread_t other;
    has_other_thread = 1;
    const int error = pthread_create(&other, NULL, thread, NULL);
    if (error != 0) {
        errno = error;
        CHECK(may_fail() || (is_failing && error == EAGAIN));
    } else {
        heap(30);
        CHECK(pthread_join(other, NULL) == 0);
    }
    has_other_thread = 0;
}

int main(int argc, char **argv)
{
    return live(life, argc, argv);
}
