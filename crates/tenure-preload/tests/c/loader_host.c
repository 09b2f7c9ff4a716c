/* Loads plugins. If one of them waits for ever the program is killed. */
#include "check.h"
#include <dlfcn.h>

int main(int count, char **names) {
    for (int n = 1; n < count; n++) {
        alarm(20);
        CHECK(dlopen(names[n], RTLD_NOW));
        puts("loaded");
    }
    return 0;
}
