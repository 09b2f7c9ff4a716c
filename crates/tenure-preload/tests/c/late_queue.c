/* Blocks that are freed and allocated again. */
#include "check.h"

int main(void) {
    for (int n = 0; n < 50; n++) {
        char *block = malloc(4 * MIB);
        memset(block, 1, 4 * MIB);
        free(block);
    }
    return 0;
}
