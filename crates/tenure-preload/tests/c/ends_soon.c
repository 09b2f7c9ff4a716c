/* The main thread ends by itself while the library's threads start. The program's exit handlers
 * must run on a thread of the program, with its signal mask and its stack. */
#include "check.h"

static void deep(void) {
    volatile char large[1 << 20];
    for (size_t n = 0; n < sizeof large; n += 4096)
        large[n] = 1;
}

static void at_end(void) {
    sigset_t blocked;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0);
    CHECK(getpid() == gettid() && !sigismember(&blocked, SIGTERM));
    deep();
    puts("done");
    fflush(stdout);
}

static void *nothing(void *argument) { return argument; }

static void child(int wait) {
    pthread_t thread;
    CHECK(atexit(at_end) == 0);
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    for (int n = 0; n < 2; n++) {
        char *block = malloc(8 * MIB);
        fill(block, 8 * MIB, n);
        free(block);
    }
    if (wait)
        usleep(wait);
    pthread_exit(NULL);
}

int main(void) {
    static const int waits[] = {0, 0, 0, 20, 50, 100, 200, 500, 1000, 5000};
    for (size_t n = 0; n < sizeof waits / sizeof *waits; n++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            child(waits[n]);
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return 0;
}
