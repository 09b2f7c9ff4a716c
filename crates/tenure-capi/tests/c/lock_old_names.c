/* A program for the system calls that were once proposed to Linux: mlock2 with a flag for each
 * kind, munlock2, munlockall2 and MAP_LOCKONFAULT. It follows the proposal's own test: map,
 * lock, touch, and read the page map. The only change is `-include tenure_compat.h`, or an
 * include of it after the system's headers. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef INCLUDE_LATE
#include "tenure_compat.h"
#endif

#define PRESENT 0x8000000000000000ULL

static uint64_t page_flags(void *addr)
{
    uint64_t entry = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    if (fd < 0 || pread(fd, &entry, sizeof entry, (off_t)((uintptr_t)addr / 4096 * 8)) != sizeof entry) {
        perror("pagemap");
        exit(1);
    }
    close(fd);
    return entry;
}

/* Whether the mapping that holds the address has the two-letter flag. */
static int vma_has(void *addr, const char *flag)
{
    char line[4096];
    int inside = 0, found = -1;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (smaps && found < 0 && fgets(line, sizeof line, smaps)) {
        unsigned long from, to;
        if (strncmp(line, "VmFlags:", 8) == 0) {
            if (inside)
                found = strstr(line, flag) != NULL;
        } else if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            inside = (uintptr_t)addr >= from && (uintptr_t)addr < to;
        }
    }
    if (smaps)
        fclose(smaps);
    return found;
}

#define MUST(what)                                                                               \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #what, strerror(errno));             \
            return 1;                                                                            \
        }                                                                                        \
    } while (0)

static int test_mlock_lock(size_t page)
{
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    MUST(map != MAP_FAILED);
    MUST(mlock2(map, 2 * page, MLOCK_LOCKED) == 0);
    MUST((page_flags(map) & PRESENT) && (page_flags(map + page) & PRESENT));
    MUST(vma_has(map, " lo") && !vma_has(map, " lf"));
    MUST(munlock2(map, 2 * page, MLOCK_LOCKED) == 0);
    MUST(!vma_has(map, " lo"));
    MUST(munmap(map, 2 * page) == 0);
    return 0;
}

static int test_mlock_onfault(size_t page)
{
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    MUST(map != MAP_FAILED);
    MUST(mlock2(map, 2 * page, MLOCK_ONFAULT) == 0);
    MUST(!(page_flags(map) & PRESENT) && !(page_flags(map + page) & PRESENT));
    *map = 'a';
    MUST((page_flags(map) & PRESENT) && !(page_flags(map + page) & PRESENT));
    MUST(vma_has(map, " lf") == 1);
    MUST(munlock2(map, 2 * page, MLOCK_LOCKED) == 0); /* the other kind */
    MUST(vma_has(map, " lf") == 1);
    MUST(munlock2(map, 2 * page, MLOCK_ONFAULT) == 0);
    MUST(!vma_has(map, " lo"));
    MUST(munmap(map, 2 * page) == 0);
    return 0;
}

static int test_lock_onfault_of_present(size_t page)
{
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    MUST(map != MAP_FAILED);
    *map = 'a';
    MUST(mlock2(map, 2 * page, MLOCK_ONFAULT) == 0);
    MUST((page_flags(map) & PRESENT) && vma_has(map, " lf") == 1);
    MUST(munmap(map, 2 * page) == 0);
    return 0;
}

static int test_map_lockonfault(size_t page)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKONFAULT;
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, flags, -1, 0);
    MUST(map != MAP_FAILED);
    MUST(!(page_flags(map) & PRESENT) && !(page_flags(map + page) & PRESENT));
    *map = 'a';
    MUST((page_flags(map) & PRESENT) && !(page_flags(map + page) & PRESENT));
    MUST(vma_has(map, " lf") == 1);
    MUST(munmap(map, 2 * page) == 0);
    return 0;
}

static int test_munlockall(size_t page)
{
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    MUST(map != MAP_FAILED);
    if (mlockall(MCL_CURRENT) != 0) {
        MUST(errno == ENOMEM); /* an ordinary user's limit */
        MUST(munmap(map, 2 * page) == 0);
        return 0;
    }
    MUST((page_flags(map) & PRESENT) && vma_has(map, " lo") == 1);
    MUST(munlockall2(MCL_CURRENT) == 0);
    MUST(!vma_has(map, " lo"));
    MUST(munmap(map, 2 * page) == 0);

    MUST(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0);
    map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    MUST(map != MAP_FAILED && vma_has(map, " lf") == 1);
    MUST(munlockall2(MCL_FUTURE) == 0);
    MUST(vma_has(map, " lf") == 1); /* locked memory stays locked */
    char *later = mmap(NULL, 2 * page, PROT_READ, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
    MUST(later != MAP_FAILED && !vma_has(later, " lo"));
    MUST(munlockall2(MCL_ONFAULT) == 0);
    MUST(!vma_has(map, " lo"));
    MUST(munmap(map, 2 * page) == 0 && munmap(later, 2 * page) == 0);
    return 0;
}

/* The lock is charged with its whole length when it is made. */
static int test_limit(size_t page)
{
    MUST(geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);
    struct rlimit limit = {4 * page, 4 * page};
    MUST(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    MUST(mmap(NULL, 5 * page, PROT_READ, flags | MAP_LOCKONFAULT, -1, 0) == MAP_FAILED);
    MUST(errno == EAGAIN);
    char *map = mmap(NULL, 5 * page, PROT_READ | PROT_WRITE, flags, -1, 0);
    MUST(map != MAP_FAILED);
    MUST(mlock2(map, 5 * page, MLOCK_ONFAULT) == -1 && errno == ENOMEM);
    MUST(mlock2(map, 4 * page, MLOCK_ONFAULT) == 0);
    MUST(mlock2(map + 4 * page, page, MLOCK_ONFAULT) == -1 && errno == ENOMEM);
    MUST(munlock2(map, 5 * page, MLOCK_LOCKED | MLOCK_ONFAULT) == 0);
    return 0;
}

int main(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return test_mlock_lock(page) | test_mlock_onfault(page) | test_lock_onfault_of_present(page) |
           test_map_lockonfault(page) | test_munlockall(page) | test_limit(page);
}
