/* A process that ends tenure's threads has one thread in the kernel's view, and its memory is
 * unchanged. */
#include "check.h"

#include <dirent.h>
#include <sched.h>

#define PAGES ((size_t)1024)
#define LEN (PAGES * PAGE)

static int threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    int count = 0;
    for (struct dirent *task; (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

int main(void)
{
    CHECK(ends());
    CHECK(threads() == 1);
    for (int round = 0; round < 20; round++) {
        unsigned char *p = map(LEN), *q = map(LEN);
        fill(p, 0, PAGES);
        fill(q, 0, PAGES);
        CHECK(tenure_mvolatile(p, LEN) == 0);
        if (round % 2 == 0)
            CHECK(tenure_offer_now(p, LEN) == 0);
        struct tenure_retire_settings settings;
        CHECK(tenure_retire_settings(&settings, sizeof settings) == 0);
        settings.min_bytes = MIB;
        CHECK(tenure_retire_configure(&settings) == 0);
        CHECK(tenure_munmap(q, LEN) == 0);
        CHECK(threads() > 1);

        CHECK(ends());
        CHECK(threads() == 1);
        struct tenure_stats stats;
        CHECK(tenure_stats(&stats, sizeof stats) == 0);
        CHECK(stats.retiring_bytes == 0);
        CHECK(tenure_mnovolatile(p, LEN) >= 0);
        for (size_t page = 0; page < PAGES; page++)
            CHECK(page_is(p + page * PAGE, letter(page)));
        CHECK(munmap(p, LEN) == 0);
    }
    /* A call that the kernel refuses to a process with two threads. */
    CHECK(tenure_munmap_prepare() == 0);
    CHECK(ends());
    CHECK(unshare(CLONE_THREAD) == 0);

    /* The threads start again. */
    unsigned char *p = map(LEN);
    fill(p, 0, PAGES);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(threads() > 1);
    CHECK(tenure_purge_now(p, PAGE) == 0);
    CHECK(tenure_mnovolatile(p, LEN) == 1);
    return 0;
}
