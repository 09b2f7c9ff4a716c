/* A signal that somebody sends to the process goes to the program's threads alone, also if its name
 * is that of a fault and all of them block it. */
#include "check.h"

static volatile pid_t ran_on;

static void handler(int signal) {
    (void)signal;
    ran_on = gettid();
}

static void *work(void *argument) {
    for (int n = 0; n < 100; n++) {
        char *at = malloc(2 * MIB);
        CHECK(at);
        fill(at, 2 * MIB, n);
        free(at);
        if (n % 20 == 0)
            sleep_ms(5);
    }
    return argument;
}

static int is_filtered(void) { return prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 0; }

int main(void) {
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGUSR1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    sleep_ms(100);
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    for (size_t n = 0; n < sizeof faults / sizeof *faults; n++) {
        int signal = faults[n];
        /* A filter may raise it on any thread that has the filter. */
        if (signal == SIGSYS && is_filtered())
            continue;
        for (int handled = 0; handled < 2; handled++) {
            struct sigaction action = {.sa_handler = handled ? handler : SIG_DFL};
            sigset_t one;
            int got = 0;
            CHECK(sigaction(signal, &action, NULL) == 0);
            CHECK(kill(getpid(), signal) == 0);
            sleep_ms(20);
            CHECK(!ran_on);
            sigemptyset(&one);
            sigaddset(&one, signal);
            CHECK(sigwait(&one, &got) == 0 && got == signal);
        }
    }
    puts("each came to the thread that waited");
    return 0;
}
