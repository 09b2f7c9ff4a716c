/* A plugin with an allocator of its own by well-known allocators' names. */
#include <stdlib.h>
#include <string.h>

enum { BEFORE = 32 };
static int freed;
void *mallocx(size_t size, int flags) {
    (void)flags;
    char *at = malloc(size + BEFORE);
    return at + BEFORE;
}
void dallocx(void *at, int flags) {
    (void)flags;
    freed++;
    free((char *)at - BEFORE);
}
void *rallocx(void *at, size_t size, int flags) {
    (void)flags;
    return (char *)realloc((char *)at - BEFORE, size + BEFORE) + BEFORE;
}
size_t sallocx(const void *at, int flags) {
    (void)at, (void)flags;
    return 4242;
}
void *mi_malloc(size_t size) { return mallocx(size, 0); }
void mi_free(void *at) { dallocx(at, 0); }
void *mi_realloc(void *at, size_t size) { return rallocx(at, size, 0); }
size_t mi_usable_size(void *at) { return sallocx(at, 0); }
void tc_free(void *at) { dallocx(at, 0); }

int work(size_t size) {
    size = size % 3000000 + 10;
    freed = 0;
    char *at = mallocx(size, 0);
    strcpy(at, "abc");
    at = rallocx(at, size * 2, 0);
    int good = !strcmp(at, "abc") && sallocx(at, 0) == 4242;
    dallocx(at, 0);
    at = mi_malloc(size);
    strcpy(at, "abc");
    at = mi_realloc(at, size * 3);
    good = good && !strcmp(at, "abc") && mi_usable_size(at) == 4242;
    mi_free(at);
    tc_free(mi_malloc(size));
    return good * 1000 + freed;
}
