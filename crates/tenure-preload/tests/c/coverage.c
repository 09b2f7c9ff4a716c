/* Makes a number of calls that the library sees, and a number that it does not see. */
#include "check.h"

int main(void) {
    for (int n = 0; n < 30; n++) {
        char *at = map(4 * MIB);
        memset(at, 1, 4 * MIB);
        munmap(at, 4 * MIB);
    }
    for (int n = 0; n < 500; n++) {
        void *at = (void *)syscall(SYS_mmap, NULL, 4096, RW, ANON, -1, 0);
        syscall(SYS_munmap, at, 4096);
    }
    for (int n = 0; n < 20; n++) {
        char *block = malloc(1 * MIB);
        memset(block, 1, 1 * MIB);
        free(block);
    }
    puts("covered");
    return 0;
}
