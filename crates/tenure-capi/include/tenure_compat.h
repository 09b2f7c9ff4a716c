/* The names of the kernel proposals for these calls, on top of tenure. A program that was written for the
 * proposals compiles unchanged with
 *     cc -include tenure_compat.h program.c -ltenure
 * without its own system-call wrappers of these names.
 *
 * In C it includes nothing of the C library, so that it may stand before the program's feature-test
 * macros (_GNU_SOURCE and the like) without a change to their effect. In C++, where the compiler has chosen
 * already, it includes <sys/mman.h>. It may come before <sys/mman.h> or after. */

#ifndef TENURE_COMPAT_H
#define TENURE_COMPAT_H

#include <stddef.h>
#ifdef __cplusplus
#include <sys/mman.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* As in tenure.h. */
int tenure_mvolatile(void *addr, size_t len);
int tenure_mnovolatile(void *addr, size_t len);
int tenure_mlock2(const void *addr, size_t len, unsigned int flags);
int tenure_munlock2(const void *addr, size_t len, unsigned int flags);
int tenure_mlockall(int flags);
int tenure_munlockall2(int flags);

/* The kernel may discard the range from now on. Returns 0, or -1 with errno set. */
static inline int mvolatile(void *addr, size_t len)
{
    return tenure_mvolatile(addr, len);
}

/* The program needs the range again. Returns 0 if all of it is still there, 1 if not, -1 with errno set. */
static inline int mnovolatile(void *addr, size_t len)
{
    return tenure_mnovolatile(addr, len);
}

/* The kinds of lock: the flags of mlock2 (exactly one) and munlock2. Linux later got a mlock2 with other
 * flags (0 and 1). This replaces its MLOCK_ONFAULT. */
#define MLOCK_LOCKED 1
#undef MLOCK_ONFAULT
#define MLOCK_ONFAULT 2

/* For mmap: locked on fault from the start. */
#define MAP_LOCKONFAULT 0x01000000

/* The C library declares some of these names for the kernel's calls. If its header comes later, the macros
 * below turn its declarations into declarations of the functions here. */
static inline int tenure_compat_mlock2(const void *addr, size_t len, unsigned int flags)
{
    return tenure_mlock2(addr, len, flags);
}

static inline int tenure_compat_mlockall(int flags)
{
    return tenure_mlockall(flags);
}

void *tenure_mmap(void *addr, size_t len, int prot, int flags, int fd, long off);

static inline void *tenure_compat_mmap(void *addr, size_t len, int prot, int flags, int fd, long off)
{
    return tenure_mmap(addr, len, prot, flags, fd, off);
}

/* Clears the kinds in the flags, and no others. Returns 0, or -1 with errno set. */
static inline int munlock2(const void *addr, size_t len, unsigned int flags)
{
    return tenure_munlock2(addr, len, flags);
}

/* Clears the locks of mlockall, by its own flags. Returns 0, or -1 with errno set. */
static inline int munlockall2(int flags)
{
    return tenure_munlockall2(flags);
}

#undef mlock2
#define mlock2(addr, len, flags) tenure_compat_mlock2(addr, len, flags)
#undef mlockall
#define mlockall(flags) tenure_compat_mlockall(flags)
#undef mmap
#define mmap(addr, len, prot, flags, fd, off) tenure_compat_mmap(addr, len, prot, flags, fd, off)

#ifdef __cplusplus
}
#endif

#endif /* TENURE_COMPAT_H */
