/* A C program that loads a plugin, whose symbols no other library sees, and calls it. */
#include "check.h"
#include <dlfcn.h>

int main(int count, char **names) {
    CHECK(count > 1);
    for (int n = 1; n < count; n++) {
        void *plugin = dlopen(names[n], RTLD_NOW | RTLD_LOCAL);
        if (!plugin)
            fprintf(stderr, "%s\n", dlerror());
        CHECK(plugin);
        int (*work)(void) = (int (*)(void))dlsym(plugin, "work");
        CHECK(work);
        printf("%d\n", work());
        CHECK(dlclose(plugin) == 0);
    }
    return 0;
}
