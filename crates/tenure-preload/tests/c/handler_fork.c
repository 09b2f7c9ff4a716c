/* One thread holds a lock of malloc when a signal handler interrupts it, which maps and unmaps
 * memory. Another thread forks meanwhile, and waits for that lock. */
#include "check.h"

enum { LEN = 2 << 20, LARGE = 8 << 20, PAGE = 4096 };

static _Atomic int handled, over;

static void on_signal(int signal) {
    int errno_before = errno;
    (void)signal;
    /* Until the other thread waits, if it is going to. */
    sleep_ms(2);
    char *whole = map(LEN), *in_parts = map(LEN), *shared;
    CHECK(is_zero(whole, 64) && is_zero(in_parts, 64));
    memset(whole, 1, 3 * PAGE);
    memset(in_parts, 2, LEN);
    CHECK(munmap(in_parts, 16 * PAGE) == 0);
    CHECK(munmap(in_parts + LEN - PAGE, PAGE) == 0);
    CHECK(mmap(in_parts + 4 * PAGE, PAGE, RW, ANON | MAP_FIXED, -1, 0) == in_parts + 4 * PAGE);
    CHECK(in_parts[4 * PAGE] == 0 && in_parts[16 * PAGE] == 2);
    CHECK(madvise(whole, LEN, MADV_DONTDUMP) == 0);
    CHECK(munmap(whole, LEN) == 0);
    CHECK(munmap(in_parts + 16 * PAGE, LEN - 17 * PAGE) == 0);
    CHECK(in_parts[4 * PAGE] == 0);
    CHECK(munmap(in_parts + 4 * PAGE, PAGE) == 0);
    shared = mmap(NULL, LARGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    memset(shared, 3, LARGE / 8);
    CHECK(munmap(shared, LARGE) == 0);
    errno = errno_before;
    handled++;
}

static void *allocate(void *unused) {
    void *kept[64];
    (void)unused;
    while (!over) {
        for (int n = 0; n < 64; n++)
            CHECK((kept[n] = malloc(2000 + n * 100)));
        for (int n = 0; n < 64; n++)
            free(kept[n]);
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    /* Afterwards the library has a pool, memory to retire, and a worker. */
    for (int n = 0; n < 3; n++) {
        free(memset(malloc(LARGE), 1, LARGE));
        CHECK(munmap(memset(map(LARGE), 1, LARGE), LARGE) == 0);
        sleep_ms(5);
    }
    CHECK(pthread_create(&thread, NULL, allocate, NULL) == 0);
    for (int n = 0; n < sweep(40, 100); n++) {
        int before = handled, status;
        CHECK(pthread_kill(thread, SIGUSR1) == 0);
        usleep(300);
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            /* The child's memory is complete. */
            char *at = map(LEN);
            _exit(!is_zero(at, LEN) || munmap(at, LEN) || !malloc(LARGE));
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        while (handled == before)
            usleep(100);
    }
    over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    puts("no deadlock");
    return 0;
}
