/* Locking: the two kinds stay apart, failures change nothing and give the reason, the whole
 * process, and mappings that are locked on fault from the start. The kernel's figures confirm
 * it. */
#include "check.h"

#include <sys/resource.h>

#define PAGES ((size_t)8)
#define LEN (PAGES * PAGE)

/* 'F' locked in full, 'o' on fault, '-' not: the mapping that holds the page, by its VmFlags. */
static char held(const void *page)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    CHECK(smaps != NULL);
    char line[4096], how = '?';
    int inside = 0;
    while (how == '?' && fgets(line, sizeof line, smaps)) {
        unsigned long from, to;
        if (strncmp(line, "VmFlags:", 8) == 0) {
            if (inside)
                how = strstr(line, " lo") == NULL ? '-' : strstr(line, " lf") != NULL ? 'o' : 'F';
        } else if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            inside = (uintptr_t)page >= from && (uintptr_t)page < to;
        }
    }
    fclose(smaps);
    return how;
}

static int held_as(const unsigned char *p, const char *expected)
{
    for (size_t i = 0; i < PAGES; i++)
        if (held(p + i * PAGE) != expected[i])
            return 0;
    return 1;
}

static void kinds(unsigned char *p)
{
    CHECK(tenure_mlock2(p, LEN, TENURE_MLOCK_ONFAULT) == 0);
    CHECK(held_as(p, "oooooooo") && present(p, LEN) == 0);
    p[PAGE] = 1;
    CHECK(present(p, LEN) == 1);
    CHECK(tenure_mlock2(p, 4 * PAGE, TENURE_MLOCK_LOCKED) == 0);
    CHECK(held_as(p, "FFFFoooo") && present(p, LEN) == 4);
    /* A lock on fault does not weaken a full lock. Clearing one kind leaves the other. */
    CHECK(tenure_mlock2(p, LEN, TENURE_MLOCK_ONFAULT) == 0);
    CHECK(held_as(p, "FFFFoooo"));
    CHECK(tenure_munlock2(p, 2 * PAGE, TENURE_MLOCK_LOCKED) == 0);
    CHECK(held_as(p, "ooFFoooo"));
    CHECK(tenure_munlock2(p, LEN, TENURE_MLOCK_ONFAULT) == 0);
    CHECK(held_as(p, "--FF----"));
    CHECK(tenure_munlock2(p, LEN, TENURE_MLOCK_LOCKED | TENURE_MLOCK_ONFAULT) == 0);
    CHECK(held_as(p, "--------"));
}

