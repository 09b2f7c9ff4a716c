/* The last thread of the program ends by itself while the library's threads start. The program's
 * exit handlers must run on a thread of the program, with its signal mask, its descriptors and its
 * stack. */
#include "check.h"

static void deep(void) {
    volatile char large[1 << 20];
    for (size_t n = 0; n < sizeof large; n += 4096)
        large[n] = 1;
}

static pid_t last;

static void at_end(void) {
    sigset_t blocked;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0);
    CHECK(gettid() == last && !sigismember(&blocked, SIGTERM));
    deep();
    puts("done");
    fflush(stdout);
}

static void *nothing(void *argument) { return argument; }

static void use(int wait) {
    for (int n = 0; n < 2; n++) {
        char *block = malloc(8 * MIB);
        fill(block, 8 * MIB, n);
        free(block);
    }
    if (wait)
        usleep(wait);
    last = gettid();
}

static void destroy(void *wait) { use((int)(size_t)wait - 1); }

static void *alone(void *wait) {
    wait_for_main();
    use((int)(size_t)wait);
    return NULL;
}

enum way { MAIN, DESTRUCTOR, OTHER, WAYS };

static void child(enum way way, int wait) {
    pthread_t thread;
    pthread_key_t key;
    CHECK(atexit(at_end) == 0);
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    if (way == MAIN)
        use(wait);
    if (way == DESTRUCTOR)
        CHECK(pthread_key_create(&key, destroy) == 0 && pthread_setspecific(key, (void *)(size_t)(wait + 1)) == 0);
    if (way == OTHER)
        CHECK(pthread_create(&thread, NULL, alone, (void *)(size_t)wait) == 0);
    pthread_exit(NULL);
}

int main(void) {
    static const int waits[] = {0, 0, 0, 20, 50, 100, 200, 500, 1000, 5000};
    for (size_t n = 0; n < WAYS * sizeof waits / sizeof *waits; n++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            child(n % WAYS, waits[n / WAYS]);
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return 0;
}
