/* Frees blocks whose pages are in swap, as many as make the pool give memory back. (Where there is
 * no swap, the pages stay in memory.) */
#include "check.h"

enum { BLOCKS = 128 };

int main(void) {
    char *blocks[BLOCKS];
    for (int round = 0; round < 8; round++) {
        for (int n = 0; n < BLOCKS; n++) {
            CHECK(blocks[n] = malloc(MIB));
            fill(blocks[n], MIB, n);
            uintptr_t first = ((uintptr_t)blocks[n] + 4095) & ~(uintptr_t)4095;
            CHECK(madvise((void *)first, MIB - 4096, MADV_PAGEOUT) == 0);
        }
        for (int n = 0; n < BLOCKS; n++) {
            CHECK(is_filled(blocks[n], 4096, n));
            free(blocks[n]);
        }
    }
    puts("all blocks are freed");
    return 0;
}
