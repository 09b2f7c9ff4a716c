/* Segments of System V, attached over the program's memory, and where it has been. */
#include "check.h"
#include <sys/ipc.h>
#include <sys/shm.h>

/* glibc unmaps blocks of this size when they are freed. */
static const size_t LEN = 40 * MIB;

static char *attach(int by_number, int id, void *at, int flags) {
    if (by_number)
        return (char *)syscall(SYS_shmat, id, at, flags);
    return shmat(id, at, flags);
}

static int segment(size_t len) {
    int id = shmget(IPC_PRIVATE, len, IPC_CREAT | 0600);
    CHECK(id >= 0);
    return id;
}

/* Over a block that the program then frees: the block's next owner does not write to the segment. */
static void over_a_block(int by_number) {
    int id = segment(MIB);
    void *block;
    CHECK(posix_memalign(&block, 4096, LEN) == 0);
    memset(block, 1, LEN);
    CHECK(attach(by_number, id, block, SHM_REMAP) == block);
    memset(block, 2, MIB);
    free(block);
    void *next;
    CHECK(posix_memalign(&next, 4096, LEN) == 0);
    memset(next, 3, LEN);
    char *seen = attach(by_number, id, NULL, SHM_RDONLY);
    CHECK(seen != (char *)-1);
    for (size_t n = 0; n < MIB; n++)
        CHECK(seen[n] == 2);
    CHECK(shmdt(seen) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
    free(next);
}

/* Over a part of a mapping, which the program then unmaps whole. */
static void over_a_mapping(int by_number) {
    int id = segment(MIB);
    char *at = map(4 * MIB);
    memset(at, 1, 4 * MIB);
    CHECK(attach(by_number, id, at + MIB, SHM_REMAP) == at + MIB);
    memset(at + MIB, 2, MIB);
    CHECK(munmap(at, 4 * MIB) == 0);
    char *next = map(4 * MIB);
    CHECK(is_zero(next, 4 * MIB));
    memset(next, 3, 4 * MIB);
    char *seen = attach(by_number, id, NULL, SHM_RDONLY);
    CHECK(seen != (char *)-1 && seen[5000] == 2);
    CHECK(shmdt(seen) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
    CHECK(munmap(next, 4 * MIB) == 0);
}

/* At addresses that have become free, and that are not free. */
static void at_an_address(int by_number) {
    int id = segment(2 * MIB);
    char *block = malloc(LEN);
    CHECK(block);
    memset(block, 1, LEN);
    char *inside = (char *)(((uintptr_t)block + MIB) & ~(uintptr_t)4095);
    free(block);
    CHECK(attach(by_number, id, inside, 0) == inside);
    CHECK(is_zero(inside, 2 * MIB) && shmdt(inside) == 0);
    CHECK(attach(by_number, id, inside + 100, SHM_RND) == inside && shmdt(inside) == 0);

    char *at = map(4 * MIB);
    memset(at, 1, 4 * MIB);
    errno = 0;
    CHECK(attach(by_number, id, at + MIB, 0) == (char *)-1 && errno == EINVAL);
    CHECK(at[MIB] == 1);
    CHECK(munmap(at, 4 * MIB) == 0);
    CHECK(attach(by_number, id, at + MIB, 0) == at + MIB);
    CHECK(touch(at) == SIGSEGV && touch(at + 3 * MIB) == SIGSEGV);
    CHECK(shmdt(at + MIB) == 0 && shmctl(id, IPC_RMID, NULL) == 0);
    errno = 0;
    CHECK(attach(by_number, id, at, 0) == (char *)-1 && errno == EINVAL);
}

int main(void) {
    for (int by_number = 0; by_number < 2; by_number++) {
        over_a_block(by_number);
        over_a_mapping(by_number);
        at_an_address(by_number);
    }
    puts("attached");
    return 0;
}
