/* Allocates, and writes its state over its arguments, as servers do for ps. */
#include "check.h"

int main(int count, char **arguments) {
    (void)count;
    for (int n = 0; n < 4; n++) {
        free(memset(malloc(MIB), 1, MIB));
        CHECK(munmap(memset(map(4 * MIB), 1, 4 * MIB), 4 * MIB) == 0);
    }
    memset(arguments[0], 'x', strlen(arguments[0]));
    puts("done");
    return 0;
}
