/* C++'s operators, called from C. */
#ifndef OPERATORS_H
#define OPERATORS_H
#include <stddef.h>
enum { ARRAY = 1, NOTHROW = 2, ALIGNED = 4, FORMS = 8 };
struct operators {
    void *(*allocate)(int form, size_t size, size_t align, int *threw);
    void (*release)(int form, void *at, size_t size, size_t align, int sized);
    /* A standard algorithm or a container that allocates by itself. */
    long (*work)(unsigned long which, unsigned long size);
};
#endif
