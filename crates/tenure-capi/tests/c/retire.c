/* tenure_munmap: the addresses are free at once, and the memory is given back later. */

#include "check.h"

#include <sys/syscall.h>

#define LEN (64 * MIB)

static int is_mapped(const void *at)
{
    unsigned char vector;
    return mincore((void *)(uintptr_t)at, PAGE, &vector) == 0;
}

static unsigned char *filled(void)
{
    unsigned char *at = map(LEN);
    fill(at, 0, LEN / PAGE);
    return at;
}

static struct tenure_stats now(void)
{
    struct tenure_stats stats;
    CHECK(tenure_stats(&stats, sizeof stats) == 0);
    return stats;
}

int main(void)
{
    /* Before any preparation: the call works in slices, and the range is unmapped all the same. */
    struct tenure_retire_settings settings;
    CHECK(tenure_retire_settings(&settings, sizeof settings) == 0);
    CHECK(settings.size == sizeof settings && settings.longest_stall_us == 1000);
    CHECK(settings.pending_max == TENURE_PENDING_AUTOMATIC);
    CHECK(settings.files == TENURE_FILES_AT_ONCE);
    settings.min_bytes = MIB;
    CHECK(tenure_retire_configure(&settings) == 0);
    unsigned char *at = filled();
    CHECK(tenure_munmap_raw(at, LEN) == 0);
    CHECK(!is_mapped(at) && !is_mapped(at + LEN - PAGE));
    CHECK(now().total_retired_in_slices_bytes == LEN && now().total_retired_moved == 0);

    /* The plain call prepares by itself, and so does the first call in a child. */
    pid_t first = fork();
    if (first == 0) {
        at = filled();
        /* The thread that the call starts may have mapped memory there by now. */
        CHECK(tenure_munmap(at, LEN) == 0);
        CHECK(now().total_retired_moved_bytes == LEN);
        CHECK(tenure_munmap_drain(10000) == 0);
        _exit(0);
    }
    CHECK(ending(first) == 0);
    CHECK(tenure_munmap_prepare() == 0);
    at = filled();
    unsigned char *other = filled();
    errno = 4711;
    CHECK(tenure_munmap(at, LEN - 5) == 0);
    CHECK(errno == 4711);
    CHECK(!is_mapped(at) && !is_mapped(at + LEN - PAGE));
    CHECK(now().total_retired_moved_bytes == LEN);
    CHECK(tenure_munmap_drain(-1) == 0);
    CHECK(now().retiring_bytes == 0 && now().retiring == 0);
    CHECK(now().total_torn_down_bytes == LEN);
    for (size_t page = 0; page < LEN / PAGE; page++)
        CHECK(page_is(other + page * PAGE, letter(page)));

    /* munmap's own errors. They change nothing. */
    errno = 0;
    CHECK(tenure_munmap_raw(other + 1, LEN) == -1 && errno == EINVAL);
    FAILS(tenure_munmap(other + 1, LEN), EINVAL, "does not start at a page");
    errno = 0;
    CHECK(tenure_munmap(other, 0) == -1 && errno == EINVAL);
    errno = 0;
    CHECK(tenure_munmap(other, (size_t)-1) == -1 && errno == EINVAL);
    for (size_t page = 0; page < LEN / PAGE; page++)
        CHECK(page_is(other + page * PAGE, letter(page)));

    /* A child begins without waiting memory, and may retire, too. */
    at = filled();
    CHECK(tenure_munmap(at, LEN) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(now().retiring_bytes == 0 || tenure_munmap_drain(0) == 0);
        const uint64_t moved = now().total_retired_moved_bytes;
        CHECK(tenure_munmap(other, LEN) == 0 && !is_mapped(other));
        CHECK(now().total_retired_moved_bytes == moved + LEN);
        CHECK(tenure_munmap_drain(10000) == 0);
        _exit(0);
    }
    CHECK(ending(child) == 0);
    CHECK(page_is(other, letter(0)));
    CHECK(tenure_munmap(other, LEN) == 0);
    CHECK(tenure_munmap_drain(10000) == 0);

    settings.files = 7;
    FAILS(tenure_retire_configure(&settings), EINVAL, "TENURE_FILES_LATER");
    FAILS(tenure_retire_configure(NULL), EINVAL, "settings");
    return 0;
}
