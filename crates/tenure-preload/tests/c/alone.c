/* A program with one thread keeps one: the thread that frees memory also offers it. A worker
 * starts only if there are other threads, or if the program offers so much that a worker pays. */
#include "check.h"
#include <dirent.h>

static int threads(void) {
    int count = 0;
    DIR *dir = opendir("/proc/self/task");
    CHECK(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static long lazyfree_kib(void) {
    char line[256];
    long kib = 0, all = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "LazyFree: %ld", &kib) == 1)
            all += kib;
    fclose(file);
    return all;
}

static void use(size_t len, int owner) {
    char *block = malloc(len);
    CHECK(block);
    fill(block, len, owner);
    CHECK(is_filled(block, len, owner));
    free(block);
}

static void *nothing(void *argument) { return argument; }

static void waits_for(int count) {
    for (int tries = 0; threads() < count; tries++) {
        CHECK(tries < 5000);
        use(4 * MIB, tries);
        sleep_ms(2);
    }
}

int main(int argc, char **argv) {
    int served = argc > 1;
    /* 8 MiB every 40 ms: 200 MiB a second. */
    for (int round = 0; round < 20; round++) {
        use(8 * MIB, round);
        use(300 * KIB, round);
        sleep_ms(40);
    }
    CHECK(threads() == 1);
    if (served)
        CHECK(lazyfree_kib() >= 6 * 1024);
    if (served && !strcmp(argv[1], "threaded")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        waits_for(2);
    }
    if (served && !strcmp(argv[1], "busy")) {
        for (int round = 0; threads() < 2; round++) {
            CHECK(round < 20000);
            /* So it frees enough a second on a busy machine, too. */
            char *block = malloc(8 * MIB);
            CHECK(block);
            for (size_t at = 0; at < 8 * MIB; at += MIB)
                block[at] = (char)round;
            free(block);
        }
    }
    puts("done");
    return 0;
}
