/* Touching a purged page: SIGBUS with the address, and a handler that puts the page back or
 * passes the signal to the program's own handler. */
#include "check.h"

#include <setjmp.h>
#include <signal.h>

#define PAGES ((size_t)16)
#define LEN (PAGES * PAGE)

static unsigned char *p;
/* An access that the compiler neither moves nor leaves out, because the test depends on it. */
#define TOUCH(at) (*(volatile unsigned char *)(p + (at)))
static sigjmp_buf out;
static void *volatile own_saw;
static volatile int own_calls;

static void own_handler(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    own_saw = info->si_addr;
    own_calls++;
    siglongjmp(out, 1);
}

static volatile int calls;
static unsigned char *volatile touched, *volatile start;
static volatile size_t length;

static int put_back(void *address, void *range, size_t len)
{
    calls++;
    touched = address, start = range, length = len;
    if (tenure_mnovolatile(range, len) != 1)
        return 0;
    memset((unsigned char *)((uintptr_t)address & ~(uintptr_t)(PAGE - 1)), 'R', PAGE);
    return 1;
}

static int decline(void *address, void *range, size_t len)
{
    (void)address, (void)range, (void)len;
    calls++;
    return 0;
}

static void purge(void)
{
    fill(p, 0, PAGES);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_purge_now(p, LEN) == 0);
}

/* The program's own handler gets the signal of a touch, with the address. */
static void own_gets(size_t at)
{
    own_calls = 0;
    if (sigsetjmp(out, 1) == 0) {
        unsigned char byte = TOUCH(at);
        fprintf(stderr, "read %d where SIGBUS was due\n", byte);
        exit(1);
    }
    CHECK(own_calls == 1 && own_saw == p + at);
}

int main(void)
{
    NEED_SIGBUS();
    p = map(LEN);
    purge();

    /* Tenure installs a handler only if the program asks for it. */
    struct sigaction action;
    CHECK(sigaction(SIGBUS, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    pid_t child = fork();
    if (child == 0) {
        (void)TOUCH(5);
        _exit(0);
    }
    CHECK(ending(child) == 128 + SIGBUS);

    memset(&action, 0, sizeof action);
    action.sa_sigaction = own_handler;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    own_gets(3 * PAGE + 17);

    /* NULL without a handler before: still no handler is installed. */
    CHECK(tenure_on_purged_access(NULL) == 0);
    CHECK(sigaction(SIGBUS, NULL, &action) == 0 && action.sa_sigaction == own_handler);

    CHECK(tenure_on_purged_access(put_back) == 0);
    errno = 12345;
    CHECK(TOUCH(4 * PAGE + 100) == 'R');
    CHECK(errno == 12345);
    CHECK(calls == 1 && own_calls == 1);
    CHECK(touched == p + 4 * PAGE + 100 && start == p && length == LEN);
    CHECK(page_is(p + 4 * PAGE, 'R') && page_is(p + 5 * PAGE, 0));

    /* A write, too. */
    purge();
    TOUCH(7 * PAGE) = 'W';
    CHECK(calls == 2 && TOUCH(7 * PAGE) == 'W' && TOUCH(7 * PAGE + 1) == 'R');

    /* A system call raises no signal: it fails. */
    purge();
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    CHECK(write(pipes[1], p, PAGE) == -1 && errno == EFAULT);
    CHECK(calls == 2);

    /* A handler that declines passes the signal on. Without a handler the signal goes on, too. */
    CHECK(tenure_on_purged_access(decline) == 0);
    own_gets(9 * PAGE);
    CHECK(calls == 3);
    CHECK(tenure_on_purged_access(NULL) == 0);
    own_gets(9 * PAGE);
    CHECK(calls == 3);

    /* A SIGBUS for other memory goes to the program's handler. */
    CHECK(tenure_on_purged_access(put_back) == 0);
    char name[] = "/tmp/tenure-sigbus-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    unsigned char *file = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(file != MAP_FAILED);
    if (sigsetjmp(out, 1) == 0) {
        (void)*(volatile unsigned char *)file; /* past the end of the file */
        CHECK(!"SIGBUS was due");
    }
    CHECK(own_saw == file && calls == 3);

    CHECK(tenure_forget(p, LEN) == 0);
    return 0;
}
