/* The kernel writes to memory without access by /proc/self/mem. The next mapping there reads as zeros. */
#include "check.h"

int main(void) {
    int memory = open("/proc/self/mem", O_RDWR);
    CHECK(memory >= 0);
    for (size_t len = 256 * KIB; len <= 4 * MIB; len *= 4) {
        char *at = map(len);
        memset(at, 7, len);
        CHECK(munmap(at, len) == 0);
        for (int is_returned = 0; is_returned < 2; is_returned++) {
            if (is_returned)
                malloc_trim(0);
            for (size_t byte = 0; byte < len; byte += len / 4)
                if (pwrite(memory, "bytes", 5, (off_t)(uintptr_t)at + byte) < 0)
                    break;
            char *next[3];
            for (int n = 0; n < 3; n++) {
                next[n] = map(len);
                CHECK(is_zero(next[n], len));
            }
            for (int n = 0; n < 3; n++)
                CHECK(munmap(next[n], len) == 0);
        }
    }
    puts("zeros");
    return 0;
}
