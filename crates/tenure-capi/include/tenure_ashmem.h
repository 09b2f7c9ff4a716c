/* Android's <cutils/ashmem.h> on top of tenure: shared memory whose unpinned pages go when memory is
 * short. A program that was written for it compiles unchanged with
 *     cc -I .../include -I .../include/android program.c -ltenure
 * where include/android has a cutils/ashmem.h that includes this file.
 *
 * As with ashmem: the descriptor is the program's, to map from offset 0 on, to pass to other processes
 * and to close. Every page is pinned at first. Pins are the region's, not the process's, and are not
 * counted: one unpin, by any process, lets pages go, and one pin, by any process, keeps them. Exactly one
 * pin returns ASHMEM_WAS_PURGED. Purged pages read as zeros in all mappings, before the pin, too; no
 * mapping raises a signal.
 *
 * The differences from ashmem:
 *  - The region is a memfd, so it works on every Linux from 5.10 on, with /proc mounted. The file is
 *    longer than the region, by 64 bytes for each page and one page: a program must not write behind the
 *    region's last page. fstat(2) and lseek(2) show that length; ashmem_get_size_region the right one.
 *  - The processes purge, not the kernel: each process that has called ashmem_create_region,
 *    ashmem_pin_region or ashmem_unpin_region for the region and has its descriptor open. While there is no
 *    such process, no page goes. They purge when less memory is left under their limits than a margin
 *    (docs/limits.md), so a neighbour that takes memory very fast can be faster.
 *  - They purge pages one by one, in the order of their unpins. ashmem purges a range as it was unpinned. So
 *    after ASHMEM_WAS_PURGED some pages of a range may have their bytes. The program must make all of them
 *    again, as with ashmem.
 *  - At most 24 processes may pin and unpin one region (EUSERS), children made by fork included. Any
 *    number may map it.
 *  - A pin or unpin needs no mapping. Offsets and sizes may be larger than 4 GiB. A size of 0 is EINVAL
 *    when the region is made, not when it is mapped. A name is cut to 249 bytes.
 *  - ashmem_set_prot_region changes its descriptor, and later copies of it. ashmem changes the region. mmap(2)
 *    then refuses to write with EACCES; ashmem with EPERM. No call takes PROT_READ away (EINVAL). It is no wall
 *    against a hostile process: a process that may open the file through /proc can write. The region's header
 *    is no wall either: a process that overwrites it can cause a purge of pinned pages.
 *  - A process that forks, and whose child is killed during a pin, loses no report: the next pin returns it.
 *  - There is no device, so no ioctl: ASHMEM_GET_PIN_STATUS, ASHMEM_PURGE_ALL_CACHES and ASHMEM_GET_NAME
 *    have no call. tenure_ashmem_purge_now purges one region.
 *  - A write(2) or a read(2) of the descriptor works. */

#ifndef TENURE_ASHMEM_H
#define TENURE_ASHMEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As in tenure.h. */
int tenure_ashmem_create_region(const char *name, size_t size);
int tenure_ashmem_valid(int fd);
int tenure_ashmem_get_size_region(int fd);
int tenure_ashmem_set_prot_region(int fd, int prot);
int tenure_ashmem_pin_region(int fd, size_t offset, size_t len);
int tenure_ashmem_unpin_region(int fd, size_t offset, size_t len);

/* A system's <linux/ashmem.h> has these, too. */
#ifndef ASHMEM_NAME_LEN
#define ASHMEM_NAME_LEN 256
#define ASHMEM_NAME_DEF "dev/ashmem"
#define ASHMEM_NOT_PURGED 0
#define ASHMEM_WAS_PURGED 1
#define ASHMEM_IS_UNPINNED 0
#define ASHMEM_IS_PINNED 1
#endif

/* Not 0 if the descriptor is a region's. */
static inline int ashmem_valid(int fd)
{
    return tenure_ashmem_valid(fd);
}

/* The descriptor of a new region, or -1 with errno set. */
static inline int ashmem_create_region(const char *name, size_t size)
{
    return tenure_ashmem_create_region(name, size);
}

/* PROT_READ alone: no more writing. 0, or -1 with errno set. */
static inline int ashmem_set_prot_region(int fd, int prot)
{
    return tenure_ashmem_set_prot_region(fd, prot);
}

/* ASHMEM_NOT_PURGED, ASHMEM_WAS_PURGED, or -1 with errno set. A len of 0: all from offset on. */
static inline int ashmem_pin_region(int fd, size_t offset, size_t len)
{
    return tenure_ashmem_pin_region(fd, offset, len);
}

/* 0, or -1 with errno set. A len of 0: all from offset on. */
static inline int ashmem_unpin_region(int fd, size_t offset, size_t len)
{
    return tenure_ashmem_unpin_region(fd, offset, len);
}

/* The requested size of the region, or -1 with errno set. */
static inline int ashmem_get_size_region(int fd)
{
    return tenure_ashmem_get_size_region(fd);
}

#ifdef __cplusplus
}
#endif

#endif /* TENURE_ASHMEM_H */
