/* A plugin with its own allocator under the names of well-known allocators. It is the one of the
 * launcher's tests, with work of any size. */
#define NUMBER 32
#define work work_of_one_size
#include "names_of_allocators.c"
#undef work

int work(size_t size) {
    size = size % 3000000 + 10;
    freed = 0;
    char *at = mallocx(size, 0);
    strcpy(at, "abc");
    at = rallocx(at, size * 2, 0);
    int good = !strcmp(at, "abc") && sallocx(at, 0) == 4242 + NUMBER;
    dallocx(at, 0);
    at = mi_malloc(size);
    strcpy(at, "abc");
    at = mi_realloc(at, size * 3);
    good = good && !strcmp(at, "abc") && mi_usable_size(at) == 4242 + NUMBER;
    mi_free(at);
    tc_free(mi_malloc(size));
    return good * 1000 + freed;
}
