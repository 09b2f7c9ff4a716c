/* mmap and calloc return zeros over any bytes of a former user: at once, after the memory was
 * offered, and in the new part of a growing mapping. */
#include "check.h"

static void reuse(size_t len) {
    char *dirty = map(len);
    CHECK(is_zero(dirty, len));
    memset(dirty, 0xa5, len);
    CHECK(munmap(dirty, len) == 0);
    char *clean = map(len);
    CHECK(is_zero(clean, len));
    memset(clean, 0x5a, len);
    CHECK(munmap(clean, len) == 0);
}

static void reuse_allocation(size_t len) {
    char *dirty = malloc(len);
    CHECK(dirty);
    memset(dirty, 0xa5, len);
    free(dirty);
    char *clean = calloc(len / 8, 8);
    CHECK(clean && is_zero(clean, len));
    free(clean);
}

static void grow(size_t len) {
    char *dirty = map(2 * len);
    memset(dirty, 0xa5, 2 * len);
    CHECK(munmap(dirty, 2 * len) == 0);
    char *half = map(len);
    fill(half, len, 7);
    char *whole = mremap(half, len, 2 * len, MREMAP_MAYMOVE);
    CHECK(whole != MAP_FAILED);
    CHECK(is_filled(whole, len, 7));
    CHECK(is_zero(whole + len, len));
    CHECK(munmap(whole, 2 * len) == 0);
}

int main(void) {
    static const size_t sizes[] = {64 * KIB, 100 * KIB, 1 * MIB, 2 * MIB, 5 * MIB + 4096, 40 * MIB};
    for (int round = 0; round < 4; round++) {
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            reuse(sizes[n]);
            reuse_allocation(sizes[n]);
            grow(sizes[n] & ~(size_t)4095);
        }
        if (round == 1)
            sleep_ms(1200); /* by now the kernel may take it */
    }
    puts("zeros");
    return 0;
}
