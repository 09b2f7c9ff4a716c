/* What programs can find out about glibc's malloc: sizes, and how its heap grows and shrinks. */
#include "check.h"
#include <sys/sysinfo.h>

static char *blocks[100];

static size_t resident(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*u %zu", &pages) == 1);
    fclose(file);
    return pages * 4096;
}

/* Whether every mapping gets huge pages, by the system's setting. */
static int huge_pages_are_for_all(void) {
    char text[100] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file) {
        CHECK(fgets(text, sizeof text, file));
        fclose(file);
    }
    return strstr(text, "[always]") != NULL;
}

/* A large block of which a program uses only some pages takes that many pages. It takes huge
 * pages if the program asks for them. */
static void use_here_and_there(void) {
    size_t before = resident(), len = 512 * MIB;
    for (int round = 0; round < 3; round++) {
        char *at = malloc(len);
        for (size_t n = 0; n < len; n += 2 * MIB)
            at[n] = 1;
        CHECK(huge_pages_are_for_all() || resident() < before + 16 * MIB);
        free(at);
    }
    for (int round = 0; round < 3; round++) {
        char *at = malloc(8 * MIB);
        char *inner = (char *)(((uintptr_t)at + 2 * MIB - 1) & ~(2 * MIB - 1));
        CHECK(madvise(inner, 4 * MIB, MADV_HUGEPAGE) == 0 || errno == EINVAL);
        memset(at, 3, 8 * MIB);
        CHECK(at[0] == 3 && inner[4 * MIB - 1] == 3 && at[8 * MIB - 1] == 3);
        free(at);
    }
    CHECK(madvise((char *)4096, 4096, MADV_HUGEPAGE) == -1 && errno == ENOMEM);
}

/* If it is set so, the kernel refuses a mapping that is larger than all memory and swap. */
static void refuse_the_absurd(void) {
    char mode = '1';
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "r");
    CHECK(file && fread(&mode, 1, 1, file) == 1);
    fclose(file);
    struct sysinfo about;
    CHECK(sysinfo(&about) == 0);
    size_t all = (about.totalram + about.totalswap) * about.mem_unit;
    void *volatile at = malloc(all + all / 4);
    CHECK(mode == '1' ? at != NULL : at == NULL && errno == ENOMEM);
    free(at);
    at = malloc(4 * MIB);
    void *volatile large = realloc(at, all + all / 4);
    CHECK(mode == '1' || !large);
    free(large ? large : at);
    /* A hint for an alignment is served like a call without a hint. */
    char *mapped = mmap((void *)(4UL << 40), all + all / 4, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mode == '1' ? mapped != MAP_FAILED : mapped == MAP_FAILED && errno == ENOMEM);
    if (mapped != MAP_FAILED)
        munmap(mapped, all + all / 4);
}

int main(void) {
    /* A large block that is freed lets the heap keep more, also if a smaller one was freed before. */
    char *smaller = malloc(MIB);
    memset(smaller, 1, MIB);
    free(smaller);
    char *large = malloc(30 * MIB);
    memset(large, 1, 30 * MIB);
    free(large);
    char *top = NULL;
    for (int round = 0; round < 3; round++) {
        for (int n = 0; n < 100; n++) {
            blocks[n] = malloc(60000);
            memset(blocks[n], round, 60000);
        }
        char *highest = sbrk(0);
        CHECK(!top || highest == top);
        top = highest;
        for (int n = 99; n >= 0; n--)
            free(blocks[n]);
        CHECK(sbrk(0) == top);
    }
    /* Some programs add up the results of malloc_usable_size, and keep the sum below a limit. */
    for (size_t size = 100 * KIB; size < 64 * MIB; size += size / 3) {
        char *at = malloc(size);
        size_t usable = malloc_usable_size(at);
        CHECK(usable >= size && usable <= size + 12 * KIB);
        memset(at, 1, usable);
        at = realloc(at, size + size / 3);
        usable = malloc_usable_size(at);
        CHECK(usable >= size + size / 3 && usable <= size + size / 3 + 12 * KIB);
        at = realloc(at, size / 2);
        usable = malloc_usable_size(at);
        CHECK(usable >= size / 2 && usable <= size / 2 + 12 * KIB);
        free(at);
    }
    /* A block that has become small takes little, and so does a new one. */
    char *small = realloc(malloc(MIB), 100), *another = malloc(100);
    CHECK(malloc_usable_size(small) < 1000 && malloc_usable_size(another) < 1000);
    free(small);
    free(another);
    use_here_and_there();
    refuse_the_absurd();
    puts("as glibc");
    return 0;
}