static void refused(unsigned char *p)
{
    FAILS(tenure_mlock2(p, LEN, 0), EINVAL, "not one kind");
    FAILS(tenure_mlock2(p, LEN, 3), EINVAL, "not one kind");
    FAILS(tenure_mlock2(p, 0, 1), EINVAL, "empty");
    FAILS(tenure_mlock2(p + 1, (size_t)-1, 1), EINVAL, "");
    /* As the kernel's call does, it takes the pages that the range touches. */
    CHECK(tenure_mlock2(p + PAGE - 1, 2, TENURE_MLOCK_ONFAULT) == 0);
    CHECK(held_as(p, "oo------"));
    CHECK(tenure_munlock2(p + PAGE + 7, 1, TENURE_MLOCK_ONFAULT) == 0);
    CHECK(held_as(p, "o-------"));
    CHECK(tenure_munlock2(p + PAGE - 1, 1, TENURE_MLOCK_ONFAULT) == 0);
    CHECK(held_as(p, "--------"));
    FAILS(tenure_munlock2(p, LEN, 0), EINVAL, "no kind of lock");
    FAILS(tenure_munlock2(p, LEN, 4), EINVAL, "unknown flags 0x4");
    FAILS(tenure_mlockall(0), EINVAL, "neither present nor future");
    FAILS(tenure_mlockall(MCL_ONFAULT), EINVAL, "neither present nor future");
    FAILS(tenure_mlockall(MCL_CURRENT | 64), EINVAL, "unknown flags 0x40");
    FAILS(tenure_munlockall2(0), EINVAL, "nothing is named");
    CHECK(tenure_mvolatile(p, PAGE) == 0);
    FAILS(tenure_mlock2(p, LEN, TENURE_MLOCK_ONFAULT), EINVAL, "volatile");
    CHECK(tenure_forget(p, PAGE) == 0);
    CHECK(held_as(p, "--------"));

    CHECK(tenure_mlock2(p, PAGE, TENURE_MLOCK_LOCKED) == 0);
    CHECK(munmap(p + 5 * PAGE, PAGE) == 0);
    char hole[64];
    snprintf(hole, sizeof hole, "nothing is mapped at %#lx", (unsigned long)(p + 5 * PAGE));
    FAILS(tenure_mlock2(p, LEN, TENURE_MLOCK_LOCKED), ENOMEM, hole);
    FAILS(tenure_munlock2(p, LEN, TENURE_MLOCK_LOCKED), ENOMEM, hole);
    CHECK(held_as(p, "F----?--"));
    CHECK(mmap(p + 5 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == p + 5 * PAGE);
    CHECK(tenure_munlock2(p, LEN, 3) == 0);
}

/* The limit of an ordinary user, in a child. */
static void limited(unsigned char *p)
{
    pid_t child = fork();
    if (child == 0) {
        CHECK(geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
        struct rlimit limit = {4 * PAGE, 6 * PAGE};
        CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
        CHECK(tenure_mlock2(p, 4 * PAGE, TENURE_MLOCK_ONFAULT) == 0);
        FAILS(tenure_mlock2(p, 5 * PAGE, TENURE_MLOCK_ONFAULT), ENOMEM, "locking 4096 bytes more");
        FAILS(tenure_mlock2(p, 5 * PAGE, TENURE_MLOCK_LOCKED), ENOMEM, "LimitMEMLOCK=20480");
        CHECK(held_as(p, "oooo----"));
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | TENURE_MAP_LOCKONFAULT;
        errno = 0;
        CHECK(tenure_mmap(NULL, PAGE, PROT_READ, flags, -1, 0) == MAP_FAILED && errno == EAGAIN);
        p[4 * PAGE] = 9;
        CHECK(tenure_mmap(p + 4 * PAGE, PAGE, PROT_READ, flags | MAP_FIXED, -1, 0) == MAP_FAILED);
        CHECK(p[4 * PAGE] == 9);
        FAILS(tenure_mlockall(MCL_CURRENT), ENOMEM, "RLIMIT_MEMLOCK");
        CHECK(tenure_mlockall(MCL_FUTURE | MCL_ONFAULT) == 0);
        FAILS(tenure_munlockall2(MCL_FUTURE), ENOMEM, "bytes are mapped");
        CHECK(tenure_munlockall2(MCL_FUTURE | MCL_ONFAULT) == 0);
        CHECK(held_as(p, "--------"));
        _exit(0);
    }
    CHECK(ending(child) == 0);
}

static void born(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | TENURE_MAP_LOCKONFAULT;
    unsigned char *p = tenure_mmap(NULL, LEN, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(p != MAP_FAILED && held_as(p, "oooooooo") && present(p, LEN) == 0);
    p[3 * PAGE] = 1;
    CHECK(present(p, LEN) == 1);
    unsigned char *q = tenure_mmap(p, 2 * PAGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0);
    CHECK(q == p && held_as(p, "oooooooo"));
    /* Without the flag the call is mmap. */
    q = tenure_mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(q == p && held_as(p, "-ooooooo"));
    errno = 0;
    CHECK(tenure_mmap(NULL, 0, PROT_READ, flags, -1, 0) == MAP_FAILED && errno == EINVAL);
    errno = 0;
    CHECK(tenure_mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, -1, 0) == MAP_FAILED && errno == EBADF);
    CHECK(strstr(tenure_last_error(), "mmap failed") != NULL);
    CHECK(munmap(p, LEN) == 0);
}

static char own_page; /* of the program itself */

static void everything(unsigned char *p)
{
    if (tenure_mlockall(MCL_CURRENT | MCL_ONFAULT) != 0) {
        CHECK(errno == ENOMEM && strstr(tenure_last_error(), "RLIMIT_MEMLOCK") != NULL);
        return; /* an ordinary user's limit */
    }
    CHECK(held_as(p, "oooooooo") && held(&own_page) == 'o');
    CHECK(tenure_munlockall2(MCL_ONFAULT) == 0);
    CHECK(held_as(p, "--------"));
}

int main(void)
{
    unsigned char *p = map(LEN);
    kinds(p);
    refused(p);
    limited(p);
    born();
    everything(p);
    return 0;
}
