/* Loads a library before the program begins. */
#include <dlfcn.h>
#include <stdlib.h>

__attribute__((constructor)) static void load(void) {
    free(malloc(100));
    if (!dlopen(getenv("QUEUE"), RTLD_NOW | RTLD_GLOBAL))
        abort();
}
