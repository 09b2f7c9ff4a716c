/* A program leaves a handler of purged touches by siglongjmp, as language runtimes do. The next
 * touch must work as the first one did, also on a thread that blocks all signals that it does
 * not raise itself. */
#include "check.h"

#include <setjmp.h>
#include <signal.h>

#define PAGES ((size_t)4)
#define LEN (PAGES * PAGE)

static unsigned char *p;
#define TOUCH(at) (*(volatile unsigned char *)(p + (at)))
static sigjmp_buf out;
static volatile int calls;

static int leave(void *address, void *range, size_t len)
{
    (void)address, (void)range, (void)len;
    calls++;
    siglongjmp(out, 1);
}

static int put_back(void *address, void *range, size_t len)
{
    (void)address;
    calls++;
    if (tenure_mnovolatile(range, len) < 0)
        return 0;
    memset(range, 'R', len);
    return 1;
}

/* Further down the stack than the handler that the program has left. */
static __attribute__((noinline)) unsigned char touch_from_below(void)
{
    volatile unsigned char below[64 * 1024];
    below[0] = TOUCH(PAGE);
    return below[0];
}

int main(void)
{
    NEED_SIGBUS();
    p = map(LEN);
    CHECK(tenure_on_purged_access(leave) == 0);
    for (int round = 1; round <= 6; round++) {
        if (round == 4) {
            sigset_t others;
            sigfillset(&others);
            sigdelset(&others, SIGBUS);
            CHECK(sigprocmask(SIG_BLOCK, &others, NULL) == 0);
        }
        fill(p, 0, PAGES);
        CHECK(tenure_mvolatile(p, LEN) == 0);
        CHECK(tenure_purge_now(p, LEN) == 0);
        if (sigsetjmp(out, 1) == 0) {
            if (round == 2)
                (void)touch_from_below();
            (void)TOUCH(PAGE);
            CHECK(!"the handler was due");
        }
        CHECK(calls == round);
        /* The interrupted call holds no lock. */
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        CHECK(ending(child) == 0);
        CHECK(tenure_mnovolatile(p, LEN) == 1);
    }
    fill(p, 0, PAGES);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_purge_now(p, LEN) == 0);
    CHECK(tenure_on_purged_access(put_back) == 0);
    CHECK(TOUCH(2 * PAGE) == 'R');
    CHECK(calls == 7);
    CHECK(tenure_forget(p, LEN) == 0);
    return 0;
}
