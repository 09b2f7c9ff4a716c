/* Calls that find no memory for their own lists: they forget no purge of any page. */
#include "check.h"

#include <sys/resource.h>

#define RANGES ((size_t)3000)
#define REST ((size_t)1000)

static struct rlimit before;

/* Limits the addresses to those in use. */
static void begin_shortage(void)
{
    unsigned long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    struct rlimit now = {pages * PAGE, before.rlim_max};
    CHECK(setrlimit(RLIMIT_AS, &now) == 0);
}

static void end_shortage(void)
{
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
}

/* Many ranges that are not neighbours, and above them a range that is purged. */
static unsigned char *many_and_a_purged_one(void)
{
    unsigned char *p = map((RANGES + REST) * PAGE);
    fill(p, 0, RANGES + REST);
    for (size_t i = 0; i < RANGES; i++)
        CHECK(tenure_mvolatile_priority(p + i * PAGE, PAGE, (int)(i % 2)) == 0);
    CHECK(tenure_mvolatile_priority(p + RANGES * PAGE, REST * PAGE, 4) == 0);
    CHECK(tenure_purge_now(p + RANGES * PAGE, REST * PAGE) == 0);
    return p;
}

static void zeros(const unsigned char *p, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        CHECK(page_is(p + i * PAGE, 0));
}

/* The upper part of the purged range stays. */
static void unmap_the_lower_part(void)
{
    unsigned char *p = many_and_a_purged_one();
    begin_shortage();
    CHECK(tenure_munmap(p, (RANGES + 400) * PAGE) == 0);
    end_shortage();
    CHECK(tenure_mnovolatile(p + (RANGES + 400) * PAGE, (REST - 400) * PAGE) == 1);
    zeros(p, RANGES + 400, RANGES + REST);
    fill(p, RANGES + 400, RANGES + REST);
    CHECK(tenure_mnovolatile(p + (RANGES + 400) * PAGE, (REST - 400) * PAGE) == 0);
    CHECK(tenure_munmap(p + (RANGES + 400) * PAGE, (REST - 400) * PAGE) == 0);
}

/* The lower part of a purged range stays; ranges above it are unmapped with the upper part. */
static void unmap_the_upper_part(void)
{
    unsigned char *p = map((RANGES + REST) * PAGE);
    fill(p, 0, RANGES + REST);
    CHECK(tenure_mvolatile_priority(p, REST * PAGE, 4) == 0);
    CHECK(tenure_purge_now(p, REST * PAGE) == 0);
    for (size_t i = REST; i < RANGES + REST; i++)
        CHECK(tenure_mvolatile_priority(p + i * PAGE, PAGE, (int)(i % 2)) == 0);
    begin_shortage();
    CHECK(tenure_munmap(p + 300 * PAGE, (RANGES + REST - 300) * PAGE) == 0);
    end_shortage();
    CHECK(tenure_mnovolatile(p, 300 * PAGE) == 1);
    zeros(p, 0, 300);
    CHECK(tenure_munmap(p, 300 * PAGE) == 0);
}

/* Both ends of a purged range stay. Every second page of it was purged. */
static void unmap_the_middle(void)
{
    unsigned char *p = map(REST * PAGE);
    fill(p, 0, REST);
    CHECK(tenure_mvolatile(p, REST * PAGE) == 0);
    for (size_t i = 0; i < REST; i += 2)
        CHECK(tenure_purge_now(p + i * PAGE, PAGE) == 0);
    begin_shortage();
    CHECK(tenure_munmap(p + 300 * PAGE, 400 * PAGE) == 0);
    end_shortage();
    CHECK(tenure_mnovolatile(p, 300 * PAGE) == 1);
    CHECK(tenure_mnovolatile(p + 700 * PAGE, 300 * PAGE) == 1);
    for (size_t i = 0; i < 300; i++) {
        CHECK(page_is(p + i * PAGE, i % 2 == 0 ? 0 : letter(i)));
        const size_t j = i + 700;
        /* A page that was not purged may count as lost. Then it reads as zeros or as before. */
        CHECK(page_is(p + j * PAGE, 0) || (j % 2 != 0 && page_is(p + j * PAGE, letter(j))));
    }
    CHECK(tenure_munmap(p, 300 * PAGE) == 0);
    CHECK(tenure_munmap(p + 700 * PAGE, 300 * PAGE) == 0);
}

/* A forget that fails has reported no purge, so the next unmark does. `takes`: so many blocks of
 * memory are taken first, to reach each way to fail. */
static int forget_fails(size_t takes)
{
    enum { FILLERS = 450, GAP = 21 };
    unsigned char *p = map(4 * PAGE), *f = map(FILLERS * GAP * PAGE);
    fill(p, 0, 4);
    fill(f, 0, FILLERS * GAP);
    for (size_t i = 0; i < 4; i++)
        CHECK(tenure_mvolatile_priority(p + i * PAGE, PAGE, (int)(i % 2)) == 0);
    CHECK(tenure_purge_now(p, 4 * PAGE) == 0);
    for (size_t i = 0; i < FILLERS; i++)
        CHECK(tenure_mvolatile(f + i * GAP * PAGE, 20 * PAGE) == 0);
    begin_shortage();
    size_t offered = 0;
    while (offered < FILLERS && tenure_offer_now(f + offered * GAP * PAGE, 20 * PAGE) == 0)
        offered++;
    for (size_t i = 0; i < takes && i < offered; i++)
        CHECK(tenure_mnovolatile(f + i * GAP * PAGE, 20 * PAGE) >= 0);
    const int failed = tenure_forget(p, 4 * PAGE) != 0;
    CHECK(!failed || errno == ENOMEM);
    end_shortage();
    if (failed)
        CHECK(tenure_mnovolatile(p, 4 * PAGE) == 1);
    zeros(p, 0, 4);
    CHECK(tenure_munmap(p, 4 * PAGE) == 0);
    CHECK(tenure_munmap(f, FILLERS * GAP * PAGE) == 0);
    return failed;
}

int main(void)
{
    unmap_the_lower_part();
    unmap_the_upper_part();
    unmap_the_middle();
    for (size_t takes = 0; takes < 5; takes++)
        (void)forget_fails(takes);
    return 0;
}
