/* A program that has its own malloc: a small one that calls mmap. */
#include "check.h"

void *malloc(size_t len) {
    size_t *at = mmap(NULL, len + 64, RW, ANON, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    at[0] = len + 64;
    return at + 8;
}
void free(void *at) {
    if (at)
        munmap((size_t *)at - 8, ((size_t *)at - 8)[0]);
}
void *calloc(size_t count, size_t len) { return malloc(count * len); }
void *realloc(void *at, size_t len) {
    void *next = malloc(len);
    if (at && next) {
        size_t old = ((size_t *)at - 8)[0] - 64;
        memcpy(next, at, old < len ? old : len);
        free(at);
    }
    return next;
}

int main(void) {
    /* A function of the C library, which calls the program's realloc. */
    char *array = malloc(3 * MIB);
    memset(array, 7, 3 * MIB);
    array = reallocarray(array, 5, MIB);
    CHECK(array && array[0] == 7 && array[3 * MIB - 1] == 7);
    free(array);
    for (int n = 0; n < 200; n++) {
        char *block = malloc(5 * MIB);
        CHECK(is_zero(block, 5 * MIB));
        memset(block, 1, 5 * MIB);
        free(block);
    }
    puts("own");
    return 0;
}
