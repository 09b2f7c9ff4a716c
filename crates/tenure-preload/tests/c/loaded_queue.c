/* A program loads the library for io_uring while it runs, by dlopen, or by dlmopen into another
 * namespace. The kernel may still read what it frees from then on. */
#include "check.h"
#include <dlfcn.h>
#include <sys/uio.h>

typedef long Give(int to, const struct iovec *part);

/* `unloaded`: the library, which the program unloads before it frees. */
static void give_and_free(Give *give, size_t len, int is_mapped, void *unloaded) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    char *at = is_mapped ? map(len) : malloc(len);
    CHECK(at);
    memset(at, 'A', len);
    size_t page = 4096, offset = page - ((uintptr_t)at & (page - 1));
    struct iovec part = {at + offset, 8 * page};
    long given = give(ends[1], &part);
    if (given == -ENOSYS)
        return;
    CHECK(given > 0);
    CHECK(!unloaded || dlclose(unloaded) == 0);
    if (is_mapped)
        CHECK(munmap(at, len) == 0);
    else
        free(at);
    for (int n = 0; n < 4; n++)
        memset(is_mapped ? map(len) : malloc(len), 'B', len);
    char out[8 * 4096];
    CHECK(read(ends[0], out, sizeof out) == given);
    for (long n = 0; n < given; n++)
        CHECK(out[n] == 'A');
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    int is_mapped = !strcmp(arguments[2], "map");
    /* glibc unmaps blocks of this size when they are freed. */
    size_t len = is_mapped ? 2 * MIB : 48 * MIB;
    for (int n = 0; n < 5; n++) {
        void *at = is_mapped ? map(len) : malloc(len);
        memset(at, 1, len);
        if (is_mapped)
            CHECK(munmap(at, len) == 0);
        else
            free(at);
    }
    void *library = strcmp(arguments[3], "apart")
                        ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL)
                        : dlmopen(LM_ID_NEWLM, arguments[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    Give *give = (Give *)dlsym(library, "give");
    CHECK(give);
    give_and_free(give, len, is_mapped, strcmp(arguments[3], "gone") ? NULL : library);
    puts("read");
    return 0;
}
