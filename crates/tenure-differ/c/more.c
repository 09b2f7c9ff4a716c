/* Sequences that only make sense together: pages that the kernel still reads, stacks that grow,
 * resident sizes. */
#include "differ.h"
#include <fcntl.h>
#include <sys/uio.h>

static char *get(int mapped, size_t size) {
    if (!mapped)
        return malloc(size);
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? 0 : at;
}
static void drop(int mapped, char *at, size_t size) {
    if (mapped)
        munmap(at, size);
    else
        free(at);
}

/* size, the source of the memory, the source of the next block: a pipe keeps the pages and not
 * copies of them */
static void op_vmsplice(size_t index, const unsigned long *a) {
    int pipes[2], before = a[1] & 1, after = a[2] & 1;
    size_t size = a[0], part = size < 65536 ? size : 65536;
    static char got[65536];
    generation++;
    if (pipe2(pipes, O_CLOEXEC | O_NONBLOCK))
        return not_applicable("pipe");
    char *at = get(before, size);
    if (!at)
        return not_applicable("memory");
    memset(at, 1 + index % 200, size);
    struct iovec vector = {(char *)(((size_t)at + PAGE - 1) & -PAGE), part};
    if ((char *)vector.iov_base + part > at + size)
        vector.iov_len = part - PAGE;
    ssize_t moved = vmsplice(pipes[1], &vector, 1, a[3] & 1 ? SPLICE_F_GIFT : 0);
    put("moved", moved);
    /* malloc writes its own words into a block that stays in its heap. */
    drop(before, at, size);
    char *next = get(after, size);
    if (next)
        memset(next, 250, size);
    given_back += 2 * size;
    size_t wrong = 0;
    ssize_t have = read(pipes[0], got, sizeof got);
    for (ssize_t n = 0; n < have; n++)
        wrong += got[n] != (char)(1 + index % 200);
    put("read", have);
    /* A heap uses its pages again. Whether it has trimmed itself meanwhile depends on its former
     * contents. glibc has no block above 32 MiB in its heap. */
    put("~wrong", !before && size <= (32 << 20) ? 0 : wrong);
    if (next)
        drop(after, next, size);
    close(pipes[0]);
    close(pipes[1]);
}

/* A mapping that grows downwards, at addresses that were unmapped whole before. */
static void op_grows_down(size_t index, const unsigned long *a) {
    (void)index;
    size_t size = 512 * PAGE;
    generation++;
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return not_applicable("memory");
    if (a[1] & 1)
        memset(at, 5, size);
    munmap(at, size);
    int how = a[0] % 3 == 0 ? MAP_FIXED : a[0] % 3 == 1 ? MAP_FIXED_NOREPLACE : 0;
    char *middle = at + 400 * PAGE;
    errno = 77;
    char *stack = mmap(middle, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | how, -1, 0);
    put_result(stack == middle, errno);
    if (stack != middle)
        return;
    int other = 0;
    for (int n = 0; n < 20; n++) {
        other += stack[-n * (long)PAGE] != 0;
        stack[-n * (long)PAGE] = 9;
    }
    for (int n = 0; n < 20; n++)
        other += stack[-n * (long)PAGE] != 9;
    put("other", other);
    put("unmap", munmap(stack - 19 * PAGE, 20 * PAGE));
}

static void op_sbrk(size_t index, const unsigned long *a) {
    (void)index;
    generation++;
    long size = a[0];
    char *at = sbrk(size);
    put("got", at != (char *)-1);
    if (at == (char *)-1)
        return;
    size_t other = 0;
    for (long n = 0; n < size; n += 509)
        other += at[n] != 0;
    put("dirty", other);
    memset(at, 3, size);
    put("back", sbrk(-size) == at + size);
}

/* More may be resident than in the plain program, but at most the bytes that were freed. */
static void op_resident(size_t index, const unsigned long *a) {
    (void)index, (void)a;
    put("~rss", status_kib("VmRSS"));
    put("~kept", given_back / 1024);
}

const struct named more_operations[] = {
    {"vmsplice", op_vmsplice}, {"growsdown", op_grows_down}, {"sbrk", op_sbrk}, {"resident", op_resident}, {0, 0},
};
