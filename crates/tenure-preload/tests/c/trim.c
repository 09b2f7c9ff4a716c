/* malloc_trim gives all free memory back, of the heap and of the pool, and mallinfo counts large
 * blocks. */
#include "check.h"

static size_t resident(void) {
    unsigned long all, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu %lu", &all, &pages) == 2);
    fclose(file);
    return pages * 4096;
}

int main(void) {
    enum { BLOCKS = 12 };
    const size_t len = 8 * MIB;
    char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(len);
        CHECK(blocks[i]);
        fill(blocks[i], len, i);
    }
    struct mallinfo2 used = mallinfo2();
    CHECK(used.hblkhd + used.arena >= BLOCKS * len);
    for (int i = 1; i < BLOCKS; i++)
        free(blocks[i]);
    malloc_trim(0);
    CHECK(resident() < 3 * len);
    struct mallinfo2 freed = mallinfo2();
    CHECK(freed.hblkhd + freed.arena < 3 * len);
    CHECK(is_filled(blocks[0], len, 0));
    free(blocks[0]);
    malloc_trim(0);
    malloc_trim(1 << 20);
    CHECK(resident() < len);
    puts("done");
    return 0;
}
