/* Loads plugins. If one of them waits for ever, the test kills the program. */
#include "check.h"
#include <dlfcn.h>

int main(int count, char **names) {
    for (int n = 1; n < count; n++) {
        CHECK(dlopen(names[n], RTLD_NOW));
        puts("loaded");
    }
    return 0;
}
