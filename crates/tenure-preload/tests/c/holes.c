/* The addresses that a program with one thread has unmapped stay free: the library maps nothing
 * there, and the program's later mappings there stay. */
#include "check.h"

enum { HOLES = 6 };
static const size_t size[HOLES] = {16 * KIB, 512 * KIB, 4 * MIB, 64 * MIB, 256 * MIB, 3072 * MIB};
static char *hole[HOLES];

static int is_free(char *at, size_t len) {
    errno = 0;
    return msync(at, 4096, MS_ASYNC) == -1 && errno == ENOMEM &&
           msync(at + len - 4096, 4096, MS_ASYNC) == -1 && errno == ENOMEM;
}

/* Checks that no line of the list of mappings lies in a hole. */
static void no_hole_is_used(void) {
    static char text[1 << 20];
    int file = open("/proc/self/maps", O_RDONLY);
    size_t len = 0;
    ssize_t got;
    while ((got = read(file, text + len, sizeof text - 1 - len)) > 0)
        len += (size_t)got;
    close(file);
    text[len] = 0;
    for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        unsigned long from, to;
        CHECK(sscanf(line, "%lx-%lx", &from, &to) == 2);
        for (int n = 0; n < HOLES; n++)
            if (hole[n] && from < (unsigned long)hole[n] + size[n] && to > (unsigned long)hole[n]) {
                fprintf(stderr, "in hole %d: %.*s\n", n, (int)strcspn(line, "\n"), line);
                _exit(1);
            }
    }
}

/* Makes the library's threads start and work. */
static void use_large_memory(size_t len) {
    char *block = malloc(8 * MIB);
    CHECK(block);
    fill(block, 8 * MIB, 1);
    free(block);
    char *mapped = map(len);
    for (size_t at = 0; at < len; at += 4096)
        mapped[at] = 1;
    CHECK(munmap(mapped, len) == 0);
}

int main(void) {
    /* A page stays between two holes, so that no mapping of this program fits into both. */
    for (int n = 0; n < HOLES; n++) {
        hole[n] = mmap(NULL, size[n] + 4096, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
        CHECK(hole[n] != MAP_FAILED);
    }
    /* The program's own mappings would take the large holes, so those are tried one by one
     * below. */
    for (int n = 0; n < 3; n++)
        CHECK(munmap(hole[n], size[n]) == 0);
    char *large[HOLES] = {0};
    for (int n = 3; n < HOLES; n++) {
        large[n] = hole[n];
        hole[n] = NULL;
    }
    for (int round = 0; round < 20; round++) {
        use_large_memory(5 * MIB);
        sleep_ms(5);
        no_hole_is_used();
    }
    for (int n = 3; n < HOLES; n++) {
        use_large_memory(32 * MIB);
        hole[n] = large[n];
        CHECK(munmap(hole[n], size[n]) == 0);
        for (int round = 0; round < 20; round++) {
            sleep_ms(5);
            no_hole_is_used();
        }
        CHECK(is_free(hole[n], size[n]));
        CHECK(mmap(hole[n], size[n], RW, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0) == hole[n]);
        fill(hole[n], MIB, (uint64_t)n);
        use_large_memory(32 * MIB);
        sleep_ms(50);
        CHECK(is_filled(hole[n], MIB, (uint64_t)n));
        hole[n] = NULL;
    }
    puts("done");
    return 0;
}
