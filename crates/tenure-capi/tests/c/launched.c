/* A program that uses the library, also under the launcher. The launcher's pool serves its memory, and
 * has to see what the library does to it. */
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>

#define LEN (4 * MIB)
#define ATTEMPTS 20

static unsigned char *anonymous(size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static unsigned char *aligned(void)
{
    void *at;
    CHECK(posix_memalign(&at, PAGE, LEN) == 0);
    return at;
}

/* Every page is written, and every second one holds data. */
static void write_pages(unsigned char *at)
{
    memset(at, 0, LEN);
    for (size_t page = 0; page < LEN / PAGE; page += 2)
        at[page * PAGE] = letter(page);
}

/* Pages of zeros are data: nothing was purged unless the kernel needs memory, which it does not twenty
 * times, one after another. */
static void zeros_are_kept(unsigned char *at)
{
    int attempts = 0, lost;
    do {
        write_pages(at);
        CHECK(tenure_mvolatile(at, LEN) == 0 && tenure_offer_now(at, LEN) == 0);
        lost = tenure_mnovolatile(at, LEN);
        CHECK(lost >= 0);
        for (size_t page = 0; page < LEN / PAGE; page += 2)
            CHECK(lost || at[page * PAGE] == letter(page));
    } while (lost && ++attempts < ATTEMPTS);
    CHECK(attempts < ATTEMPTS);
}

static void touch(unsigned char *at)
{
    write_pages(at);
    CHECK(tenure_mvolatile(at, LEN) == 0 && tenure_offer_now(at, LEN) == 0);
    for (size_t page = 0; page < LEN / PAGE; page++)
        CHECK(*(volatile unsigned char *)(at + page * PAGE) == (page % 2 ? 0 : letter(page)));
    CHECK(tenure_mnovolatile(at, LEN) >= 0);
}

/* A touch of such a page raises no SIGBUS. */
static void zeros_are_read(unsigned char *(*made)(void))
{
    int ended = 128, attempts = 0;
    while (ended != 0 && attempts++ < ATTEMPTS) {
        pid_t child = fork();
        if (child == 0) {
            touch(made());
            _exit(0);
        }
        ended = ending(child);
        CHECK(ended == 0 || ended == 128 + SIGBUS);
    }
    CHECK(ended == 0);
}

static unsigned char *mapped(void)
{
    return anonymous(LEN);
}

static long locked_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "VmLck: %ld kB", &kib) == 1)
            break;
    fclose(status);
    return kib;
}

static int ones(void)
{
    static unsigned char bytes[MIB];
    memset(bytes, 1, MIB);
    int file = memfd_create("ones", MFD_CLOEXEC);
    CHECK(file >= 0 && write(file, bytes, MIB) == (ssize_t)MIB);
    return file;
}

/* What the library has unmapped is the kernel's. A file that the program maps there and unmaps does
 * not come back as new memory. */
