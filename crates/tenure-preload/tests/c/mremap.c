/* mremap keeps its meaning: smaller, larger, to a given place, of a part, leaving the old one. */
#include "check.h"

static void one(size_t len) {
    char *at = map(len);
    fill(at, len, 1);
    /* Smaller: in place, and the tail is unmapped. */
    CHECK(mremap(at, len, len / 2, 0) == at);
    CHECK(is_filled(at, len / 2, 1) && touch(at + len / 2) == SIGSEGV);
    /* Larger: the new bytes are zero. */
    char *large = mremap(at, len / 2, 3 * len, MREMAP_MAYMOVE);
    CHECK(large != MAP_FAILED);
    CHECK(is_filled(large, len / 2, 1) && is_zero(large + len / 2, 3 * len - len / 2));
    fill(large, 3 * len, 2);
    /* To a place that the program chooses. */
    char *place = mmap(NULL, 4 * len, PROT_NONE, ANON, -1, 0);
    CHECK(mremap(large, 3 * len, 3 * len, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    CHECK(is_filled(place, 3 * len, 2));
    CHECK(munmap(place, 4 * len) == 0);
    /* A part moves out of the middle; the parts around it stay. */
    char *whole = map(4 * len);
    fill(whole, 4 * len, 3);
    char *part = mremap(whole + len, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, map(len));
    CHECK(part != MAP_FAILED);
    CHECK(!memcmp(whole + len - 8, whole + len - 8, 8));
    CHECK(((uint64_t *)part)[0] == 3 * 0x9e3779b97f4a7c15u + len / 8);
    CHECK(touch(whole + len) == SIGSEGV && touch(whole + 2 * len - 1) == SIGSEGV);
    CHECK(is_filled(whole, len, 3));
    CHECK(((uint64_t *)(whole + 2 * len))[0] == 3 * 0x9e3779b97f4a7c15u + 2 * len / 8);
    /* The hole may be used again. */
    CHECK(mmap(whole + len, len, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == whole + len);
    CHECK(is_zero(whole + len, len));
    CHECK(munmap(whole, 4 * len) == 0 && munmap(part, len) == 0);
    /* The old mapping stays, empty. */
    char *old = map(len);
    fill(old, len, 4);
    char *moved = mremap(old, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(moved != MAP_FAILED && is_filled(moved, len, 4) && is_zero(old, len));
    CHECK(munmap(old, len) == 0 && munmap(moved, len) == 0);
}

/* A call that the kernel refuses changes nothing. */
static void refused_whole(size_t len) {
    static const int flags[] = {0x80, MREMAP_DONTUNMAP, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, MREMAP_FIXED};
    char *at = map(len);
    fill(at, len, 5);
    for (size_t n = 0; n < sizeof flags / sizeof *flags; n++) {
        CHECK(mremap(at, len, len / 4, flags[n], at) == MAP_FAILED && errno == EINVAL);
        CHECK(is_filled(at, len, 5));
    }
    CHECK(mremap(at + 1, len, len / 4, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(is_filled(at, len, 5));
    CHECK(munmap(at, len) == 0);
}

/* A mapping that grows keeps its state: its protection, its file. */
static void grow_with_its_state(size_t len) {
    char *at = map(len);
    fill(at, len, 7);
    CHECK(mprotect(at, len, PROT_READ) == 0);
    char *large = mremap(at, len, 2 * len, MREMAP_MAYMOVE);
    CHECK(large != MAP_FAILED && is_filled(large, len, 7) && is_zero(large + len, len));
    CHECK(store(large) == SIGSEGV && store(large + len) == SIGSEGV);
    CHECK(munmap(large, 2 * len) == 0 && touch(large) == SIGSEGV);

    int file = memfd_create("growing", 0);
    CHECK(file >= 0 && ftruncate(file, 2 * len) == 0);
    at = map(len);
    CHECK(mmap(at, len, RW, MAP_SHARED | MAP_FIXED, file, 0) == at);
    fill(at, len, 8);
    large = mremap(at, len, 2 * len, MREMAP_MAYMOVE);
    CHECK(large != MAP_FAILED && is_filled(large, len, 8));
    fill(large, 2 * len, 9);
    uint64_t word;
    CHECK(pread(file, &word, 8, len) == 8 && word == ((uint64_t *)large)[len / 8]);
    CHECK(munmap(large, 2 * len) == 0);
    close(file);
}

/* The kernel joins a new mapping over a part of another one, or in its hole, with the mapping around
   it: an mremap may go over the border. */
static void over_borders(size_t len) {
    char *at = map(4 * len);
    fill(at, 4 * len, 11);
    CHECK(mmap(at + 2 * len, len, RW, ANON | MAP_FIXED, -1, 0) == at + 2 * len);
    CHECK(munmap(at, len) == 0);
    CHECK(mmap(at, len, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == at);
    char *part = mremap(at, 3 * len, 4 * len, MREMAP_MAYMOVE);
    CHECK(part != MAP_FAILED);
    CHECK(is_zero(part, len) && is_zero(part + 2 * len, 2 * len));
    CHECK(((uint64_t *)(part + len))[0] == 11 * 0x9e3779b97f4a7c15u + len / 8);
    CHECK(touch(at + 3 * len - 1) == SIGSEGV);
    CHECK(munmap(part, 4 * len) == 0 && munmap(at + 3 * len, len) == 0);
}

/* Whether the kernel counts the mapping at an address as committed memory. */
static int is_counted(char *at) {
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[4096];
    unsigned long start, end;
    int here = 0, counted = 0;
    CHECK(smaps);
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            here = (unsigned long)at >= start && (unsigned long)at < end;
        if (here && !strncmp(line, "VmFlags:", 8))
            counted = strstr(line, " ac") != NULL;
    }
    fclose(smaps);
    return counted;
}

/* A mapping that grows downwards, in a hole: the kernel counts its growth, and after the unmap only
   takes away what it counts as committed. */
static void growing_downwards(size_t len) {
    char *at = map(2 * len);
    fill(at, 2 * len, 12);
    CHECK(munmap(at, len) == 0);
    char *low = at + len / 2;
    CHECK(mmap(low, 4096, RW, ANON | MAP_GROWSDOWN | MAP_FIXED, -1, 0) == low);
    CHECK(is_counted(low));
    CHECK(munmap(low, 4096) == 0 && munmap(at + len, len) == 0);
}

/* A mapping that cannot grow stays in place, unchanged. */
static void refused(size_t len) {
    char *at = map(len);
    fill(at, len, 10);
    CHECK(mprotect(at, len, PROT_READ) == 0);
    struct rlimit before, tight;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    tight = before;
    tight.rlim_cur = 2048 * MIB;
    CHECK(setrlimit(RLIMIT_AS, &tight) == 0);
    errno = 0;
    CHECK(mremap(at, len, 65536 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK(is_filled(at, len, 10) && store(at) == SIGSEGV);
    CHECK(munmap(at, len) == 0);
}

/* As a growing array does. */
static void grow_step_by_step(void) {
    size_t len = 64 * KIB;
    char *at = map(len);
    fill(at, len, 5);
    while (len < 64 * MIB) {
        char *next = mremap(at, len, len * 3 / 2 & ~(size_t)4095, MREMAP_MAYMOVE);
        CHECK(next != MAP_FAILED);
        CHECK(is_filled(next, len, 5));
        at = next;
        len = len * 3 / 2 & ~(size_t)4095;
        fill(at, len, 5);
    }
    CHECK(munmap(at, len) == 0);
}

int main(void) {
    static const size_t sizes[] = {128 * KIB, 1 * MIB, 4 * MIB, 32 * MIB};
    for (size_t n = 0; n < 4; n++)
        one(sizes[n]);
    for (size_t n = 0; n < 4; n++)
        refused_whole(sizes[n]);
    for (size_t n = 0; n < 4; n++)
        grow_with_its_state(sizes[n]);
    for (size_t n = 0; n < 4; n++)
        over_borders(sizes[n]);
    for (size_t n = 0; n < 4; n++)
        growing_downwards(sizes[n]);
    grow_step_by_step();
    /* And by realloc, in a fixed sequence. */
    unsigned state = 1;
    size_t len = 100 * KIB;
    char *block = malloc(len);
    fill(block, len, 6);
    for (int n = 0; n < 300; n++) {
        state = state * 1103515245 + 12345;
        size_t next = (16 + state / 7 % (3 * MIB)) & ~(size_t)7;
        block = realloc(block, next);
        CHECK(block && is_filled(block, next < len ? next : len, 6));
        CHECK(malloc_usable_size(block) >= next);
        fill(block, next, 6);
        len = next;
    }
    free(block);
    for (size_t n = 0; n < 4; n++)
        refused(sizes[n]);
    puts("moved");
    return 0;
}
