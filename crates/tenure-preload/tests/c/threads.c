/* Threads that allocate, resize, pass on and free blocks through every entry point, and check
 * the contents. */
#include "check.h"

enum { SLOTS = 64, THREADS = 4 };
struct block {
    char *at;
    size_t len;
    uint64_t owner;
    int mapped;
};
static struct block slots[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct block make(unsigned kind, size_t len, uint64_t owner) {
    struct block block = {NULL, len, owner, 0};
    size_t align = (size_t)16 << kind % 12;
    void *at = NULL;
    switch (kind % 9) {
    case 0: at = malloc(len); break;
    case 1: at = calloc(len / 8, 8); CHECK(is_zero(at, len & ~(size_t)7)); break;
    case 2: CHECK(posix_memalign(&at, align, len) == 0 && (uintptr_t)at % align == 0); break;
    case 3: at = aligned_alloc(align, (len + align - 1) / align * align); CHECK((uintptr_t)at % align == 0); break;
    case 4: at = memalign(align, len); CHECK((uintptr_t)at % align == 0); break;
    case 5: at = valloc(len); CHECK((uintptr_t)at % 4096 == 0); break;
    case 6: at = realloc(malloc(len / 3), len); break;
    case 7: at = reallocarray(NULL, len / 8, 8); break;
    case 8:
        block.mapped = 1;
        block.len = (len + 4095) & ~(size_t)4095;
        at = map(block.len);
        CHECK(is_zero(at, block.len));
        break;
    }
    CHECK(at);
    if (!block.mapped)
        CHECK(malloc_usable_size(at) >= (block.len & ~(size_t)7));
    block.len &= ~(size_t)7;
    block.at = at;
    fill(at, block.len, owner);
    return block;
}

static void drop(struct block block) {
    if (!block.at)
        return;
    CHECK(is_filled(block.at, block.len, block.owner));
    if (block.mapped)
        CHECK(munmap(block.at, (block.len + 4095) & ~(size_t)4095) == 0);
    else
        free(block.at);
}

static void *worker(void *number) {
    unsigned seed = (uintptr_t)number * 77 + 1;
    for (int n = 0; n < 600; n++) {
        seed = seed * 1103515245 + 12345;
        size_t len = 16 + seed / 16 % (seed % 7 ? 300 * KIB : 6 * MIB);
        struct block mine = make(seed >> 8, len, seed);
        if (!mine.mapped && seed % 5 == 0) {
            size_t next = (16 + seed / 3 % (2 * MIB)) & ~(size_t)7;
            mine.at = realloc(mine.at, next);
            CHECK(mine.at && is_filled(mine.at, next < mine.len ? next : mine.len, mine.owner));
            mine.len = next;
            fill(mine.at, next, mine.owner);
        }
        /* Another thread frees the block that this one made. */
        pthread_mutex_lock(&lock);
        struct block other = slots[seed / 32 % SLOTS];
        slots[seed / 32 % SLOTS] = mine;
        pthread_mutex_unlock(&lock);
        drop(other);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (uintptr_t n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, worker, (void *)n) == 0);
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    for (int n = 0; n < SLOTS; n++)
        drop(slots[n]);
    puts("contents held");
    return 0;
}
