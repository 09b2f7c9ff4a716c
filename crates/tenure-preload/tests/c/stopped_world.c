/* A collector stops the other threads by a signal at any point, and maps memory while they are
 * stopped. With the argument "to fork" it also forks then. With other arguments the threads
 * allocate and free instead, and the collector uses no memory. */
#include "check.h"
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

enum { THREADS = 4 };

static sem_t stopped;
static atomic_int cycle, over;
static int allocates, forks, collector_forks;

static void stop(int signal) {
    (void)signal;
    int before = errno, mine = cycle;
    sem_post(&stopped);
    sigset_t others;
    sigfillset(&others);
    sigdelset(&others, SIGUSR2);
    while (mine && cycle == mine)
        sigsuspend(&others);
    errno = before;
}

static void go_on(int signal) {
    (void)signal;
}

static void *body(void *argument) {
    unsigned n = (unsigned)(uintptr_t)argument;
    char *blocks[8] = {0};
    while (!over && n == 0 && forks) {
        int child = fork();
        if (child == 0)
            _exit(0);
        CHECK(child > 0);
        while (waitpid(child, NULL, 0) < 0)
            CHECK(errno == EINTR);
        usleep(100);
    }
    while (!over) {
        n = n * 1103515245 + 12345;
        if (allocates) {
            char **block = &blocks[n >> 8 & 7];
            free(*block);
            CHECK(*block = malloc((1 + (n >> 16) % 64) * 64 * KIB));
            **block = 1;
            continue;
        }
        size_t len = (1 + (n >> 16) % 16) * 64 * KIB;
        char *at = map(len);
        at[0] = 1;
        CHECK(munmap(at, len) == 0);
    }
    for (int at = 0; at < 8; at++)
        free(blocks[at]);
    return NULL;
}

static void wait_for_one(void) {
    struct timespec until;
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += 30;
    CHECK(sem_timedwait(&stopped, &until) == 0);
}

int main(int count, char **arguments) {
    collector_forks = count == 2 && !strcmp(arguments[1], "to fork");
    allocates = count > 1 && !collector_forks;
    forks = count > 2;
    CHECK(sem_init(&stopped, 0, 0) == 0);
    struct sigaction action = {.sa_handler = stop};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    action.sa_handler = go_on;
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    pthread_t threads[THREADS];
    for (uintptr_t n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, body, (void *)n) == 0);
    /* On a busy machine a thread takes long to stop. */
    time_t until = time(NULL) + 8;
    for (int n = 1; n <= sweep(300, 3000) && time(NULL) < until; n++) {
        cycle = n;
        for (int at = 0; at < THREADS; at++)
            CHECK(pthread_kill(threads[at], SIGUSR1) == 0);
        for (int at = 0; at < THREADS; at++)
            wait_for_one();
        for (size_t len = 64 * KIB; len < MIB && !allocates; len *= 2) {
            char *at = map(len);
            CHECK(at[0] == 0);
            at[0] = 1;
            CHECK(munmap(at, len) == 0);
        }
        if (collector_forks) {
            int child = fork();
            if (child == 0)
                _exit(0);
            CHECK(child > 0 && waitpid(child, NULL, 0) == child);
        }
        cycle = 0;
        for (int at = 0; at < THREADS; at++)
            CHECK(pthread_kill(threads[at], SIGUSR2) == 0);
        usleep(50);
    }
    over = 1;
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    puts("all cycles went by");
    return 0;
}
