/* A mapping for which the program asks for huge pages gets them, also if the huge pages of the
 * former one were split. */
#include "check.h"

static long huge_kib(char *at) {
    char line[300];
    unsigned long from, to;
    long kib = -1;
    int here = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        if (strchr(line, '-') && sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = (unsigned long)at >= from && (unsigned long)at < to;
        if (here && sscanf(line, "AnonHugePages: %ld", &kib) == 1)
            break;
    }
    fclose(file);
    return kib;
}

int main(void) {
    const size_t huge = 2 * MIB, len = 4 * MIB;
    for (int n = 0; n < 6; n++) {
        char *at = map(len);
        char *start = (char *)(((uintptr_t)at + huge - 1) & ~(huge - 1));
        CHECK(madvise(start, huge, MADV_HUGEPAGE) == 0);
        memset(start, n, huge);
        printf("round %d: %ld kB\n", n, huge_kib(start));
        /* The kernel splits them, for lack of memory or in a child. */
        CHECK(madvise(start, huge, MADV_PAGEOUT) == 0);
        for (size_t page = 0; page < huge; page += 4096)
            CHECK(start[page] == n);
        CHECK(munmap(at, len) == 0);
    }
    return 0;
}
