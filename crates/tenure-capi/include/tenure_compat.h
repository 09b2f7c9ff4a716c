/* The names under which these calls were once proposed to Linux, on top of tenure: a program that was
 * written for them compiles unchanged with
 *     cc -include tenure_compat.h program.c -ltenure
 * once its own system-call wrappers of these names are gone.
 *
 * It includes nothing of the C library, so that it may stand before the program's feature-test macros
 * (_GNU_SOURCE and the like) without taking away what they choose. */

#ifndef TENURE_COMPAT_H
#define TENURE_COMPAT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As in tenure.h. */
int tenure_mvolatile(void *addr, size_t len);
int tenure_mnovolatile(void *addr, size_t len);

/* From now on the range may be discarded: 0, or -1 with errno set. */
static inline int mvolatile(void *addr, size_t len)
{
    return tenure_mvolatile(addr, len);
}

/* The range is needed again: 0 if all of it is still there, 1 if not, -1 with errno set. */
static inline int mnovolatile(void *addr, size_t len)
{
    return tenure_mnovolatile(addr, len);
}

#ifdef __cplusplus
}
#endif

#endif /* TENURE_COMPAT_H */
