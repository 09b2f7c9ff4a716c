/* Marking, discarding and unmarking ranges: the pages that stay, the pages that go, and the
 * reports. */
#include "check.h"

#define PAGES ((size_t)64)
#define LEN (PAGES * PAGE)

static void intact(unsigned char *p)
{
    fill(p, 0, PAGES);
    CHECK(tenure_is_volatile(p, LEN) == 0);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_is_volatile(p, LEN) == 1);
    CHECK(tenure_mnovolatile(p, LEN) == 0);
    CHECK(tenure_is_volatile(p, LEN) == 0);
    /* Offered, but not purged. */
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_offer_now(p, LEN) == 0);
    CHECK(tenure_mnovolatile(p, LEN) == 0);
    for (size_t i = 0; i < PAGES; i++)
        CHECK(page_is(p + i * PAGE, letter(i)));
}

struct seen {
    size_t lowest, highest, bytes;
};

static void gone(size_t offset, size_t len, void *arg)
{
    struct seen *seen = arg;
    seen->lowest = offset < seen->lowest ? offset : seen->lowest;
    seen->highest = offset + len > seen->highest ? offset + len : seen->highest;
    seen->bytes += len;
}

static void purged(unsigned char *p)
{
    const size_t from = 16, to = 40;
    fill(p, 0, PAGES);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_purge_now(p + from * PAGE, (to - from) * PAGE) == 0);
    /* These pages have really gone, and no others. */
    CHECK(present(p + from * PAGE, (to - from) * PAGE) == 0);
    CHECK(present(p, from * PAGE) == from);
    CHECK(present(p + to * PAGE, (PAGES - to) * PAGE) == PAGES - to);

    struct seen seen = {SIZE_MAX, 0, 0};
    CHECK(tenure_mnovolatile_map(p, LEN, gone, &seen) == 1);
    CHECK(seen.lowest == from * PAGE && seen.highest == to * PAGE);
    CHECK(seen.bytes == (to - from) * PAGE);
    for (size_t i = 0; i < PAGES; i++)
        CHECK(page_is(p + i * PAGE, i >= from && i < to ? 0 : letter(i)));
    /* Purged pages are ordinary memory again. */
    fill(p, from, to);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_mnovolatile(p, LEN) == 0);
    CHECK(page_is(p + from * PAGE, letter(from)));
    /* Without a callback the result is equal. */
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_purge_now(p, LEN) == 0);
    CHECK(tenure_mnovolatile_map(p, LEN, NULL, NULL) == 1);
    CHECK(tenure_mnovolatile(p, LEN) == 0);
}

static void parts(unsigned char *p)
{
    fill(p, 0, PAGES);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_mnovolatile(p + 8 * PAGE, 8 * PAGE) == 0);
    CHECK(tenure_is_volatile(p + 7 * PAGE, PAGE) == 1);
    CHECK(tenure_is_volatile(p + 8 * PAGE, 8 * PAGE) == 0);
    CHECK(tenure_is_volatile(p + 15 * PAGE, 2 * PAGE) == 1);
    CHECK(tenure_purge_now(p, LEN) == 0);
    /* Pages that are not volatile stay. */
    for (size_t i = 8; i < 16; i++)
        CHECK(page_is(p + i * PAGE, letter(i)));
    CHECK(present(p, LEN) == 8);
    CHECK(tenure_mnovolatile(p, 8 * PAGE) == 1);
    CHECK(tenure_mnovolatile(p + 8 * PAGE, 8 * PAGE) == 0);
    CHECK(tenure_mnovolatile(p, LEN) == 1);
    CHECK(tenure_mnovolatile(p, LEN) == 0);
}

/* A page that was not touched has lost nothing. */
static void untouched(void)
{
    unsigned char *p = map(LEN);
    p[0] = 9;
    CHECK(tenure_mvolatile_priority(p, LEN, TENURE_PRIORITY_LOWEST) == 0);
    CHECK(tenure_offer_now(p, LEN) == 0);
    CHECK(tenure_mnovolatile(p, LEN) == 0);
    CHECK(p[0] == 9 && p[LEN - 1] == 0);
    CHECK(tenure_forget(p, LEN) == 0);
    CHECK(munmap(p, LEN) == 0);
}

static void forgotten(unsigned char *p)
{
    struct tenure_stats before, after;
    CHECK(tenure_stats(&before, sizeof before) == 0);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_forget(p, LEN) == 0);
    CHECK(tenure_is_volatile(p, LEN) == 0);
    CHECK(tenure_stats(&after, sizeof after) == 0);
    CHECK(after.ranges < before.ranges);
    CHECK(munmap(p, LEN) == 0);
}

int main(void)
{
    unsigned char *p = map(LEN);
    intact(p);
    purged(p);
    parts(p);
    untouched();
    forgotten(p);
    return 0;
}
