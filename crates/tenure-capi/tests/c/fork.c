/* A child of fork has the marks of its parent and the promises, for its own pages. */
#include "check.h"

#include <signal.h>

#define PAGES ((size_t)32)
#define LEN (PAGES * PAGE)

static void child_of_marked(unsigned char *p, struct tenure_volatile *v)
{
    /* The ranges that the parent has marked are marked here, and a page that is present has its
     * bytes. */
    CHECK(tenure_is_volatile(p, LEN) == 1);
    CHECK(tenure_mnovolatile(p, LEN) == 0);
    for (size_t i = 0; i < PAGES; i++)
        CHECK(page_is(p + i * PAGE, letter(i)));
    /* Once the child has written its own pages, the kernel can take them here and leave the
     * parent's. */
    memset(p, 'c', LEN);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_purge_now(p, LEN) == 0);
    CHECK(present(p, LEN) == 0);
    CHECK(tenure_mnovolatile(p, LEN) == 1);

    void *bytes;
    CHECK(tenure_volatile_pin(v, &bytes) == 0);
    CHECK(page_is(bytes, 'v'));
    memset(bytes, 'w', PAGE);
    CHECK(tenure_volatile_unpin(v) == 0);
    tenure_volatile_free(v);
}

static void child_of_purged(unsigned char *p)
{
    if (tenure_detection() == TENURE_DETECTION_USERFAULTFD) {
        /* A touch without an unmark raises SIGBUS in the grandchild as well. */
        pid_t grandchild = fork();
        if (grandchild == 0) {
            (void)*(volatile unsigned char *)p;
            _exit(0);
        }
        CHECK(ending(grandchild) == 128 + SIGBUS);
    }
    CHECK(tenure_mnovolatile(p, LEN) == 1);
    CHECK(page_is(p, 0));
}

int main(void)
{
    unsigned char *p = map(LEN);
    fill(p, 0, PAGES);
    struct tenure_volatile *v = tenure_volatile_new(PAGE);
    CHECK(tenure_volatile_pin(v, NULL) == 0);
    memset(tenure_volatile_address(v), 'v', PAGE);
    CHECK(tenure_volatile_unpin(v) == 0);

    for (int offered = 0; offered < 2; offered++) {
        CHECK(tenure_mvolatile(p, LEN) == 0);
        if (offered)
            CHECK(tenure_offer_now(p, LEN) == 0);
        pid_t child = fork();
        if (child == 0) {
            child_of_marked(p, v);
            _exit(0);
        }
        CHECK(ending(child) == 0);
        CHECK(tenure_mnovolatile(p, LEN) == 0);
        for (size_t i = 0; i < PAGES; i++)
            CHECK(page_is(p + i * PAGE, letter(i)));
    }
    void *bytes;
    CHECK(tenure_volatile_pin(v, &bytes) == 0 && page_is(bytes, 'v'));
    CHECK(tenure_volatile_unpin(v) == 0);

    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_purge_now(p, LEN) == 0);
    pid_t child = fork();
    if (child == 0) {
        child_of_purged(p);
        _exit(0);
    }
    CHECK(ending(child) == 0);
    CHECK(tenure_mnovolatile(p, LEN) == 1);
    tenure_volatile_free(v);
    return 0;
}
