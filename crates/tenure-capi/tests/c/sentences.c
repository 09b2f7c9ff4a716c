/* A signal handler fails while the call that it interrupts writes its sentence. Each sentence is whole. */
#include "check.h"

#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t handled;

static void fails(int signal)
{
    (void)signal;
    CHECK(tenure_volatile_new(0) == NULL);
    handled++;
}

static void keep(char *text, int (*call)(void))
{
    CHECK(call() == -1);
    snprintf(text, 2048, "%s", tenure_last_error());
    CHECK(text[0] != 0);
}

static int by_the_handler(void)
{
    return tenure_volatile_new(0) == NULL ? -1 : 0;
}

static int by_main(void)
{
    return tenure_volatile_pin(NULL, NULL);
}

int main(void)
{
    static char handlers[2048], mains[2048];
    keep(handlers, by_the_handler);
    keep(mains, by_main);
    CHECK(strcmp(handlers, mains) != 0);
    CHECK(signal(SIGALRM, fails) != SIG_ERR);
    struct itimerval often = {{0, 100}, {0, 100}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    while (handled < 3000) {
        CHECK(by_main() == -1);
        CHECK(sigprocmask(SIG_BLOCK, &alarms, NULL) == 0);
        const char *last = tenure_last_error();
        CHECK(strcmp(last, mains) == 0 || strcmp(last, handlers) == 0);
        CHECK(sigprocmask(SIG_UNBLOCK, &alarms, NULL) == 0);
    }
    return 0;
}
