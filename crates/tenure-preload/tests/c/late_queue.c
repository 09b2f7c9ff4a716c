/* Blocks that are freed and allocated again. The program may first map a file at the offset of an
 * io_uring's queues, or load a library again and again first, or try to. */
#include "check.h"
#include <dlfcn.h>
#include <sys/eventfd.h>

static void map_file(int is_file) {
    const size_t offsets[] = {128 * MIB, 256 * MIB};
    int fd = is_file ? memfd_create("data", 0) : eventfd(0, 0);
    CHECK(fd >= 0 && (!is_file || ftruncate(fd, 512 * MIB) == 0));
    for (int n = 0; n < 2; n++) {
        void *at = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, offsets[n]);
        CHECK((at != MAP_FAILED) == is_file);
    }
}

static void free_one(void) {
    char *block = malloc(4 * MIB);
    memset(block, 1, 4 * MIB);
    free(block);
}

int main(int count, char **arguments) {
    const char *first = count > 1 ? arguments[1] : "";
    if (!strcmp(first, "file") || !strcmp(first, "no file"))
        map_file(!strcmp(first, "file"));
    for (int n = 0; count == 3 && n < 20; n++) {
        void *library = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL);
        CHECK(!library == !strcmp(first, "missing"));
        free_one();
        CHECK(!library || dlclose(library) == 0);
        free_one();
    }
    for (int n = 0; n < 200; n++) {
        free_one();
        /* tenure spends a part of the time only on libraries that are new. */
        usleep(1000);
    }
    return 0;
}
