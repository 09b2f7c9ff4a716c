/* No message of the library's ends the program: it sees what becomes of its own alone. */
#include "check.h"

int main(int count, char **arguments) {
    char *block = malloc(MIB);
    CHECK(block);
    fill(block, MIB, 1);
    free(block);
    if (count > 1 && !strcmp(arguments[1], "limited")) {
        struct rlimit none = {0, 0};
        CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    }
    return 7;
}