static void new_memory_is_zero(size_t len, size_t from)
{
    int file = ones(), hits = 0;
    for (int turn = 0; turn < 4; turn++) {
        unsigned char *at = anonymous(len);
        memset(at, 2, len);
        CHECK(tenure_munmap(at + from, len - from) == 0);
        size_t size = len - from < MIB ? len - from : MIB;
        unsigned char *there = mmap(at + from, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
        CHECK(there != MAP_FAILED && there[0] == 1);
        hits += there == at + from;
        CHECK(munmap(there, size) == 0);
        CHECK(from == 0 || (at[0] == 2 && munmap(at, from) == 0));
        unsigned char *next[8];
        for (size_t n = 0; n < 8; n++) {
            next[n] = anonymous(len);
            for (size_t page = 0; page < len / PAGE; page++)
                CHECK(page_is(next[n] + page * PAGE, 0));
        }
        for (size_t n = 0; n < 8; n++)
            CHECK(munmap(next[n], len) == 0);
    }
    /* Another thread may take the addresses. */
    CHECK(hits > 0);
    close(file);
}

/* The next owner of a block that was freed locked has no lock. */
static void locks_are_not_inherited(void)
{
    /* Otherwise the C library keeps such blocks in its heap, and their locks. */
    CHECK(mallopt(M_MMAP_THRESHOLD, 64 << 10) == 1);
    for (int turn = 0; turn < 4; turn++) {
        void *block, *next;
        CHECK(posix_memalign(&block, PAGE, MIB) == 0);
        if (tenure_mlock2(block, MIB, TENURE_MLOCK_LOCKED) != 0)
            return; /* RLIMIT_MEMLOCK is lower. */
        CHECK(locked_kib() >= 1024);
        free(block);
        CHECK(posix_memalign(&next, PAGE, MIB) == 0);
        memset(next, 1, MIB);
        CHECK(locked_kib() == 0);
        free(next);
    }
}

static int refused(int answer)
{
    return answer == -1 && errno == ENOMEM;
}

/* What the pool keeps free is not the program's. */
static void unmapped_memory_is_refused(size_t len)
{
    unsigned char *at = anonymous(len);
    memset(at, 1, len);
    CHECK(munmap(at, len) == 0);
    CHECK(refused(tenure_mnovolatile(at, len)));
    CHECK(refused(tenure_forget(at, len)));
}

/* The kernel joins a mapping made by the library with the mappings beside it: mremap() moves all. */
static void replaced_pieces_join(void)
{
    const size_t quarter = LEN / 4;
    unsigned char *at = anonymous(LEN);
    memset(at, 1, LEN);
    CHECK(tenure_mmap(at + quarter, quarter, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + quarter);
    unsigned char *to = mremap(at, LEN, 2 * LEN, MREMAP_MAYMOVE);
    CHECK(to != MAP_FAILED);
    for (size_t n = 0; n < 4; n++)
        CHECK(page_is(to + n * quarter, n != 1));
    CHECK(munmap(to, 2 * LEN) == 0);
}

static int stop;

static void *fork_again_and_again(void *nothing)
{
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        CHECK(ending(child) == 0);
    }
    return nothing;
}

/* An unmapping of many blocks of the pool's waits for a fork once, not once for each. */
static void forks_are_waited_for_once(void)
{
    enum { BLOCKS = 500 };
    const size_t len = 17 * PAGE;
    pthread_t forks;
    CHECK(pthread_create(&forks, NULL, fork_again_and_again, NULL) == 0);
    for (int turn = 0; turn < 30; turn++) {
        unsigned char *low = NULL, *high = NULL;
        for (int n = 0; n <= BLOCKS; n++) {
            unsigned char *at = n < BLOCKS ? anonymous(len) : NULL;
            /* Nothing else fits between two blocks: the pool leaves one page there at most. */
            int is_next = at && low && at <= high + PAGE && at + len + PAGE >= low;
            if (low && !is_next)
                CHECK(tenure_munmap(low, (size_t)(high - low)) == 0);
            low = is_next && low < at ? low : at;
            high = is_next && high > at + len ? high : at + len;
        }
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(forks, NULL) == 0);
}

static double seconds(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

#define THREADS 4
static unsigned char *blocks[THREADS];

static void *unmap_first_pages(void *place)
{
    const size_t len = 17 * PAGE;
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        unsigned char *at = anonymous(len);
        memset(at, 1, len);
        __atomic_store_n((unsigned char **)place, at, __ATOMIC_SEQ_CST);
        CHECK(munmap(at, PAGE) == 0);
        __atomic_store_n((unsigned char **)place, NULL, __ATOMIC_SEQ_CST);
        CHECK(munmap(at + PAGE, len - PAGE) == 0);
    }
    return NULL;
}

/* What a child unmaps is gone, though another thread of its parent's had just unmapped a part of the
 * block. */
static void children_unmap_the_rest(void)
{
    const size_t rest = 16 * PAGE;
    unsigned char there[16];
    pthread_t threads[THREADS];
    __atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, unmap_first_pages, &blocks[n]) == 0);
    for (double end = seconds() + 2; seconds() < end;) {
        double began = seconds();
        pid_t child = fork();
        /* Other threads wait 0.1 s at most for a fork. */
        int is_quick = seconds() - began < 0.1;
        for (int n = 0; child == 0 && n < THREADS; n++) {
            unsigned char *at = __atomic_load_n(&blocks[n], __ATOMIC_SEQ_CST);
            if (!at)
                continue;
            CHECK(munmap(at + PAGE, rest) == 0);
            CHECK(mincore(at + PAGE, rest, there) == -1 && errno == ENOMEM);
        }
        if (child == 0)
            _exit(0);
        CHECK(ending(child) == 0 || !is_quick);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
}

int main(void)
{
    unsigned char *block = aligned();
    zeros_are_kept(block);
    free(block);
    for (int mapping = 0; mapping < 2; mapping++) {
        block = mapped();
        zeros_are_kept(block);
        CHECK(munmap(block, LEN) == 0);
    }
    zeros_are_read(aligned);
    zeros_are_read(mapped);
    new_memory_is_zero(MIB, 0);
    new_memory_is_zero(MIB, MIB / 2);
    new_memory_is_zero(80 * MIB, 0);
    locks_are_not_inherited();
    unmapped_memory_is_refused(17 * PAGE);
    unmapped_memory_is_refused(MIB + PAGE);
    replaced_pieces_join();
    forks_are_waited_for_once();
    children_unmap_the_rest();
    return 0;
}
