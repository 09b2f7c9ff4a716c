/* A program for the system calls that were once proposed to Linux, mvolatile and mnovolatile.
 * Each thread takes the pieces of a large area in turn: it takes a piece, uses it and releases
 * it. The only change is `-include tenure_compat.h`, so the feature macro below must still work. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { PIECE = 1 << 20, PIECES = 8, AREA = PIECE * PIECES, ROUNDS = 20 };

static pthread_barrier_t start;
static atomic_int wrong;

static void *use_pieces(void *data)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(*(int *)data, &set);
    sched_setaffinity(0, sizeof set, &set);
    char *area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) {
        wrong++;
        return NULL;
    }
    pthread_barrier_wait(&start);
    for (int round = 0; round < ROUNDS; round++) {
        wrong += mvolatile(area, AREA) != 0;
        for (int piece = 0; piece < PIECES; piece++) {
            char *at = area + (size_t)piece * PIECE;
            int went = mnovolatile(at, PIECE);
            char before = round > 0 ? (char)(round - 1 + piece) : 0;
            if (went < 0 || (went == 0 && (at[0] != before || at[PIECE - 1] != before)))
                wrong++;
            memset(at, round + piece, PIECE);
            wrong += mvolatile(at, PIECE) != 0;
        }
    }
    wrong += mnovolatile(area, AREA) < 0;
    return NULL;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 2;
    pthread_t threads[16];
    int numbers[16];
    if (count < 1 || count > 16)
        return 1;
    pthread_barrier_init(&start, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, use_pieces, &numbers[i]) != 0)
            return 1;
    }
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    if (wrong) {
        fprintf(stderr, "%d calls or contents were wrong\n", (int)wrong);
        return 1;
    }
    /* The pages do not fault again in each round: a fault for each would be ROUNDS times this
     * number. */
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    long pages = (long)count * (AREA / 4096);
    if (usage.ru_minflt > pages * ROUNDS / 4) {
        fprintf(stderr, "%ld faults for %ld pages\n", usage.ru_minflt, pages);
        return 1;
    }
    return 0;
}
