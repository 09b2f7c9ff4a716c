/* After its setup the program allows itself only the calls that the C library's malloc makes. */
#include "confine.h"

static void filter(int by_prctl) {
    const int mallocs[] = {SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_write, SYS_exit_group};
    allow_only(mallocs, sizeof mallocs / sizeof *mallocs, by_prctl);
}

enum { BLOCKS = 40, LARGEST = 6 * MIB };
static char *blocks[BLOCKS];
static size_t lens[BLOCKS];
static unsigned seed = 11;

/* Allocates blocks, makes them larger or smaller, and frees them. */
static void work(int rounds) {
    for (int n = 0; n < rounds; n++) {
        int i = rand_r(&seed) % BLOCKS;
        size_t len = ((size_t)rand_r(&seed) % LARGEST) & ~(size_t)7;
        CHECK(!blocks[i] || is_filled(blocks[i], lens[i], i));
        switch (rand_r(&seed) % 4) {
        case 0: {
            char *block = realloc(blocks[i], len + 8);
            CHECK(block);
            CHECK(!blocks[i] || is_filled(block, lens[i] < len ? lens[i] : len, i));
            blocks[i] = block;
            break;
        }
        case 1:
            free(blocks[i]);
            blocks[i] = calloc(1, len + 8);
            CHECK(blocks[i] && is_zero(blocks[i], len));
            break;
        default:
            free(blocks[i]);
            blocks[i] = malloc(len + 8);
            CHECK(blocks[i]);
        }
        lens[i] = len;
        fill(blocks[i], len, i);
    }
}

int main(int count, char **arguments) {
    int by_prctl = count > 1 && !strcmp(arguments[1], "prctl");
    work(sweep(150, 400));
    char *mapped = map(16 * MIB);
    fill(mapped, 16 * MIB, 99);
    /* Probing for filters changes nothing. */
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno == EFAULT);
    printf("filtered\n");
    fflush(stdout);
    filter(by_prctl);
    CHECK(munmap(mapped + 8 * MIB, 8 * MIB) == 0);
    CHECK(is_filled(mapped, 8 * MIB, 99));
    CHECK(munmap(mapped, 8 * MIB) == 0);
    work(sweep(150, 400));
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(!blocks[i] || is_filled(blocks[i], lens[i], i));
        free(blocks[i]);
    }
    mapped = map(16 * MIB);
    fill(mapped, 16 * MIB, 98);
    CHECK(munmap(mapped, 16 * MIB) == 0);
    printf("done\n");
    return 0;
}
