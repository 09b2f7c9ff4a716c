/* A program that is not position-independent and takes malloc's address. The loader then gives
 * the address of the program's call stub to all libraries, but the program has no malloc of its
 * own. */
#include "check.h"

int main(void) {
    void *(*volatile allocate)(size_t) = malloc;
    void (*volatile release)(void *) = free;
    for (int n = 0; n < 25; n++) {
        char *at = allocate(3 * MIB);
        CHECK(at);
        fill(at, 3 * MIB, n);
        CHECK(is_filled(at, 3 * MIB, n));
        release(at);
    }
    puts("taken");
    return 0;
}
