/* What programs learn of glibc's malloc by asking: sizes, and how its heap grows and shrinks. */
#include "check.h"

static char *blocks[100];

int main(void) {
    /* A large block that is freed lets the heap keep more. */
    char *large = malloc(30 * MIB);
    memset(large, 1, 30 * MIB);
    free(large);
    char *top = NULL;
    for (int round = 0; round < 3; round++) {
        for (int n = 0; n < 100; n++) {
            blocks[n] = malloc(60000);
            memset(blocks[n], round, 60000);
        }
        char *highest = sbrk(0);
        CHECK(!top || highest == top);
        top = highest;
        for (int n = 99; n >= 0; n--)
            free(blocks[n]);
        CHECK(sbrk(0) == top);
    }
    /* Some programs add up what malloc_usable_size says, and hold to a limit. */
    for (size_t size = 100 * KIB; size < 64 * MIB; size += size / 3) {
        char *at = malloc(size);
        size_t usable = malloc_usable_size(at);
        CHECK(usable >= size && usable <= size + 12 * KIB);
        memset(at, 1, usable);
        at = realloc(at, size + size / 3);
        usable = malloc_usable_size(at);
        CHECK(usable >= size + size / 3 && usable <= size + size / 3 + 12 * KIB);
        at = realloc(at, size / 2);
        usable = malloc_usable_size(at);
        CHECK(usable >= size / 2 && usable <= size / 2 + 12 * KIB);
        free(at);
    }
    puts("as glibc");
    return 0;
}
