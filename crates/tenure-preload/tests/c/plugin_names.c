/* A plugin with its own allocator, which has the names of well-known ones. NUMBER distinguishes
 * two of them. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int freed;
void *mallocx(size_t size, int flags) {
    (void)flags;
    char *at = malloc(size + NUMBER);
    return at + NUMBER;
}
void dallocx(void *at, int flags) {
    (void)flags;
    freed++;
    free((char *)at - NUMBER);
}
void sdallocx(void *at, size_t size, int flags) {
    (void)size;
    dallocx(at, flags);
}
void *rallocx(void *at, size_t size, int flags) {
    (void)flags;
    return (char *)realloc((char *)at - NUMBER, size + NUMBER) + NUMBER;
}
size_t sallocx(const void *at, int flags) {
    (void)at, (void)flags;
    return 4242 + NUMBER;
}
size_t xallocx(void *at, size_t size, size_t extra, int flags) {
    (void)at, (void)size, (void)extra, (void)flags;
    return 4343 + NUMBER;
}
void *mi_malloc(size_t size) { return mallocx(size, 0); }
void mi_free(void *at) { dallocx(at, 0); }
void *mi_realloc(void *at, size_t size) { return rallocx(at, size, 0); }
size_t mi_usable_size(void *at) { return sallocx(at, 0); }
void tc_free(void *at) { dallocx(at, 0); }

int work(void) {
    char *at = mallocx(300000, 0);
    strcpy(at, "abc");
    at = rallocx(at, 700000, 0);
    int good = !strcmp(at, "abc") && sallocx(at, 0) == 4242 + NUMBER && xallocx(at, 1, 2, 0) == 4343 + NUMBER;
    sdallocx(at, 700000, 0);
    dallocx(mallocx(10, 0), 0);
    at = mi_malloc(300000);
    strcpy(at, "abc");
    at = mi_realloc(at, 700000);
    good = good && !strcmp(at, "abc") && mi_usable_size(at) == 4242 + NUMBER;
    mi_free(at);
    tc_free(mi_malloc(200000));
    return good * 1000 + freed;
}
