/* The program calls hooks where little is allowed: in signal handlers that interrupt other
 * hooks, in dlopen, in thread starts, constructors and destructors. No call hangs, no bytes are
 * lost, and errno stays. */
#include "check.h"
#include <dlfcn.h>

static volatile sig_atomic_t handled;
static void *shared_block;

__attribute__((constructor(101))) static void before_main(void) {
    shared_block = malloc(300 * KIB);
    CHECK(shared_block);
    fill(shared_block, 300 * KIB, 1);
    free(malloc(1));
}

__attribute__((destructor)) static void after_main(void) {
    CHECK(is_filled(shared_block, 300 * KIB, 1));
    free(shared_block);
    free(malloc(500 * KIB));
}

/* The handler calls munmap and mmap, although POSIX does not promise that. */
static void handler(int signal) {
    (void)signal;
    int before = errno;
    size_t len = handled % 2 ? 128 * KIB : 3 * MIB;
    char *at = mmap(NULL, len, RW, ANON, -1, 0);
    CHECK(at != MAP_FAILED);
    at[0] = at[len - 1] = 1;
    CHECK(munmap(at, len) == 0);
    handled++;
    CHECK(errno == before);
}

static void *thread(void *unused) {
    static __thread char large[256 * 1024];
    memset(large, 1, sizeof large);
    free(malloc(400 * KIB));
    return unused;
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    struct itimerspec often = {{0, 200000}, {0, 200000}};
    CHECK(timer_settime(timer, 0, &often, NULL) == 0);
    long end = ms_now() + sweep(1000, 2000);
    unsigned seed = 1;
    do {
        for (int n = 0; n < 50; n++) {
            size_t len = (1 + (seed = seed * 1103515245 + 12345) / 3 % 1024) * 4 * KIB;
            errno = 55;
            char *block = malloc(len), *at = mmap(NULL, len, RW, ANON, -1, 0);
            CHECK(block && at != MAP_FAILED);
            fill(block, len, seed);
            fill(at, len, ~seed);
            CHECK(is_filled(block, len, seed) && is_filled(at, len, ~seed));
            free(block);
            CHECK(munmap(at, len) == 0 && errno == 55);
        }
    } while (ms_now() < end || handled < 100);
    /* The loader enlarges its tables of thread-local storage, and calls malloc for that. */
    for (int n = 1; n < count; n++) {
        void *library = dlopen(arguments[n], RTLD_NOW);
        if (!library)
            fprintf(stderr, "%s\n", dlerror());
        CHECK(library);
        int *(*variable)(void) = (int *(*)(void))dlsym(library, "variable");
        CHECK(variable && *variable() == 42);
        CHECK(!dlsym(library, "no_such_name"));
        free(malloc(700 * KIB));
        pthread_t other;
        CHECK(pthread_create(&other, NULL, thread, NULL) == 0 && pthread_join(other, NULL) == 0);
    }
    often.it_interval = often.it_value = (struct timespec){0, 0};
    timer_settime(timer, 0, &often, NULL);
    puts("not recursed");
    return 0;
}
