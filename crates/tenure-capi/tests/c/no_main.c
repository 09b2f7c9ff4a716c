/* After the main thread has ended /proc/self shows a process without memory. The other threads
 * continue. */
#include "check.h"

#include <pthread.h>

#define PAGES ((size_t)2048)
#define LEN (PAGES * PAGE)

static pthread_t first;

static int main_has_ended(void)
{
    char text[4096];
    FILE *file = fopen("/proc/self/stat", "r");
    CHECK(file != NULL && fgets(text, sizeof text, file) != NULL);
    fclose(file);
    const char *name_end = strrchr(text, ')');
    CHECK(name_end != NULL);
    return name_end[2] == 'Z';
}

static void *goes_on(void *arg)
{
    (void)arg;
    CHECK(pthread_join(first, NULL) == 0);
    while (!main_has_ended())
        usleep(1000);

    unsigned char *p = map(LEN);
    fill(p, 0, PAGES);
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_offer_now(p, LEN) == 0);
    CHECK(tenure_mnovolatile(p, LEN) == 0);
    for (size_t i = 0; i < PAGES; i++)
        CHECK(page_is(p + i * PAGE, letter(i)));
    CHECK(tenure_mvolatile(p, LEN) == 0);
    CHECK(tenure_purge_now(p, 8 * PAGE) == 0);
    CHECK(present(p, LEN) == PAGES - 8);
    CHECK(tenure_mnovolatile(p, LEN) == 1);
    CHECK(page_is(p, 0) && page_is(p + 8 * PAGE, letter(8)));

    struct tenure_stats stats;
    CHECK(tenure_munmap(p, LEN) == 0);
    CHECK(tenure_stats(&stats, sizeof stats) == 0);
    CHECK(stats.total_retired_moved_bytes == LEN);
    CHECK(tenure_munmap_drain(10000) == 0);
    exit(0);
}

int main(void)
{
    pthread_t thread;
    first = pthread_self();
    struct tenure_retire_settings settings;
    CHECK(tenure_retire_settings(&settings, sizeof settings) == 0);
    settings.min_bytes = MIB;
    CHECK(tenure_retire_configure(&settings) == 0);
    CHECK(pthread_create(&thread, NULL, goes_on, NULL) == 0);
    pthread_exit(NULL);
}
