/* A program with one thread maps again what it has unmapped: nothing of tenure's lies there. */
#include "check.h"

#define LEN (256 * MIB)
#define ROUNDS 6
#define STEP (MIB / 4)

/* A byte of each quarter MiB: a page fault takes microseconds. */
static void touch(unsigned char *p, size_t len, unsigned char value)
{
    for (size_t at = 0; at < len; at += STEP)
        p[at] = value;
}

static void fill_again(unsigned char *p)
{
    usleep(2000);
    CHECK(mmap(p, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
    touch(p, LEN, 0xA5);
}

/* `first`: the program's own munmap makes the hole, before tenure starts its threads. */
static void child(int first)
{
    unsigned char *hole = map(LEN), *other = map(64 * MIB);
    touch(other, 64 * MIB, 1);
    touch(hole, LEN, 1);
    if (first)
        CHECK(munmap(hole, LEN) == 0);
    CHECK(tenure_munmap(first ? other : hole, first ? 64 * MIB : LEN) == 0);
    fill_again(hole);
    unsigned char *v = map(MIB);
    fill(v, 0, MIB / PAGE);
    CHECK(tenure_mvolatile(v, MIB) == 0);
    CHECK(tenure_purge_now(v, MIB) == 0);
    CHECK(tenure_mnovolatile(v, MIB) == 1);
    CHECK(tenure_munmap_drain(10000) == 0);
    CHECK(ends());
    for (size_t at = 0; at < LEN; at += STEP)
        CHECK(hole[at] == 0xA5);
    _exit(0);
}

int main(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        fflush(NULL);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            child(round % 2);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        if (status != 0)
            fprintf(stderr, "round %d: %d\n", round, status);
        CHECK(status == 0);
    }
    return 0;
}
